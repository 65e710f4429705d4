"""What measures one configuration.

A backend maps a configuration to metrics; it knows nothing of grids, files of results or
figures. :class:`Simulated` is here; a real server, emulated or not, is in :mod:`.served`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from statistics import fmean
from typing import Protocol

from analysis.cells.measure import Metrics, Task, run_task
from controllers.laws.base import FrozenModel
from twp_sglang.config import TwpConfig
from twp_sglang.simulator.arguments import MIXED_CHUNK_TOKENS

METRICS = {
    "itl_ms_p50": "ITL P50, ms",
    "itl_ms_p99": "ITL P99, ms",
    "itl_cv": "ITL coefficient of variation",
    "decode_gap_ms_p99": "decode gap P99, ms",
    "ttft_ms_p50": "TTFT P50, ms",
    "ttft_ms_p99": "TTFT P99, ms",
    "tokens_per_s": "output tokens/s",
    "goodput_fraction": "share of requests that meet the objectives",
    "window_cv": "swing of the window: std/mean of H",
    "forced": "forced admissions",
    "retractions": "retractions",
}
"""Metrics of a point, with the words of the figures."""

HIGHER_IS_BETTER = ("tokens_per_s", "goodput_fraction")


class Backend(Protocol):
    """Measures configurations."""

    @property
    def caption(self) -> str:
        """What the numbers are: simulated, EMULATED or measured, and on what."""

    def evaluate(self, config: TwpConfig) -> Metrics:
        """Metrics of ``config``: those of :data:`METRICS` that there are, or ``error``."""


class Simulated(FrozenModel):
    """The simulator on one cell, the mean over several seeds."""

    machine: str
    traffic: str
    load: float
    requests: int
    seeds: int
    noise: float
    slo: str

    @property
    def caption(self) -> str:
        """See :class:`Backend`."""
        return f"simulated: {self.traffic} on {self.machine}, load {self.load:g}"

    def tasks(self, config: TwpConfig) -> list[Task]:
        """One simulation per seed."""
        chunk = config.chunk_tokens or MIXED_CHUNK_TOKENS
        return [
            Task(
                machine=self.machine,
                traffic=self.traffic,
                half="test",
                load=self.load,
                requests=self.requests,
                seed=seed,
                noise=self.noise,
                config=config.model_dump(mode="json", exclude_defaults=True),
                engine={"step_kind": "mixed", "chunk_tokens": chunk},
                slos=(self.slo,) if self.slo else (),
            )
            for seed in range(self.seeds)
        ]

    def evaluate(self, config: TwpConfig) -> Metrics:
        """See :class:`Backend`."""
        return self.combine([run_task(task) for task in self.tasks(config)])

    def plan(self, config: TwpConfig) -> Generator[list[Task], list[Metrics], Metrics]:
        """The same as a plan of :mod:`analysis.cells.workers`."""
        runs = yield self.tasks(config)
        return self.combine(runs)

    def combine(self, runs: Sequence[Metrics]) -> Metrics:
        """Means over seeds."""
        for run in runs:
            if "error" in run:
                return {"error": run["error"]}
        combined: Metrics = {}
        for name in METRICS:
            if name == "goodput_fraction":
                found = [run["goodput"][self.slo]["fraction"] for run in runs if run["goodput"]]
            else:
                found = [run[name] for run in runs if run.get(name) is not None]
            if len(found) == len(runs):
                combined[name] = fmean(found)
        return combined
