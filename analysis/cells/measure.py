"""One simulation of one cell under one setting: the unit of work of every analysis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from analysis.cells.machines import machine
from analysis.cells.traffic import Half, cell_traffic
from controllers.laws.base import FrozenModel
from twp_sglang.benchmarking.slo_argument import parse_slos
from twp_sglang.config import TwpConfig
from twp_sglang.latency_metrics import (
    SloMetric,
    TokenTimes,
    decode_gap_ms,
    e2e_ms,
    itl_ms,
    tpot_ms,
    ttft_ms,
)
from twp_sglang.simulator.engine import SimulationStalled
from twp_sglang.simulator.metrics import token_times
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.simulate import Run, simulate

Metrics = dict[str, Any]
"""Numbers of a run by name, ``goodput`` by SLO; ``error`` alone where it could not end."""

LONG_SHARE = 0.1
"""Share of the requests, those with the longest prompts, that is also judged by itself."""

TIGHT = 0.7
"""Goodput is also told for objectives tightened to this factor: settings that all meet the
objectives differ in how much they have to spare."""

_SETTLED = 0.25
"""Share of a run's window samples left out at its start, while the window finds its place."""


class Task(FrozenModel):
    """A simulation to run. Equal tasks give equal metrics but for ``wall_s``.

    Attributes:
        machine, traffic: see :mod:`.machines` and :mod:`.traffic`.
        half, load, requests: which requests, and how dense.
        seed: of the stretch of traffic and of the scatter of step times.
        noise: standard deviation of the log of a step's time.
        config: fields of :class:`TwpConfig`.
        engine: fields of :class:`EngineSettings` but ``kv_tokens``.
        slos: lists of objectives, each judged by itself.
    """

    machine: str
    traffic: str
    half: Half
    load: float = Field(gt=0)
    requests: int = Field(ge=2)
    seed: int = Field(ge=0)
    noise: float = Field(default=0.0, ge=0)
    config: dict[str, Any] = Field(default_factory=dict)
    engine: dict[str, Any] = Field(default_factory=dict)
    slos: tuple[str, ...] = ()


def run_task(task: Task) -> Metrics:
    """Simulate ``task``.

    Raises:
        ValueError: a field that the simulator cannot use.
    """
    where = machine(task.machine)
    traffic = cell_traffic(task.traffic, where, task.half, task.load, task.seed, task.requests)
    settings = EngineSettings(kv_tokens=where.kv_tokens, **task.engine)
    try:
        run = simulate(
            traffic.requests,
            settings,
            lambda: where.model,
            TwpConfig(**task.config),
            noise=task.noise,
            seed=task.seed,
        )
    except SimulationStalled as error:
        return {"error": str(error)}
    return _metrics(run, task.slos, traffic.span_s, traffic.whole_half)


def _metrics(run: Run, slo_lists: Sequence[str], span_s: float, whole_half: bool) -> Metrics:
    result, latency = run.result, run.result.latency
    metrics: Metrics = {
        "requests": latency.requests,
        "completed": latency.completed,
        "span_s": span_s,
        "duration_s": latency.duration_s,
        "whole_half": whole_half,
        "tokens_per_s": latency.output_tokens_per_s,
        "tokens_per_s_arrivals": _tokens_within(run, span_s),
        "itl_cv": latency.itl_cv,
        "retractions": result.retractions,
        "forced": result.forced,
        "refused": sum(result.refused.values()),
        "failed": sum(result.failed.values()),
        "steps": result.steps,
        "wall_s": round(result.wall_s, 3),
        "itl_ms_max_unretracted": _longest_itl_ms(run),
        "goodput": _goodput(run, slo_lists),
    }
    for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "decode_gap_ms"):
        distribution = getattr(latency, name)
        for statistic in ("mean", "p50", "p95", "p99", "max"):
            metrics[f"{name}_{statistic}"] = getattr(distribution, statistic)
    windows = np.asarray([w for engine in run.engines for w in engine.driver.windows])
    windows = windows[int(_SETTLED * len(windows)) :]
    if len(windows):
        metrics["window_tokens_p50"] = float(np.median(windows))
        metrics["window_cv"] = float(windows.std() / windows.mean())
    return metrics


