"""Latency fidelity: calibrated on the first half of a run, judged on its second half.

The same workload is served several times by one engine, with new prompts each time. The
step trace of the first run's first half gives the step model. The simulator then serves the
workload with it, and what its clients see is compared with what the load generator saw, for
the requests that arrive in the second half. The runs' own differences are the yardstick: a
simulator cannot be closer to a run than another run of the same engine is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from rich.console import Console

from analysis.judging.calibration import StepErrors, calibrate, part, step_errors
from analysis.judging.engine import (
    JudgementError,
    config_of,
    serving,
    settings_of,
    twp_of,
)
from controllers.laws.base import FrozenModel
from controllers.trace_reader import StepTrace
from twp_sglang.benchmarking.arrivals import Burst
from twp_sglang.benchmarking.lengths import parse_lengths
from twp_sglang.benchmarking.results import RunReport, read_report
from twp_sglang.benchmarking.run_command import run
from twp_sglang.benchmarking.settings import RunSettings
from twp_sglang.latency_metrics import LatencySummary, TokenTimes, summarise, ttft_ms
from twp_sglang.simulator.metrics import token_times
from twp_sglang.simulator.simulate import simulate
from twp_sglang.simulator.step_models import AffineStep
from twp_sglang.workloads.request import Request

METRICS = (
    ("ITL P50", "itl_ms", "p50"),
    ("ITL P99", "itl_ms", "p99"),
    ("TPOT P50", "tpot_ms", "p50"),
    ("TTFT P50", "ttft_ms", "p50"),
    ("TTFT P99", "ttft_ms", "p99"),
    ("E2E P50", "e2e_ms", "p50"),
    ("E2E P99", "e2e_ms", "p99"),
)

AIM_ITL_P50_PERCENT = 5.0

STEADY_PERCENT = 25.0
"""Where the engine's own runs are further apart than this, being within their spread says
nothing: the machine was doing other work."""


class Traffic(FrozenModel):
    """What is served. Lengths in the load generator's notation."""

    requests: int
    rate_rps: float
    bursts: tuple[Burst, ...]
    input_tokens: str
    output_tokens: str
    seed: int


class Compared(FrozenModel):
    """One statistic. Milliseconds; errors and spread relative to the runs' mean."""

    name: str
    runs: tuple[float, ...]
    simulated: float
    error_percent: float
    spread_percent: float
    """Largest less smallest run."""
    within_spread: bool
    """Whether the simulator is no further from the mean than the runs are apart."""


class LatencyFidelity(FrozenModel):
    """What one engine under one workload came to.

    Attributes:
        emulated: whether the engine was an emulated one.
        policy: in force.
        calibration: where the step model of decode steps came from.
        decode_step, prefill_step: the model.
        path_ms: what HTTP, tokenizer and detokenizer add to a token's time; the simulator has
            none of them, so it is measured in the first half and added to every token.
        first_half_steps: timed and untimed steps that it was fitted to.
        step_errors: of the second half of the first run.
        metrics: second-half requests, simulator beside the runs.
        requests_judged: how many these are.
        itl_p50_error_percent: the aim is 5 %.
    """

    emulated: bool
    policy: str
    traffic: Traffic
    calibration: str
    decode_step: AffineStep
    prefill_step: AffineStep | None
    path_ms: float
    first_half_steps: int
    step_errors: tuple[StepErrors, ...]
    metrics: tuple[Compared, ...]
    requests_judged: int
    itl_p50_error_percent: float

    @property
    def steady(self) -> bool:
        """Whether the engine repeated itself well enough for a verdict."""
        return self.metrics[0].spread_percent <= STEADY_PERCENT


async def judge(
    flags: Sequence[str],
    traffic: Traffic,
    runs: int,
    folder: Path,
    console: Console,
) -> LatencyFidelity:
    """Serve ``traffic`` ``runs`` times with a server of ``flags``, and simulate it.

    Raises:
        JudgementError: a run failed.
    """
    spans: list[tuple[int, int]] = []
    reports: list[RunReport] = []
    async with (
        serving(flags, folder, console) as engine,
        aiohttp.ClientSession() as session,
    ):
        # Caches of kernels and allocators fill in a run that nobody judges.
        await _run(engine.url, traffic, min(8, traffic.requests), folder / "warm.json", console)
        for index in range(runs):
            before = int(twp_of(await engine.info(session))["pass"])
            path = folder / f"run-{index + 1}.json"
            reports.append(await _run(engine.url, traffic, traffic.requests, path, console))
            info = await engine.info(session)
            spans.append((before, int(twp_of(info)["pass"])))
    return assess(info, traffic, reports, engine.steps(), spans)


