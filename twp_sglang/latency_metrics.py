"""Serving latency metrics, computed from token times alone.

The load generator feeds these functions times seen by a client, the simulator feeds
them its own event times; both therefore report the same quantities under the same
names. Nothing here knows of HTTP, files or clocks. All times are milliseconds on one
clock whose origin does not matter.

Terms:

TTFT        submission to first output token.
ITL         gap between successive output tokens of one request. Every gap of every
            request is one sample; gaps are never averaged per request first.
TPOT        (E2E - TTFT) / (output tokens - 1), one value per request.
E2E         submission to last output token.
Decode gap  the longest ITL of a request, one value per request.
ITL CV      standard deviation over mean of all ITLs (population form, ddof = 0).
Goodput     requests per second that completed and met every stated SLO.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from controllers.laws.base import FrozenModel

FloatArray = NDArray[np.float64]

SloMetric = Literal["ttft", "tpot", "e2e", "itl_p50", "itl_p95", "itl_p99", "itl_max"]


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """When the output tokens of one request were seen.

    Attributes:
        submitted_ms: when the request was submitted.
        token_ms: time of each output token, shape (tokens,), non-decreasing. Tokens that
            became visible together carry the same time.
        completed: False for a request that failed or was cut short; it then enters no
            latency distribution and counts as missing every SLO.
        output_tokens: tokens produced, where that is known better than by counting
            ``token_ms`` (a server that reports only a total); None means ``len(token_ms)``.
    """

    submitted_ms: float
    token_ms: FloatArray
    completed: bool = True
    output_tokens: int | None = None

    @property
    def tokens(self) -> int:
        """Output tokens of the request."""
        return len(self.token_ms) if self.output_tokens is None else self.output_tokens


class Distribution(FrozenModel):
    """Summary of one sample. Every statistic is None when the sample is empty."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


class Slo(FrozenModel):
    """One latency objective: ``metric`` of a request is at most ``limit_ms``.

    ``itl_p50``, ``itl_p95``, ``itl_p99`` are percentiles over the request's own ITLs,
    ``itl_max`` is its decode gap.
    """

    metric: SloMetric
    limit_ms: float


class LatencySummary(FrozenModel):
    """Latency of one run, as seen on one clock.

    ``output_tokens_per_s`` and every distribution cover completed requests only;
    ``goodput_fraction`` is over all requests, a failed one being a miss. The goodput
    fields are None where no SLO was stated, rates where the run lasted no time.
    """

    requests: int
    completed: int
    duration_s: float
    output_tokens: int
    output_tokens_per_s: float | None
    requests_per_s: float | None
    ttft_ms: Distribution
    itl_ms: Distribution
    tpot_ms: Distribution
    e2e_ms: Distribution
    decode_gap_ms: Distribution
    itl_cv: float | None
    goodput_rps: float | None = None
    goodput_fraction: float | None = None


def ttft_ms(request: TokenTimes) -> float | None:
    """Time to first token in ms; None without a token."""
    return float(request.token_ms[0] - request.submitted_ms) if len(request.token_ms) else None


def e2e_ms(request: TokenTimes) -> float | None:
    """Submission to last token in ms; None without a token."""
    return float(request.token_ms[-1] - request.submitted_ms) if len(request.token_ms) else None


def itl_ms(request: TokenTimes) -> FloatArray:
    """Inter-token latencies in ms, shape (tokens - 1,).

    Tokens that arrived together have gaps of exactly 0: their spread was not observed,
    so none is made up.
    """
    return np.diff(request.token_ms)


def tpot_ms(request: TokenTimes) -> float | None:
    """Time per output token after the first in ms; None below two tokens."""
    if request.tokens < 2 or len(request.token_ms) == 0:
        return None
    return float(request.token_ms[-1] - request.token_ms[0]) / (request.tokens - 1)


def decode_gap_ms(request: TokenTimes) -> float | None:
    """Longest inter-token latency in ms; None below two tokens."""
    gaps = itl_ms(request)
    return float(gaps.max()) if len(gaps) else None


def coefficient_of_variation(values: FloatArray) -> float | None:
    """Standard deviation over mean (ddof = 0); None for no values or a zero mean."""
    mean = float(values.mean()) if len(values) else 0.0
    return float(values.std()) / mean if mean else None


def distribution(values: FloatArray | Sequence[float]) -> Distribution:
    """Mean, maximum and linearly interpolated percentiles of a sample."""
    sample = np.asarray(values, dtype=np.float64)
    if not len(sample):
        return Distribution(count=0)
    p50, p95, p99 = np.percentile(sample, (50, 95, 99))
    return Distribution(
        count=len(sample),
        mean=float(sample.mean()),
        p50=float(p50),
        p95=float(p95),
        p99=float(p99),
        max=float(sample.max()),
    )