def _longest_itl_ms(run: Run) -> float | None:
    """The longest gap of a completed request that never lost its memory: what the scheduler's
    steps did to it, retractions apart. None where no such request has two tokens."""
    done_ms = run.decode_done_ms()
    gaps = [
        itl_ms(token_times(request, done_ms)).max(initial=0.0)
        for request in run.requests
        if request.status == "completed" and len(request.segments) == 1
    ]
    return float(max(gaps)) if any(gap > 0.0 for gap in gaps) else None


def _tokens_within(run: Run, span_s: float) -> float:
    """Tokens per second while requests arrived: the run's own rate also counts the time that
    the last ones take, which depends on who is left for the end."""
    if span_s <= 0.0:
        return 0.0
    done_ms = run.decode_done_ms()
    end_ms = min(request.arrival_ms for request in run.requests) + 1e3 * span_s
    tokens = sum(
        int(np.searchsorted(token_times(request, done_ms).token_ms, end_ms, side="right"))
        for request in run.requests
    )
    return tokens / span_s


def _goodput(run: Run, slo_lists: Sequence[str]) -> dict[str, dict[str, float]]:
    done_ms = run.decode_done_ms()
    return judged(
        [token_times(request, done_ms) for request in run.requests],
        [request.spec.input_tokens for request in run.requests],
        slo_lists,
        run.result.latency.duration_s,
    )


def judged(
    times: Sequence[TokenTimes],
    prompt_tokens: Sequence[int],
    slo_lists: Sequence[str],
    duration_s: float,
) -> dict[str, dict[str, float]]:
    """Goodput by list of objectives, of a simulation or of a client's records.

    Args:
        times: one per request.
        prompt_tokens: their prompt lengths, in the same order.
        slo_lists: lists of objectives, each judged by itself.
        duration_s: of the run.

    Returns:
        For each list ``fraction`` of the requests that met it, ``tight_fraction`` with limits
        of :data:`TIGHT`, ``rps`` of them, and ``long_fraction`` among the longest prompts.
    """
    if not slo_lists:
        return {}
    lists = {text: parse_slos(text) for text in slo_lists}
    values = {
        metric: np.array([_value(one, metric) for one in times])
        for metric in {slo.metric for slos in lists.values() for slo in slos}
    }
    prompts = np.array(prompt_tokens)
    long_ones = np.argsort(-prompts, kind="stable")[: max(1, round(LONG_SHARE * len(prompts)))]
    goodput = {}
    for text, slos in lists.items():
        met, tight = (
            np.all([values[slo.metric] <= factor * slo.limit_ms for slo in slos], axis=0)
            for factor in (1.0, TIGHT)
        )
        goodput[text] = {
            "fraction": float(met.mean()),
            "tight_fraction": float(tight.mean()),
            "rps": float(met.sum()) / duration_s if duration_s > 0 else 0.0,
            "long_fraction": float(met[long_ones].mean()),
        }
    return goodput


def _value(times: TokenTimes, metric: SloMetric) -> float:
    """A request's value of ``metric`` in ms; infinite where it misses any objective, 0 where
    it has no gap that could miss one (see :func:`twp_sglang.latency_metrics.meets`)."""
    if not times.completed or not len(times.token_ms):
        return math.inf
    value: float | None
    if metric == "ttft":
        value = ttft_ms(times)
    elif metric == "e2e":
        value = e2e_ms(times)
    elif metric == "tpot":
        value = tpot_ms(times)
    elif metric == "itl_max":
        value = decode_gap_ms(times)
    else:
        gaps = itl_ms(times)
        value = float(np.percentile(gaps, int(metric[-2:]))) if len(gaps) else None
    return 0.0 if value is None else value
