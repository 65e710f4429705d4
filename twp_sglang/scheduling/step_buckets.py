"""Steps in buckets of alike ones, and their means as equations for a fit.

A bucket is a quarter of an octave wide in B and in prompt tokens, an octave in KV. Every bucket
is one equation however often it was visited.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from controllers.models.latency import LatencyModel
from twp_sglang.scheduling.least_squares import Moments

BUCKET_WEIGHT = 1.0 / 32.0
"""Memory of a bucket: a stray slow step fades."""

SCATTER = 0.1
SCATTER_VISITS = 4
"""Scatter of single steps that is supposed until visits tell, and how many of them outweigh it."""

RARELY = 2.9
"""Standard deviations of a normal variable that it is above once in 500 times."""

FORGETS = 1.001
"""Growth of a bucket's shortest step per visit: a machine twice as slow shows after 700."""

TERMS = 5
"""c, a, kappa, p and what a knee adds."""

JUMP, HINGE = 0, 1
"""Kinds of a knee: every step beyond it is longer by as much, or by as much per row."""

Key = tuple[int, int, int]
"""Places in B, KV and prompt tokens."""


def key_of(batch: int, kv_tokens: int, prefill_tokens: int) -> Key:
    """The bucket of a step."""
    return place(batch), kv_tokens.bit_length(), place(prefill_tokens)


class Bucket:
    """Means of B, KV, prompt and of the step time."""

    __slots__ = (
        *("batch", "count", "kv", "least_ms", "prompt", "seen"),
        *("step_ms", "surprise", "variance"),
    )

    def __init__(self) -> None:
        self.count = self.seen = 0  # visits, and the sample of the last one
        self.batch = self.kv = self.prompt = self.step_ms = 0.0
        self.variance = 0.0
        """Of the step time."""
        self.least_ms = math.inf
        """Shortest step lately: no pause is in it."""
        self.surprise = 0.0
        """Sum of the relative errors of what was predicted for it."""

    def take(self, step_ms: float, batch: int, kv_tokens: int, prefill_tokens: int) -> None:
        """One step more."""
        self.count += 1
        weight = max(BUCKET_WEIGHT, 1.0 / self.count)
        self.batch += weight * (batch - self.batch)
        self.kv += weight * (kv_tokens - self.kv)
        self.prompt += weight * (prefill_tokens - self.prompt)
        off = step_ms - self.step_ms
        self.step_ms += weight * off
        self.variance += weight * (off * (step_ms - self.step_ms) - self.variance)
        self.least_ms = min(step_ms, FORGETS * self.least_ms)

    def model_ms(self, model: LatencyModel, free_tokens: float) -> float:
        """What ``model`` says that its mean step takes, jumps apart."""
        return (
            model.l_min_ms
            + model.a_ms * self.batch
            + model.alpha_ms * max(0.0, self.batch - model.b0)
            + model.kappa_ms_per_token * self.kv
            + model.prefill_ms_per_token * max(0.0, self.prompt - free_tokens)
        )


class Equations:
    """Relative errors of the buckets as equations, for one number of free prompt tokens."""

    def __init__(self, buckets: Sequence[Bucket], free: float) -> None:
        self.buckets = buckets
        self._each: list[tuple[list[float], float]] = []
        self._plain = Moments(TERMS - 1)
        for bucket in buckets:
            scale = 1.0 / bucket.step_ms
            terms = [
                scale,
                bucket.batch * scale,
                bucket.kv * scale,
                max(0.0, bucket.prompt - free) * scale,
            ]
            self._each.append((terms, 1.0))
            self._plain.add(terms, 1.0)

    def moments(self, kind: int | None, rows: int) -> Moments:
        """Normal equations with a knee of ``kind`` at ``rows``, or none; nothing held yet."""
        if kind is None:
            return self._plain.extended(self._each, [0.0] * len(self.buckets))
        column = []
        for bucket, (terms, _) in zip(self.buckets, self._each, strict=True):
            beyond = bucket.batch - rows
            if beyond <= 0.0:
                column.append(0.0)
            else:
                column.append(terms[0] if kind == JUMP else beyond * terms[0])
        return self._plain.extended(self._each, column)


def scatter_most(buckets: Sequence[Bucket]) -> float:
    """Root mean square of the relative errors of the buckets' means that scatter alone exceeds
    once in 500 times: the scatter within them over the root of their visits, and the quantile of
    a chi-square variable of as many degrees as there are buckets (Wilson and Hilferty 1931)."""
    if not buckets:
        return 0.0
    square, visits, left = SCATTER_VISITS * SCATTER**2, SCATTER_VISITS, 0.0
    for bucket in buckets:
        count = min(bucket.count, round(1.0 / BUCKET_WEIGHT))
        square += count * (bucket.variance / bucket.step_ms) / bucket.step_ms
        visits += count - 1
        left += 1.0 / count
    spread = 2.0 / (9.0 * len(buckets))
    quantile = (1.0 - spread + RARELY * math.sqrt(spread)) ** 3
    return math.sqrt(square / visits * left / len(buckets) * quantile)


def place(count: int) -> int:
    """Bucket of a count: a quarter of an octave, upper edges 1, 2, ... 8, 10, 12, 14, 16, 20,
    24, 28, 32, ...: SGLang's graph sizes are among them."""
    if count <= 4:
        return count
    below = count - 1
    shift = below.bit_length() - 3
    return 4 * shift + (below >> shift) + 1


def below(batch: float) -> int:
    """Largest count below the bucket that holds ``batch``."""
    count = math.ceil(batch)
    if count <= 4:
        return count - 1
    shift = (count - 1).bit_length() - 3
    return ((count - 1) >> shift) << shift