def meets(request: TokenTimes, slo: Slo) -> bool:
    """Whether a request met one objective.

    A request that failed, or produced no token, misses. One with a single token has no
    inter-token gap and so cannot miss an ITL or TPOT objective.
    """
    if not request.completed or len(request.token_ms) == 0:
        return False
    if slo.metric == "ttft":
        value = ttft_ms(request)
    elif slo.metric == "e2e":
        value = e2e_ms(request)
    elif slo.metric == "tpot":
        value = tpot_ms(request)
    elif slo.metric == "itl_max":
        value = decode_gap_ms(request)
    else:
        gaps = itl_ms(request)
        value = float(np.percentile(gaps, int(slo.metric[-2:]))) if len(gaps) else None
    return value is None or value <= slo.limit_ms


def pooled_itl_ms(requests: Sequence[TokenTimes]) -> FloatArray:
    """Every inter-token gap of every completed request, in ms."""
    gaps = [itl_ms(request) for request in requests if request.completed]
    return np.concatenate(gaps) if gaps else np.empty(0)


def per_request(
    requests: Sequence[TokenTimes], metric: Callable[[TokenTimes], float | None]
) -> FloatArray:
    """``metric`` of every completed request that has one."""
    values = (metric(request) for request in requests if request.completed)
    return np.array([value for value in values if value is not None], dtype=np.float64)


def summarise(
    requests: Sequence[TokenTimes], duration_s: float, slos: Sequence[Slo] = ()
) -> LatencySummary:
    """Summarise a run.

    Args:
        requests: every request submitted, failed ones included.
        duration_s: seconds from the first submission to the last event of the run.
        slos: objectives for goodput; with none, goodput is None.
    """
    completed = [request for request in requests if request.completed]
    tokens = sum(request.tokens for request in completed)
    gaps = pooled_itl_ms(completed)
    good = sum(all(meets(request, slo) for slo in slos) for request in requests)

    def rate(amount: int) -> float | None:
        return amount / duration_s if duration_s > 0 else None

    return LatencySummary(
        requests=len(requests),
        completed=len(completed),
        duration_s=duration_s,
        output_tokens=tokens,
        output_tokens_per_s=rate(tokens),
        requests_per_s=rate(len(completed)),
        ttft_ms=distribution(per_request(completed, ttft_ms)),
        itl_ms=distribution(gaps),
        tpot_ms=distribution(per_request(completed, tpot_ms)),
        e2e_ms=distribution(per_request(completed, e2e_ms)),
        decode_gap_ms=distribution(per_request(completed, decode_gap_ms)),
        itl_cv=coefficient_of_variation(gaps),
        goodput_rps=rate(good) if slos else None,
        goodput_fraction=good / len(requests) if slos and requests else None,
    )


def bootstrap_ratios(
    ours: Sequence[FloatArray],
    base: Sequence[FloatArray],
    percentiles: Sequence[float],
    *,
    resamples: int = 300,
    seed: int = 0,
) -> list[tuple[float, float] | None]:
    """95 % bootstrap intervals of ratios of percentiles between two runs.

    Requests are resampled with all their samples (cluster bootstrap), because the ITLs of
    one request are correlated: resampling single gaps would give intervals that are far
    too narrow. An interval covers the draw of requests within each run, not the
    difference from one run to the next.

    Args:
        ours, base: one array of samples per request.
        percentiles: each in [0, 100].
        resamples: bootstrap draws; 300 settles the ends to about a percent.
        seed: of the draws, so that a table prints the same twice.

    Returns:
        (low, high) per percentile, or None where a side has fewer than two requests or
        the base is zero.
    """
    if len(ours) < 2 or len(base) < 2:
        return [None] * len(percentiles)
    rng = np.random.default_rng(seed)

    def draws(clusters: Sequence[FloatArray]) -> FloatArray:
        values = np.full((resamples, len(percentiles)), np.nan)
        for i in range(resamples):
            picked = rng.integers(len(clusters), size=len(clusters))
            pool = np.concatenate([clusters[k] for k in picked])
            if len(pool):
                values[i] = np.percentile(pool, percentiles)
        return values

    bottom = draws(base)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = draws(ours) / bottom
    return [
        (float(np.percentile(column, 2.5)), float(np.percentile(column, 97.5)))
        if np.isfinite(column).all()
        else None
        for column in ratios.T
    ]
