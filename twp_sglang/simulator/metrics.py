"""From finished requests to the metrics of :mod:`twp_sglang.latency_metrics`.

In a simulated engine all requests of a decode step get their tokens at the same moment.
So the inter-token gaps of a whole run are few values with many holders: the pooled
distribution is computed from values and counts, which is exact and keeps 100,000 requests
in memory. Everything per request goes through the functions that the load generator uses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twp_sglang.latency_metrics import (
    Distribution,
    FloatArray,
    LatencySummary,
    Slo,
    TokenTimes,
    distribution,
    meets,
)
from twp_sglang.simulator.live_request import LiveRequest

_PERCENTILES = (50.0, 95.0, 99.0)


def token_times(request: LiveRequest, decode_done_ms: FloatArray) -> TokenTimes:
    """When each output token of ``request`` came.

    Args:
        request: one that left the engine, or is still there.
        decode_done_ms: completion of every decode launch of its engine.
    """
    parts = []
    for segment in request.segments:
        parts.append(np.array([segment.first_token_ms]))
        parts.append(decode_done_ms[segment.begin : segment.end])
    times = np.concatenate(parts) if parts else np.empty(0)
    return TokenTimes(request.arrival_ms, times, completed=request.status == "completed")


class Gaps:
    """Inter-token gaps of many requests as values and how many hold each."""

    def __init__(self) -> None:
        self._values: list[FloatArray] = []
        self._counts: list[FloatArray] = []

    def add_engine(self, requests: Sequence[LiveRequest], decode_done_ms: FloatArray) -> None:
        """The gaps of all completed requests of one engine."""
        launches = len(decode_done_ms)
        # holders[j]: requests with a token both of launch j-1 and of launch j.
        change = np.zeros(launches + 1)
        single = []
        for request in requests:
            if request.status != "completed":
                continue
            last_ms: float | None = None
            for first_token_ms, begin, end in request.segments:
                if last_ms is not None:
                    single.append(first_token_ms - last_ms)
                last_ms = first_token_ms
                if end > begin:
                    single.append(decode_done_ms[begin] - first_token_ms)
                    change[begin + 1] += 1
                    change[end] -= 1
                    last_ms = decode_done_ms[end - 1]
        holders = np.cumsum(change)[1:launches]
        gaps = np.diff(decode_done_ms)
        held = holders > 0
        self._values += [gaps[held], np.asarray(single, dtype=np.float64)]
        self._counts += [holders[held], np.ones(len(single))]

    def summary(self) -> tuple[Distribution, float | None]:
        """(distribution, coefficient of variation), exact, percentiles interpolated
        linearly."""
        values = np.concatenate(self._values) if self._values else np.empty(0)
        counts = np.concatenate(self._counts) if self._counts else np.empty(0)
        total = int(counts.sum())
        if not total:
            return Distribution(count=0), None
        order = np.argsort(values, kind="stable")
        values, counts = values[order], counts[order]
        mean = float(np.dot(values, counts)) / total
        spread = float(np.sqrt(np.dot((values - mean) ** 2, counts) / total))
        upto = np.cumsum(counts)
        p50, p95, p99 = (_at(values, upto, q / 100.0 * (total - 1)) for q in _PERCENTILES)
        return (
            Distribution(count=total, mean=mean, p50=p50, p95=p95, p99=p99, max=float(values[-1])),
            spread / mean if mean else None,
        )


def _at(values: FloatArray, upto: FloatArray, position: float) -> float:
    """The ``position``-th of the sorted sample, counting from 0, between two when broken."""
    low = int(position)
    first = float(values[int(np.searchsorted(upto, low, side="right"))])
    after = min(int(np.searchsorted(upto, low + 1, side="right")), len(values) - 1)
    return first + (position - low) * (float(values[after]) - first)


def decode_gap_ms(request: LiveRequest, gaps_ms: FloatArray, done_ms: FloatArray) -> float | None:
    """The longest inter-token gap of ``request``; None below two tokens.

    ``gaps_ms`` is ``np.diff(done_ms)``, made once for all requests of an engine.
    """
    longest: float | None = None
    last_ms: float | None = None
    for first_token_ms, begin, end in request.segments:
        found = [] if last_ms is None else [first_token_ms - last_ms]
        last_ms = first_token_ms
        if end > begin:
            found.append(float(done_ms[begin]) - first_token_ms)
            last_ms = float(done_ms[end - 1])
        if end > begin + 1:
            found.append(float(gaps_ms[begin : end - 1].max()))
        if found:
            longest = max(found) if longest is None else max(longest, *found)
    return longest


def good(
    request: LiveRequest, slos: Sequence[Slo], done_ms: FloatArray, gap_ms: float | None
) -> bool:
    """Whether ``request`` completed and met every objective."""
    if request.status != "completed":
        return False
    times: TokenTimes | None = None
    for slo in slos:
        # No percentile of a request's gaps exceeds the longest of them.
        if slo.metric.startswith("itl") and (gap_ms is None or gap_ms <= slo.limit_ms):
            continue
        times = times or token_times(request, done_ms)
        if not meets(times, slo):
            return False
    return True


def summarise_run(
    engines: Sequence[tuple[Sequence[LiveRequest], FloatArray]],
    duration_s: float,
    slos: Sequence[Slo] = (),
) -> LatencySummary:
    """What :func:`twp_sglang.latency_metrics.summarise` gives for the same token times.

    Args:
        engines: for each engine its requests and its decode completion times.
        duration_s: from the first submission to the last event.
        slos: objectives for goodput; with none, goodput is None.
    """
    ttft, e2e, tpot, longest = [], [], [], []
    requests = completed = tokens = met = 0
    pooled = Gaps()
    for members, done_ms in engines:
        pooled.add_engine(members, done_ms)
        gaps_ms = np.diff(done_ms)
        for request in members:
            requests += 1
            if request.status != "completed":
                continue
            completed += 1
            tokens += request.produced
            first = request.segments[0].first_token_ms
            last = request.segments[-1]
            last_ms = float(done_ms[last.end - 1]) if last.end > last.begin else last[0]
            ttft.append(first - request.arrival_ms)
            e2e.append(last_ms - request.arrival_ms)
            gap = decode_gap_ms(request, gaps_ms, done_ms)
            if gap is not None:
                longest.append(gap)
            if request.produced > 1:
                tpot.append((last_ms - first) / (request.produced - 1))
            if slos:
                met += good(request, slos, done_ms, gap)
    itl, cv = pooled.summary()

    def rate(amount: int) -> float | None:
        return amount / duration_s if duration_s > 0 else None

    return LatencySummary(
        requests=requests,
        completed=completed,
        duration_s=duration_s,
        output_tokens=tokens,
        output_tokens_per_s=rate(tokens),
        requests_per_s=rate(completed),
        ttft_ms=distribution(ttft),
        itl_ms=itl,
        tpot_ms=distribution(tpot),
        e2e_ms=distribution(e2e),
        decode_gap_ms=distribution(longest),
        itl_cv=cv,
        goodput_rps=rate(met) if slos else None,
        goodput_fraction=met / requests if slos and requests else None,
    )
