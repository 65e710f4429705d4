"""A step model from nothing: regression on what was seen, while serving.

    l = c + a B + kappa KV + p (prompt - free)+  [+ alpha (B - B0)+  or  + jump where B > B0]

with all terms at least 0. Steps are gathered in buckets (a quarter of an octave wide in B and
in prompt tokens, an octave in KV), and every bucket counts once however often it was visited.
That is what keeps the fit sound in closed loop: a controller that holds the step constant
visits a few buckets over and over, and an ordinary least-squares fit would forget all others.
For the same reason a fit is made at fixed counts of samples, and when a bucket that is new turns
out other than predicted, and then stands; drift in buckets known is for the two gains
(controllers.laws.two_gain). A saturated engine cannot redefine its baseline this way.

What was never excited is held by the first guess, which counts as much as a hundredth of a
bucket per term: a fit may be made early, and it errs on the side of the guess. ``free`` and the
knee are searched over the edges of the buckets, and a knee other than the guess's is taken only
where it explains much of what the rest leaves.

Pure Python arithmetic in a fixed order: tensor-parallel ranks get the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from controllers.models.latency import MIN_STEP_MS, LatencyModel
from twp_sglang.scheduling.least_squares import non_negative
from twp_sglang.scheduling.step_buckets import (
    HINGE,
    JUMP,
    Bucket,
    Equations,
    Key,
    below,
    key_of,
    scatter_most,
)

SURPRISE_AT = (8, 32)
"""Visits of a bucket at which its surprise is looked at: where single steps scatter by 10 %, the
mean of 8 is good to 3.5 %."""

SURPRISE = 0.1
"""Mean relative error of the prediction in a bucket that calls for a fit: three times that."""

FIT_AT = tuple(8 * 2**k for k in range(15))
"""Samples at which to fit: 8 (before a burst has its second step of most prompts) up to
131,072 (an hour)."""

BUCKETS_NEEDED = 3
"""Fewer show no direction at all."""

BUCKETS_MOST = 256
"""A fit runs between two steps: with so many it takes 10 to 20 ms in pure Python."""

OUTLIER = 4.0
"""A step this many times its bucket's mean is a pause of the process, no sample. Nor is the first
of its bucket at so many times the prediction, unless the step before was alike."""

SURE_VISITS = 3
"""Visits of a bucket from which it may contradict a model: one that was seen once may hold a step
that was late, or the one after it, which is measured short."""

GUESS_WEIGHT = 0.01
"""Of each term of the first guess, against 1 for a bucket."""

GUESS_TOO_FAST = 2.0
"""Scale that makes the guess right from which it holds at that scale and not at its own: held in
parts of itself, a term of fifty times the guess would cost as much as 24 buckets."""

NEWEST_LEAST = 16
"""Buckets visited last that are looked at by themselves; then twice as many, and so on. Fewer are
described well by anything with five terms."""

CHANGED = 0.15
"""Relative error of the whole fit in the newest buckets from which the machine may have changed:
three times what scatter of 20 % leaves in buckets of 16 visits."""

CHANGED_BETTER = 0.5
"""Part of that error which a fit to them alone must leave at most."""

FREE = (0, 64, 128, 192, 256, 384, 512, 768)
"""Prompt tokens per step that may cost nothing: up to what an H200 needs to be bound by
arithmetic and not by its memory."""

SOUND = 0.1
"""Residual of a fit beyond which, if scatter does not explain it either, it is of no one machine:
half of what mixing steps with others twice as long leaves."""

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
    sound: bool = True
    """Whether it describes them no worse than their scatter lets expect: else they may be of two
    machines."""


class Scale(NamedTuple):
    """The factor that makes a model right, and what it leaves."""

    mean: float
    least: float
    """The same for the shortest steps, in which no pause is."""
    error: float
    """Root mean square of the relative error at the best scale, in buckets seen often enough."""
    scatter: float
    """The most of it that the scatter of single steps may leave."""


_Found = tuple[float, list[float]]
"""Mean squared relative error, and the terms."""


class SelfCalibration:
    """Gathers steps; :meth:`observe` returns a fit when one is due and possible.

    Args:
        guess: the model that holds what nothing excites; a term of 0 holds nothing.
        jump_rows: the only batch at which a jump is looked for; None looks everywhere.
        free_tokens: prompt tokens per step that cost nothing, as the guess has it.
    """

    def __init__(
        self, guess: LatencyModel, jump_rows: int | None = None, free_tokens: float = 0.0
    ) -> None:
        self.guess = guess
        self.jump_rows = jump_rows
        self._free = free_tokens
        self.forget()

    def forget(self) -> None:
        """All that was seen."""
        self._buckets: dict[Key, Bucket] = {}
        self._doubted: set[Key] = set()
        self._off_before = False
        self.samples = 0

    def observe(
        self,
        step_ms: float,
        batch: int,
        kv_tokens: int,
        prefill_tokens: int,
        predicted_ms: float = 0.0,
    ) -> Fit | None:
        """Take one step, and what the model in force, if any, foretold for it."""
        key = key_of(batch, kv_tokens, prefill_tokens)
        bucket = self._buckets.get(key)
        off = step_ms > OUTLIER * predicted_ms > 0.0
        if bucket is None:
            if off and not self._off_before and key not in self._doubted:
                # It would stay the only word on such steps where what it says keeps them from
                # being tried again.
                self._doubted.add(key)
                self._off_before = True
                return None
            bucket = self._buckets[key] = Bucket()
        elif bucket.count >= 4 and step_ms > OUTLIER * bucket.step_ms:
            return None
        self._off_before = off
        bucket.take(step_ms, batch, kv_tokens, prefill_tokens)
        self.samples += 1
        bucket.seen = self.samples
        if predicted_ms > 0.0:
            bucket.surprise += step_ms / predicted_ms - 1.0
        surprised = bucket.count in SURPRISE_AT and abs(bucket.surprise) > SURPRISE * bucket.count
        return self.fit() if surprised or self.samples in FIT_AT else None

    def visits_beyond(self, rows: float) -> int:
        """Steps seen of more than ``rows`` rows."""
        return sum(bucket.count for bucket in self._buckets.values() if bucket.batch > rows)

    def scale_of(
        self, model: LatencyModel, free_tokens: float, most_rows: float = math.inf
    ) -> Scale:
        """How far ``model`` is from what was seen in batches of up to ``most_rows``."""
        buckets = [bucket for bucket in self._buckets.values() if bucket.batch <= most_rows]
        pairs = [(bucket.model_ms(model, free_tokens), bucket) for bucket in buckets]
        mean, _ = _best_scale([ms / bucket.step_ms for ms, bucket in pairs])
        least, _ = _best_scale([ms / bucket.least_ms for ms, bucket in pairs])
        sure = [(ms, bucket) for ms, bucket in pairs if bucket.count >= SURE_VISITS]
        _, error = _best_scale([ms / bucket.step_ms for ms, bucket in sure])
        return Scale(mean, least, error, scatter_most([bucket for _, bucket in sure]))

    def fit(self) -> Fit | None:
        """What was gathered says; None where it shows no direction at all.

        Where that is far off in the buckets visited last, which are described much better alone,
        the machine has changed: the others are forgotten."""
        if len(self._buckets) < BUCKETS_NEEDED:
            return None
        # Those visited most, in the order of their keys: alike on every rank.
        most_visited = sorted(self._buckets, key=lambda key: (-self._buckets[key].count, key))
        fit = self._fit_of(most_visited[:BUCKETS_MOST])
        newest, size = sorted(self._buckets, key=lambda key: -self._buckets[key].seen), NEWEST_LEAST
        while fit is not None and size < len(newest):
            error = self._error(fit, newest[:size])
            other = self._fit_of(newest[:size]) if error > CHANGED else None
            if other is not None and other.residual < CHANGED_BETTER * error:
                self._buckets = {key: self._buckets[key] for key in newest[:size]}
                return other
            size *= 2
        if fit is None or fit.residual <= SOUND:
            return fit
        return fit._replace(sound=fit.residual <= scatter_most(list(self._buckets.values())))

    def _error(self, fit: Fit, keys: Sequence[Key]) -> float:
        """Root mean square of the relative error of ``fit`` in these buckets."""
        total = 0.0
        for bucket in map(self._buckets.__getitem__, keys):
            beyond = fit.jump_rows is not None and bucket.batch > fit.jump_rows
            step_ms = bucket.model_ms(fit.model, fit.free_tokens) + beyond * fit.jump_ms
            total += (step_ms / bucket.step_ms - 1.0) ** 2
        return math.sqrt(total / len(keys))

    def _fit_of(self, keys: Sequence[Key]) -> Fit | None:
        buckets = [self._buckets[key] for key in sorted(keys)]
        hold = self._held(buckets)
        guessed = self._guessed_knee()
        best: _Found | None = None
        free = 0.0
        most = max(bucket.prompt for bucket in buckets)
        for candidate in sorted({*FREE, self._free}):
            if candidate and candidate >= most:
                break
            equations = Equations(buckets, candidate)
            found = self._solve(equations, hold, *(guessed or (None, 0)))
            if found is not None and (best is None or found[0] < best[0]):
                best, free, chosen = found, float(candidate), equations
        if best is None:
            return None
        found, knee = self._with_knee(chosen, hold, best, guessed)
        return _as_fit(found, free, knee)

    def _guessed_knee(self) -> tuple[int, int] | None:
        if self.guess.alpha_ms > 0.0 and self.guess.b0 >= 1:
            return HINGE, round(self.guess.b0)
        return None

    def _with_knee(
        self,
        equations: Equations,
        hold: LatencyModel,
        best: _Found,
        knee: tuple[int, int] | None,
    ) -> tuple[_Found, tuple[int, int] | None]:
        """The fit with the knee that explains most, if any does explain much more than ``knee``,
        with which ``best`` was found."""
        # A jump between two buckets may lie anywhere there: the engine stays below the place
        # that is taken, so a smaller one would never be found too small.
        batches = [bucket.batch for bucket in equations.buckets]
        edges = sorted({below(batch) for batch in batches if batch >= 1})[1:]
        bound = (1.0 - KNEE_MUST_EXPLAIN) * best[0]
        for kind in (JUMP, HINGE):
            places = edges
            if kind == JUMP and self.jump_rows is not None:
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
                    found = self._solve(equations, hold, kind, places[index])
                    if found is not None and found[0] < bound:
                        best, bound, knee, nearest = found, found[0], (kind, places[index]), index
        return best, knee

    def _held(self, buckets: Sequence[Bucket]) -> LatencyModel:
        """What holds: the guess, brought to the size of what was seen where it is far too fast."""
        ratios = [bucket.model_ms(self.guess, self._free) / bucket.step_ms for bucket in buckets]
        scale, _ = _best_scale(ratios)
        return scaled(self.guess, scale) if scale > GUESS_TOO_FAST else self.guess

    def _solve(
        self, equations: Equations, guess: LatencyModel, kind: int | None, rows: int
    ) -> _Found | None:
        """(mean squared relative error, terms) with one knee or none."""
        moments = equations.moments(kind, rows)
        moments.hold(0, guess.l_min_ms, GUESS_WEIGHT)
        moments.hold(1, guess.a_ms, GUESS_WEIGHT)
        moments.hold(2, guess.kappa_ms_per_token, GUESS_WEIGHT)
        moments.hold(3, guess.prefill_ms_per_token, GUESS_WEIGHT)
        if kind is not None and (kind, rows) == self._guessed_knee():
            moments.hold(4, guess.alpha_ms, GUESS_WEIGHT)
        solved = non_negative(moments)
        if solved is None or solved[0] < MIN_STEP_MS:
            return None
        return moments.squared_error(solved) / len(equations.buckets), solved


def scaled(model: LatencyModel, factor: float) -> LatencyModel:
    """``model`` of a machine whose steps take ``factor`` times as long."""
    terms = {name: factor * value for name, value in model.model_dump().items() if name != "b0"}
    terms["l_min_ms"] = max(MIN_STEP_MS, terms["l_min_ms"])
    return model.model_copy(update=terms)


def _best_scale(ratios: Sequence[float]) -> tuple[float, float]:
    """(factor on ``ratios`` that brings them nearest to 1, root mean square of what is left)."""
    square = sum(ratio * ratio for ratio in ratios)
    if square <= 0.0:
        return 1.0, 0.0
    scale = sum(ratios) / square
    return scale, math.sqrt(sum((scale * ratio - 1.0) ** 2 for ratio in ratios) / len(ratios))


def _as_fit(found: _Found, free: float, knee: tuple[int, int] | None) -> Fit:
    error, terms = found
    c, a, kappa, p = terms[:4]
    kind, rows = knee or (None, 0)
    hinge = kind == HINGE and terms[4] > 0
    jump = kind == JUMP and terms[4] > 0
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
