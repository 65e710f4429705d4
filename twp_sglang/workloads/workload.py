"""A workload: requests in order of arrival, what was tolerated, and a line about it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controllers.laws.base import FrozenModel
from twp_sglang.workloads.fields import LONGEST_S, WorkloadError
from twp_sglang.workloads.request import Request


class Workload(NamedTuple):
    """Requests by arrival, the first at 0 s, with notes on what the reader tolerated."""

    name: str
    requests: tuple[Request, ...]
    notes: tuple[str, ...] = ()


def in_order(name: str, requests: Sequence[Request], notes: Sequence[str] = ()) -> Workload:
    """A workload of ``requests``: sorted by arrival where they are not, shifted to start at 0.

    Raises:
        WorkloadError: there is no request.
    """
    if not requests:
        raise WorkloadError(f"{name}: holds no request")
    told = list(notes)
    late = sum(after.arrival_s < before.arrival_s for before, after in itertools.pairwise(requests))
    if late:
        told.append(f"{late} rows lay before the row above them; sorted by time")
        requests = sorted(requests, key=lambda request: request.arrival_s)
    start = requests[0].arrival_s
    if start:
        requests = [r._replace(arrival_s=r.arrival_s - start) for r in requests]
    return Workload(name, tuple(requests), tuple(told))


def stretched(workload: Workload, factor: float) -> Workload:
    """All times multiplied by ``factor``: 2 halves the rate and keeps the shape.

    Raises:
        WorkloadError: factor not finite or not positive, or the last request comes after more
            than a century.
    """
    if not 0 < factor < float("inf"):
        raise WorkloadError(f"--time-stretch {factor:g}: must be finite and above 0")
    if workload.requests[-1].arrival_s * factor > LONGEST_S:
        raise WorkloadError(
            f"--time-stretch {factor:g}: the last request would come after more than a century"
        )
    if factor == 1.0:
        return workload
    moved = tuple(r._replace(arrival_s=r.arrival_s * factor) for r in workload.requests)
    return workload._replace(requests=moved)


class WorkloadSummary(FrozenModel):
    """What a workload looks like.

    Attributes:
        requests: how many.
        span_s: first to last arrival.
        rate_rps: requests per second over the span; None for a span of 0.
        arrival_cv: coefficient of variation of the gaps between arrivals (1 is Poisson).
        peak_to_mean_1s, peak_to_mean_10s: busiest bin over the mean bin.
        input_tokens, output_tokens: P50, P95, P99 and maximum.
        shared_prompt_fraction: prompt tokens in blocks seen before, of all prompt tokens.
    """

    requests: int
    span_s: float
    rate_rps: float | None
    arrival_cv: float | None
    peak_to_mean_1s: float | None
    peak_to_mean_10s: float | None
    input_tokens: tuple[float, float, float, float]
    output_tokens: tuple[float, float, float, float]
    shared_prompt_fraction: float

    def line(self) -> str:
        """One line for people."""
        rate = "-" if self.rate_rps is None else f"{self.rate_rps:.3g}/s"
        shared = self.shared_prompt_fraction
        return (
            f"{self.requests:,} requests in {self.span_s:,.0f} s ({rate}, "
            f"CV {_short(self.arrival_cv)}, peak/mean {_short(self.peak_to_mean_1s)} at 1 s, "
            f"{_short(self.peak_to_mean_10s)} at 10 s); "
            f"input P50/P95/P99/max {_lengths(self.input_tokens)}, "
            f"output {_lengths(self.output_tokens)} tokens"
            + (f"; {shared:.0%} of prompt tokens seen before" if shared else "")
        )


def summarise(workload: Workload) -> WorkloadSummary:
    """Rate, burstiness and lengths of ``workload``."""
    requests = workload.requests
    times = np.array([r.arrival_s for r in requests])
    span = float(times[-1] - times[0])
    gaps = np.diff(times)
    mean_gap = float(gaps.mean()) if len(gaps) else 0.0
    seen: set[str] = set()
    repeated = 0
    for request in requests:
        for block in request.prefix:
            if block.key in seen:
                repeated += block.tokens
            seen.add(block.key)
    prompt_tokens = sum(r.input_tokens for r in requests)
    return WorkloadSummary(
        requests=len(requests),
        span_s=span,
        rate_rps=(len(requests) - 1) / span if span > 0 else None,
        arrival_cv=float(gaps.std()) / mean_gap if mean_gap else None,
        peak_to_mean_1s=_peak_to_mean(times, 1.0),
        peak_to_mean_10s=_peak_to_mean(times, 10.0),
        input_tokens=_percentiles([r.input_tokens for r in requests]),
        output_tokens=_percentiles([r.output_tokens for r in requests]),
        shared_prompt_fraction=repeated / prompt_tokens,
    )


def _peak_to_mean(times: NDArray[np.float64], bin_s: float) -> float | None:
    bins = int(times[-1] // bin_s) + 1
    if bins < 2:
        return None
    # Not bincount: a sparse trace over a year has few requests and many bins.
    _, counts = np.unique(times // bin_s, return_counts=True)
    return float(counts.max()) / (len(times) / bins)


def _percentiles(values: Sequence[int]) -> tuple[float, float, float, float]:
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return float(p50), float(p95), float(p99), float(max(values))


def _lengths(values: tuple[float, ...]) -> str:
    return "/".join(f"{value:,.0f}" for value in values)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
