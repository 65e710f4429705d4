"""One contender in one cell: tuned on one half of the traffic, measured on the other.

The search is by coordinates: from the middle of every axis it tries all candidates of one
axis at a time and keeps the best, until a whole round changes nothing (at most
:data:`ROUNDS`). Best is the largest goodput. Where several are within :data:`TIE` of it, as at
light load, the one that also meets tighter objectives most often (one that barely holds
on this half may not hold on the other), and then the lowest product of TTFT P99 and ITL P99.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from analysis.cells.machines import machine
from analysis.cells.measure import Metrics, Task
from analysis.cells.traffic import Half, mean_output_tokens
from analysis.comparing.contenders import Contender, setting
from controllers.laws.base import FrozenModel

ROUNDS = 4
"""Most rounds over the axes; in practice the second or third changes nothing."""

TIE = 0.002
"""Goodput fractions that count as equal: four requests of two thousand."""


class Cell(FrozenModel):
    """Where contenders meet."""

    machine: str
    traffic: str
    load: float
    slo: str


class Effort(FrozenModel):
    """How much is simulated.

    Attributes:
        requests: per simulation.
        noise: scatter of step times.
        seeds: of the measurement.
        tune_seeds: of each candidate of a search.
    """

    requests: int
    noise: float
    seeds: int
    tune_seeds: int


class Outcome(NamedTuple):
    """A contender's result in a cell.

    Attributes:
        cell, contender: which.
        hindsight: whether it was tuned on the very half it was measured on.
        choice: the tuned values.
        runs: metrics of each seed on the ``test`` half.
        tried: candidates simulated.
    """

    cell: Cell
    contender: Contender
    hindsight: bool
    choice: dict[str, Any]
    runs: list[Metrics]
    tried: int


def contest(
    cell: Cell, contender: Contender, effort: Effort, *, hindsight: bool = False
) -> Generator[list[Task], list[Metrics], Outcome]:
    """The plan of one contender in one cell, for
    :func:`analysis.cells.workers.run_plans`.

    With ``hindsight`` it is tuned on the half that it is measured on, and on the same
    seeds: no constant of this kind can do better there, so it bounds what tuning can bring.
    """
    half: Half = "test" if hindsight else "tune"
    mean_output = mean_output_tokens(cell.traffic, half)

    def tasks(choice: dict[str, Any], where: Half, seeds: int) -> list[Task]:
        config, engine = setting(contender, choice, machine(cell.machine), mean_output, cell.slo)
        return [
            Task(
                machine=cell.machine,
                traffic=cell.traffic,
                half=where,
                load=cell.load,
                requests=effort.requests,
                seed=seed,
                noise=effort.noise,
                config=config,
                engine=engine,
                slos=(cell.slo,),
            )
            for seed in range(seeds)
        ]

    choice = {key: values[len(values) // 2] for key, values in contender.axes.items()}
    seen: dict[tuple[Any, ...], tuple[float, float, float]] = {}
    tune_seeds = effort.seeds if hindsight else effort.tune_seeds
    for _ in range(ROUNDS):
        before = dict(choice)
        for key, values in contender.axes.items():
            candidates = [{**choice, key: value} for value in values]
            new = [c for c in candidates if tuple(c.values()) not in seen]
            batch = [task for c in new for task in tasks(c, half, tune_seeds)]
            results = (yield batch) if batch else []
            for place, candidate in enumerate(new):
                runs = results[place * tune_seeds : (place + 1) * tune_seeds]
                seen[tuple(candidate.values())] = _score(runs, cell.slo)
            choice = _best(candidates, [seen[tuple(c.values())] for c in candidates])
        # One axis is searched whole at once.
        if choice == before or len(contender.axes) < 2:
            break
    runs = yield tasks(choice, "test", effort.seeds)
    return Outcome(cell, contender, hindsight, choice, runs, len(seen))


def _score(runs: Sequence[Metrics], slo: str) -> tuple[float, float, float]:
    """Goodput fraction, the same for tightened objectives, minus the latency."""
    if any("error" in run for run in runs):
        return -1.0, -1.0, -math.inf
    goodput = [run["goodput"][slo] for run in runs]
    latency = [(run["ttft_ms_p99"] or 0.0) * (run["itl_ms_p99"] or 1.0) for run in runs]
    return (
        fmean(one["fraction"] for one in goodput),
        fmean(one["tight_fraction"] for one in goodput),
        -fmean(latency),
    )


def _best(
    candidates: Sequence[dict[str, Any]], scores: Sequence[tuple[float, float, float]]
) -> dict[str, Any]:
    near = list(range(len(candidates)))
    for criterion in (0, 1):
        top = max(scores[i][criterion] for i in near)
        near = [i for i in near if scores[i][criterion] >= top - TIE]
    return candidates[max(near, key=lambda i: scores[i][2])]
