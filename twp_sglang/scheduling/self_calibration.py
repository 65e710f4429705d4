"""A step model from nothing: regression on what was seen, while serving.

    l = c + a B + kappa KV + p (prompt - free)+  [+ alpha (B - B0)+  or  + jump where B > B0]

with all terms at least 0. Steps are gathered in buckets (a quarter of an octave wide in B and
in prompt tokens, an octave in KV), and every bucket counts once however often it was visited.
That is what keeps the fit sound in closed loop: a controller that holds the step constant
visits a few buckets over and over, and an ordinary least-squares fit would forget all others.
For the same reason the fit is made at fixed counts of samples and then stands; drift after
that is for the two gains (controllers.laws.two_gain). A saturated engine cannot redefine its
baseline this way.

What was never excited is held by the first guess, which counts as much as a hundredth of a
bucket per term: a fit may be made early, and it errs on the side of the guess. ``free`` and the
knee are searched over the edges of the buckets, and a knee is taken only where it explains
much of what the rest leaves.

Pure Python arithmetic in a fixed order: tensor-parallel ranks get the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from controllers.models.latency import LatencyModel
from twp_sglang.scheduling.least_squares import Moments, non_negative

FIT_AT = tuple(8 * 2**k for k in range(15))
"""Samples at which to fit: 8 (before a burst has its second step of most prompts) up to
131,072 (an hour)."""

BUCKETS_NEEDED = 3
"""Fewer show no direction at all."""

BUCKET_WEIGHT = 1.0 / 32.0
"""Memory of a bucket: a stray slow step fades."""

OUTLIER = 4.0
"""A step this many times its bucket's mean is a pause of the process, not a sample."""

GUESS_WEIGHT = 0.01
"""Of each term of the first guess, against 1 for a bucket."""

FREE = (0, 64, 128, 192, 256, 384, 512, 768)
"""Prompt tokens per step that may cost nothing: up to what an H200 needs to be bound by
arithmetic and not by its memory."""

KNEE_MUST_EXPLAIN = 0.3
"""Part of the mean squared error that a knee must take away to be believed; noise alone gives
some hundredths to the best of twenty."""

KNEES_MOST = 10
"""Candidate knees of a kind per fit: it runs between two steps."""


class Fit(NamedTuple):
    """A model and how well it describes the buckets."""

    model: LatencyModel
    residual: float
    """Root mean square of the relative error."""
    free_tokens: float
    """Prompt tokens per step that cost nothing."""
    jump_rows: int | None
    """Batch beyond which every step is ``jump_ms`` longer; None where no jump shows."""
    jump_ms: float


_Found = tuple[float, list[float]]
"""Mean squared relative error, and the terms."""


class _Bucket:
    """Means of B, KV, prompt and of the step time."""

    __slots__ = ("batch", "count", "kv", "prompt", "step_ms")

    def __init__(self) -> None:
        self.count = 0
        self.batch = self.kv = self.prompt = self.step_ms = 0.0


