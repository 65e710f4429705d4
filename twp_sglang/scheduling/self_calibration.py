"""A step model from nothing: regression on what was seen, while serving.

    l = c + a B + kappa KV + p prompt,    all terms at least 0

Steps are gathered in buckets, a factor of two wide in B, KV and prompt tokens, and every
bucket counts once however often it was visited. That is what keeps the fit sound in closed
loop: a controller that holds the step constant visits a few buckets over and over, and an
ordinary least-squares fit would forget all others. For the same reason the fit is made at
fixed counts of samples and then stands; drift after that is for the two gains
(controllers.laws.two_gain). A saturated engine cannot redefine its baseline this way.

Pure Python arithmetic in a fixed order: tensor-parallel ranks get the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from controllers.models.latency import LatencyModel

FIT_AT = tuple(32 * 2**k for k in range(9))
"""Samples at which to fit: 32 (a second of serving) up to 8,192 (some minutes)."""

BUCKETS_NEEDED = 4
"""As many as there are unknowns."""

BUCKET_WEIGHT = 1.0 / 32.0
"""Memory of a bucket: a stray slow step fades."""

OUTLIER = 4.0
"""A step this many times its bucket's mean is a pause of the process, not a sample."""

_TERMS = 4


class _Bucket:
    """Means of (1, B, KV, prompt) and of the step time."""

    __slots__ = ("count", "step_ms", "terms")

    def __init__(self) -> None:
        self.count = 0
        self.terms = [1.0, 0.0, 0.0, 0.0]
        self.step_ms = 0.0


class Fit(NamedTuple):
    """A model and how well it describes the buckets."""

    model: LatencyModel
    residual: float
    """Root mean square of the relative error."""


class SelfCalibration:
    """Gathers steps; :meth:`observe` returns a fit when one is due and possible."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[int, int, int], _Bucket] = {}
        self.samples = 0

    def observe(
        self, step_ms: float, batch: int, kv_tokens: int, prefill_tokens: int
    ) -> Fit | None:
        """Take one step."""
        key = (batch.bit_length(), kv_tokens.bit_length(), prefill_tokens.bit_length())
        bucket = self._buckets.setdefault(key, _Bucket())
        if bucket.count >= 4 and step_ms > OUTLIER * bucket.step_ms:
            return None
        bucket.count += 1
        weight = max(BUCKET_WEIGHT, 1.0 / bucket.count)
        for place, value in enumerate((1.0, float(batch), float(kv_tokens), float(prefill_tokens))):
            bucket.terms[place] += weight * (value - bucket.terms[place])
        bucket.step_ms += weight * (step_ms - bucket.step_ms)
        self.samples += 1
        return self._fit() if self.samples in FIT_AT else None

    def _fit(self) -> Fit | None:
        buckets = [self._buckets[key] for key in sorted(self._buckets)]
        if len(buckets) < BUCKETS_NEEDED:
            return None
        # Relative errors: each equation is divided by its step time.
        rows = [[term / b.step_ms for term in b.terms] for b in buckets]
        scale = [max(abs(row[place]) for row in rows) or 1.0 for place in range(_TERMS)]
        rows = [[row[place] / scale[place] for place in range(_TERMS)] for row in rows]
        best: tuple[float, list[float]] | None = None
        for size in range(_TERMS):
            for others in combinations(range(1, _TERMS), size):
                solved = _solve(rows, (0, *others))
                if solved is None or solved[0] <= 0 or min(solved) < 0:
                    continue
                error = math.sqrt(
                    sum(
                        (1.0 - sum(x * y for x, y in zip(row, solved, strict=True))) ** 2
                        for row in rows
                    )
                    / len(rows)
                )
                if best is None or error < best[0]:
                    best = (error, solved)
        if best is None:
            return None
        c, a, kappa, p = (value / scale[place] for place, value in enumerate(best[1]))
        model = LatencyModel(
            l_min_ms=c,
            b0=0.0,
            alpha_ms=0.0,
            a_ms=a,
            kappa_ms_per_token=kappa,
            prefill_ms_per_token=p,
        )
        return Fit(model, best[0])


def _solve(rows: Sequence[Sequence[float]], used: tuple[int, ...]) -> list[float] | None:
    """Least squares of 1 on the ``used`` columns; zeros elsewhere, None where singular."""
    size = len(used)
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in used] + [sum(row[i] for row in rows)]
        for i in used
    ]
    for step in range(size):
        pivot = max(range(step, size), key=lambda i: abs(matrix[i][step]))
        if abs(matrix[pivot][step]) < 1e-9:
            return None
        matrix[step], matrix[pivot] = matrix[pivot], matrix[step]
        for i in range(step + 1, size):
            factor = matrix[i][step] / matrix[step][step]
            for j in range(step, size + 1):
                matrix[i][j] -= factor * matrix[step][j]
    solution = [0.0] * _TERMS
    for step in reversed(range(size)):
        rest = sum(matrix[step][j] * solution[used[j]] for j in range(step + 1, size))
        solution[used[step]] = (matrix[step][size] - rest) / matrix[step][step]
    return solution