async def _run(
    url: str, traffic: Traffic, requests: int, path: Path, console: Console
) -> RunReport:
    settings = RunSettings(
        url=url,
        workload="random",
        json_path=path,
        requests=requests,
        rate_rps=traffic.rate_rps,
        bursts=traffic.bursts,
        seed=traffic.seed,
        input_tokens=parse_lengths(traffic.input_tokens),
        output_tokens=parse_lengths(traffic.output_tokens),
        warmup=0,
    )
    if await run(settings, console, "python -m analysis.fidelity latency"):
        raise JudgementError(f"no request completed, or the run was interrupted ({path})")
    report = read_report(path)
    if report.summary.completed < report.summary.planned:
        raise JudgementError(f"{report.summary.failed} requests failed; see {path}")
    return report


def assess(
    info: dict[str, Any],
    traffic: Traffic,
    reports: Sequence[RunReport],
    trace: StepTrace,
    spans: Sequence[tuple[int, int]],
) -> LatencyFidelity:
    """Calibrate, simulate and compare.

    Args:
        info: /server_info of the engine.
        traffic: what was served.
        reports: the load generator's, one per run.
        trace: of all runs.
        spans: first step (excluded) and last step of each run.

    Raises:
        JudgementError: a trace too short to calibrate on.
    """
    planned = [
        Request(record.arrival_s, record.planned_input_tokens or 1, record.planned_output_tokens)
        for record in reports[0].requests
    ]
    half_s = (planned[0].arrival_s + planned[-1].arrival_s) / 2
    first, last = spans[0]
    own = part(trace, (trace["step"] > first) & (trace["step"] <= last))
    # The first step of a run starts with its first request.
    cut_ms = own["t_ms"][0] + 1e3 * (half_s - planned[0].arrival_s)
    early = own["t_ms"] < cut_ms
    try:
        calibrated = calibrate(part(own, early))
    except ValueError as error:
        raise JudgementError(f"the first half cannot be calibrated on: {error}") from None
    simulated = simulate(planned, settings_of(info), calibrated.model, config_of(info))
    late = [index for index, request in enumerate(planned) if request.arrival_s >= half_s]
    done_ms = simulated.decode_done_ms()
    inside = [token_times(request, done_ms) for request in simulated.requests]
    path_ms = _path_ms(inside[: late[0]], reports[0])
    ours = _summary([replace(inside[i], token_ms=inside[i].token_ms + path_ms) for i in late])
    theirs = [
        _summary([report.requests[index].token_times() for index in late]) for report in reports
    ]
    metrics = tuple(_compared(name, ours, theirs, field, at) for name, field, at in METRICS)
    return LatencyFidelity(
        emulated=bool(twp_of(info).get("emulated")),
        policy=str(twp_of(info)["policy"]),
        traffic=traffic,
        calibration=calibrated.source,
        decode_step=calibrated.decode,
        prefill_step=calibrated.prefill,
        path_ms=path_ms,
        first_half_steps=int(early.sum()),
        step_errors=step_errors(part(own, ~early), calibrated),
        metrics=metrics,
        requests_judged=len(late),
        itl_p50_error_percent=metrics[0].error_percent,
    )


def _path_ms(simulated: Sequence[TokenTimes], report: RunReport) -> float:
    """Lower decile of measured less simulated TTFT, never negative: the path of a request
    that met nothing unforeseen. In a mean, every slow step would count as path."""
    pairs = zip(simulated, report.requests, strict=False)
    measured = [(ttft_ms(ours), theirs.ttft_ms) for ours, theirs in pairs]
    found = [theirs - ours for ours, theirs in measured if ours is not None and theirs is not None]
    return max(0.0, float(np.percentile(found, 10))) if found else 0.0


def _summary(requests: list[TokenTimes]) -> LatencySummary:
    return summarise(requests, 0.0)


def _compared(
    name: str, ours: LatencySummary, theirs: Sequence[LatencySummary], field: str, at: str
) -> Compared:
    runs = tuple(float(getattr(getattr(summary, field), at)) for summary in theirs)
    simulated = float(getattr(getattr(ours, field), at))
    mean = float(np.mean(runs))
    error = 100 * (simulated / mean - 1)
    spread = 100 * (max(runs) - min(runs)) / mean
    return Compared(
        name=name,
        runs=runs,
        simulated=simulated,
        error_percent=error,
        spread_percent=spread,
        within_spread=abs(error) <= spread,
    )