class SelfCalibration:
    """Gathers steps; :meth:`observe` returns a fit when one is due and possible.

    Args:
        guess: the model that holds what nothing excites; a term of 0 holds nothing.
        jump_rows: the only batch at which a jump is looked for; None looks everywhere.
    """

    def __init__(self, guess: LatencyModel, jump_rows: int | None = None) -> None:
        self.guess = guess
        self.jump_rows = jump_rows
        self._buckets: dict[tuple[int, int, int], _Bucket] = {}
        self.samples = 0

    def observe(
        self, step_ms: float, batch: int, kv_tokens: int, prefill_tokens: int
    ) -> Fit | None:
        """Take one step."""
        key = (_place(batch), kv_tokens.bit_length(), _place(prefill_tokens))
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket()
        elif bucket.count >= 4 and step_ms > OUTLIER * bucket.step_ms:
            return None
        bucket.count += 1
        weight = max(BUCKET_WEIGHT, 1.0 / bucket.count)
        bucket.batch += weight * (batch - bucket.batch)
        bucket.kv += weight * (kv_tokens - bucket.kv)
        bucket.prompt += weight * (prefill_tokens - bucket.prompt)
        bucket.step_ms += weight * (step_ms - bucket.step_ms)
        self.samples += 1
        return self._fit() if self.samples in FIT_AT else None

    def _fit(self) -> Fit | None:
        buckets = [self._buckets[key] for key in sorted(self._buckets)]
        if len(buckets) < BUCKETS_NEEDED:
            return None
        best: _Found | None = None
        free = 0.0
        most = max(bucket.prompt for bucket in buckets)
        for candidate in FREE:
            if candidate and candidate >= most:
                break
            found = self._solve(buckets, candidate, None, 0)
            if found is not None and (best is None or found[0] < best[0]):
                best, free = found, float(candidate)
        if best is None:
            return None
        return _as_fit(*self._with_knee(buckets, best, free))

    def _with_knee(
        self, buckets: Sequence[_Bucket], best: _Found, free: float
    ) -> tuple[_Found, float, tuple[int, int] | None]:
        """The fit with the knee that explains most, if any does explain much."""
        edges = sorted({_edge(bucket.batch) for bucket in buckets if bucket.batch >= 1})[:-1]
        bound = (1.0 - KNEE_MUST_EXPLAIN) * best[0]
        knee: tuple[int, int] | None = None
        for kind in (_JUMP, _HINGE):
            places = edges
            if kind == _JUMP and self.jump_rows is not None:
                places = [self.jump_rows]
            # Coarsely over all edges, then those between the neighbours of the best.
            step = -(-len(places) // KNEES_MOST) or 1
            nearest: int | None = None
            for wave in (range(0, len(places), step), None):
                if wave is None:
                    if nearest is None or step == 1:
                        break
                    wave = range(max(0, nearest - step + 1), min(len(places), nearest + step))
                for index in wave:
                    found = self._solve(buckets, free, kind, places[index])
                    if found is not None and found[0] < bound:
                        best, bound, knee, nearest = found, found[0], (kind, places[index]), index
        return best, free, knee

    def _solve(
        self, buckets: Sequence[_Bucket], free: float, kind: int | None, rows: int
    ) -> _Found | None:
        """(mean squared relative error, terms) with one knee or none."""
        moments = Moments(_TERMS if kind is not None else _TERMS - 1)
        for bucket in buckets:
            scale = 1.0 / bucket.step_ms
            terms = [
                scale,
                bucket.batch * scale,
                bucket.kv * scale,
                max(0.0, bucket.prompt - free) * scale,
            ]
            if kind == _JUMP:
                terms.append(scale if bucket.batch > rows else 0.0)
            elif kind == _HINGE:
                terms.append(max(0.0, bucket.batch - rows) * scale)
            moments.add(terms, 1.0)
        guess = self.guess
        moments.hold(0, guess.l_min_ms, GUESS_WEIGHT)
        moments.hold(1, guess.a_ms, GUESS_WEIGHT)
        moments.hold(2, guess.kappa_ms_per_token, GUESS_WEIGHT)
        moments.hold(3, guess.prefill_ms_per_token, GUESS_WEIGHT)
        solved = non_negative(moments)
        if solved is None or solved[0] <= 0.0:
            return None
        return moments.squared_error(solved) / len(buckets), solved


_TERMS = 5
_JUMP, _HINGE = 0, 1


def _as_fit(found: _Found, free: float, knee: tuple[int, int] | None) -> Fit:
    error, terms = found
    c, a, kappa, p = terms[:4]
    kind, rows = knee or (None, 0)
    hinge = kind == _HINGE and terms[4] > 0
    jump = kind == _JUMP and terms[4] > 0
    model = LatencyModel(
        l_min_ms=c,
        b0=float(rows) if hinge else 0.0,
        alpha_ms=terms[4] if hinge else 0.0,
        a_ms=a,
        kappa_ms_per_token=kappa,
        prefill_ms_per_token=p,
    )
    return Fit(
        model,
        math.sqrt(max(0.0, error)),
        free,
        rows if jump else None,
        terms[4] if jump else 0.0,
    )


def _place(count: int) -> int:
    """Bucket of a count: a quarter of an octave, upper edges 1, 2, ... 8, 10, 12, 14, 16, 20,
    24, 28, 32, ...: SGLang's graph sizes are among them."""
    if count <= 4:
        return count
    below = count - 1
    shift = below.bit_length() - 3
    return 4 * shift + (below >> shift) + 1


def _edge(batch: float) -> int:
    """Upper edge of the bucket that holds ``batch``."""
    count = math.ceil(batch)
    if count <= 4:
        return count
    shift = (count - 1).bit_length() - 3
    return (((count - 1) >> shift) + 1) << shift
