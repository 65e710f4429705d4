"""What serving teaches about the step model, and when it is believed.

Without a profile the model starts from a guess that is cautious against the objective, and takes
over every fit of :mod:`twp_sglang.scheduling.self_calibration`. A profile that is given stands as
long as one scale within the gains' reach makes it right: another model takes its place only where
it leaves much less error, or says the opposite of what the profile says about the knee.

Nobody goes far beyond what was seen, not by a profile either until it has stood for some steps: it
may be another machine's. The way from eight rows to hundreds takes some sixteen steps.

That opposite can only show beyond the knee. So where a model says that more than B0 rows lower the
tokens per second, a few more are tried until there are samples of them.
"""

from __future__ import annotations

import math
from copy import copy

from controllers.models.latency import LatencyModel
from twp_sglang.scheduling.machine_change import MachineChange
from twp_sglang.scheduling.sample import StepSample
from twp_sglang.scheduling.self_calibration import (
    FIT_AT,
    Fit,
    Scale,
    SelfCalibration,
    scaled,
)

CHUNK_START_TOKENS = 512
"""Chunk that the first guess takes to cost half the objective: the usual token budget of
chunked prefill on accelerators."""

ROWS_START = 32
"""Rows that the first guess takes to cost a quarter of the objective."""

KV_START_TOKENS = 50_000
"""KV tokens held that the first guess takes to cost a quarter of the objective."""

EXTRAPOLATE = 2
"""How far beyond the largest chunk seen a model is believed, if the steps seen allow it: where a
step of n prompt tokens took t, one of 2 n is expected to take 2 t, whatever a fit to the first few
steps says."""

ROWS_EXTRAPOLATE = 1.25
"""How far beyond the largest batch seen to keep the objective. A chunk twice as large makes a step
at most twice as long; beyond a knee nobody knows of, rows may do worse. From 8 rows to 256 are
sixteen such strides, one a step."""

SCALES = (0.6, 1.7)
"""Where the scale that would make a given model right lies outside, the gains, which end at a half
and at twice, cannot follow any more."""

CONTRADICTED = 0.06
"""Relative error at its best scale, beyond what the scatter of single steps leaves, from which a
given model is in doubt: what a twentieth of each step, wrong at random, comes to."""

BETTER = 0.7
"""Part of the given model's error that another may leave: a fit has more to turn, and takes a
part away from scatter alone."""

TRUSTED_AFTER = 64
"""Steps for which a given model must stand until it is believed beyond what was seen; four fits are
due by then."""

PROBE_STEPS = 16
"""Samples beyond a knee until it counts as seen: their mean shows the slope to a seventh at
10 % scatter."""


class ModelLearning:
    """Gathers steps, and says which fit to take over and how far to go without one.

    Args:
        start: the given model, or the guess to start from.
        given: whether it was given.
        free_tokens: prompt tokens per step that cost nothing.
        jump_rows: the only batch at which a jump is looked for; None looks everywhere.
    """

    def __init__(
        self, start: LatencyModel, given: bool, free_tokens: float, jump_rows: int | None
    ) -> None:
        self.given = start if given else None
        self.calibration = SelfCalibration(start, jump_rows, free_tokens if given else 0.0)
        self._rows_seen = 0
        self._stands = given
        """Whether a given model is in force."""
        self._believed = given
        """Whether the model in force is no guess."""
        self._forget()

    def _forget(self) -> None:
        """Of the machine that was, nothing holds any more."""
        self._change, self._change_of_sound = MachineChange(), MachineChange()
        self._sound: tuple[LatencyModel, float] | None = None
        """Model and free prompt tokens in force before those that describe no one machine."""
        self._prefill_seen = 0
        self._rate_seen_at = 0
        self._prompt_rate = 0.0
        """Most prompt tokens per ms, of steps with large chunks."""
        self._knee = 0.0
        self._beyond_knee = 0
        """Steps seen of more than ``_knee`` rows."""

    def copied(self) -> ModelLearning:
        """One that can be given another guess without this one hearing of it."""
        other = copy(self)
        other.calibration = copy(self.calibration)
        other._change, other._change_of_sound = copy(self._change), copy(self._change_of_sound)
        return other

    def observe(
        self,
        sample: StepSample,
        step_ms: float,
        predicted_ms: float,
        goal_ms: float,
        model: LatencyModel,
        free_tokens: float,
        ceiling_rows: int | None,
    ) -> Fit | None:
        """Take one step.

        Args:
            sample: what the step carried.
            step_ms: how long it took.
            predicted_ms: what the model in force foretold, gains included.
            goal_ms: objective for a step.
            model: in force.
            free_tokens: prompt tokens per step that cost nothing, as in force.
            ceiling_rows: batch beyond which steps take longer than ``model`` says, if known.

        Returns:
            The fit to take over, if there is one.
        """
        if step_ms <= goal_ms:
            self._rows_seen = max(self._rows_seen, sample.batch)
        self._prefill_seen = max(self._prefill_seen, sample.prefill_tokens)
        self._learn_rate(sample.prefill_tokens, step_ms)
        most_rows = math.inf if ceiling_rows is None else ceiling_rows
        fit = None
        if self._believed and sample.batch <= most_rows:
            fit = self._of_changed_machine(sample, step_ms, model, free_tokens)
        if fit is None:
            fit = self._fit(sample, step_ms, predicted_ms, model, free_tokens, most_rows)
        if fit is None:
            return None
        if fit.sound:
            self._sound = None
        elif self._sound is None and self._believed:
            self._sound, self._change_of_sound = (model, free_tokens), MachineChange()
        self._believed = True
        return fit

    def _of_changed_machine(
        self, sample: StepSample, step_ms: float, model: LatencyModel, free_tokens: float
    ) -> Fit | None:
        """A model at another scale, where that alone explains the last steps; what was seen before
        them is forgotten."""
        candidates = [(self._change, model, free_tokens)]
        if self._sound is not None:
            # A fit to the steps of two machines is often near enough to both to hide the change.
            candidates.append((self._change_of_sound, *self._sound))
        for change, before, free in candidates:
            prompt = max(0, sample.prefill_tokens - round(free))
            factor = change.observe(step_ms, before.step_ms(sample.batch, sample.kv_tokens, prompt))
            if factor is not None:
                self._forget()
                self._stands = False
                self.calibration.forget()
                return Fit(scaled(before, factor), 0.0, free, None, 0.0)
        return None

    def _fit(
        self,
        sample: StepSample,
        step_ms: float,
        predicted_ms: float,
        model: LatencyModel,
        free_tokens: float,
        most_rows: float,
    ) -> Fit | None:
        """What the steps so far say, where it is due and is to be taken over."""
        fit = self.calibration.observe(
            step_ms, sample.batch, sample.kv_tokens, sample.prefill_tokens, predicted_ms
        )
        if self._count_beyond(model.b0, sample.batch) == PROBE_STEPS:
            fit = self.calibration.fit()
        if not self._stands:
            return fit
        due = self.calibration.samples in FIT_AT
        if fit is None and not due:
            return None
        scale = self.calibration.scale_of(model, free_tokens, most_rows)
        if fit is None:
            # The engine does too much the same to be fitted, but its scale shows.
            fit = _scaled(model, scale, free_tokens)
        if not self._contradicts(fit, model, scale):
            return None
        self._stands = False
        return fit

    def _count_beyond(self, knee: float, batch: int) -> int:
        """Steps seen beyond ``knee`` now that one of ``batch`` rows was; 0 if it was not beyond."""
        if knee != self._knee:
            self._knee = knee
            self._beyond_knee = self.calibration.visits_beyond(knee)
        elif batch > knee:
            self._beyond_knee += 1
        return self._beyond_knee if batch > knee > 0 else 0

    def _contradicts(self, fit: Fit, model: LatencyModel, scale: Scale) -> bool:
        if scale.least > SCALES[1] or scale.mean < SCALES[0]:
            return True
        if fit.residual > scale.error:
            return False
        opposite = _caps_rows(fit.model) != _caps_rows(model)
        if self._beyond_knee >= PROBE_STEPS and opposite:
            return True
        beyond_scatter = scale.error**2 - scale.scatter**2
        return beyond_scatter > CONTRADICTED**2 and fit.residual < BETTER * scale.error

    @property
    def _trusted(self) -> bool:
        return self._stands and self.calibration.samples >= TRUSTED_AFTER

    def believes_rows(self, rows: int, least: int) -> bool:
        """Whether so many rows are not too far beyond what was seen, or beyond ``least``."""
        return self._trusted or rows <= math.ceil(ROWS_EXTRAPOLATE * max(least, self._rows_seen))

    def believed_chunk(self, chunk_tokens: int, allowed_ms: float) -> int:
        """``chunk_tokens`` or less: not too far beyond what was seen, and no more than kept a
        step within ``allowed_ms`` at the best rate seen."""
        if self._trusted:
            return chunk_tokens
        if not self._rate_seen_at:
            return min(chunk_tokens, EXTRAPOLATE * CHUNK_START_TOKENS)
        within = max(CHUNK_START_TOKENS, self._prompt_rate * allowed_ms)
        return int(min(chunk_tokens, EXTRAPOLATE * self._prefill_seen, within))

    def _learn_rate(self, prefill_tokens: int, step_ms: float) -> None:
        """A chunk twice as large as those before says better what a larger one will take; after
        a pause in such a step others raise the rate again."""
        if prefill_tokens < CHUNK_START_TOKENS // 2:
            return  # it takes as long as none; half, because steps carry less than was granted
        rate = prefill_tokens / step_ms
        if prefill_tokens >= EXTRAPOLATE * self._rate_seen_at:
            self._rate_seen_at, self._prompt_rate = prefill_tokens, rate
        else:
            self._prompt_rate = max(self._prompt_rate, rate)

    def tries_rows(self, rows: int, model: LatencyModel) -> bool:
        """Whether so many rows are to be tried although ``model`` says they are beyond its knee."""
        if model.b0 == self._knee and self._beyond_knee >= PROBE_STEPS:
            return False
        return rows <= max(model.b0 + 1, math.ceil(ROWS_EXTRAPOLATE * model.b0))


def first_guess(slo_ms: float) -> LatencyModel:
    """A machine on which a small batch costs a quarter of the objective, ROWS_START rows
    and KV_START_TOKENS another quarter each, and CHUNK_START_TOKENS prompt tokens half of it."""
    return LatencyModel(
        l_min_ms=slo_ms / 4,
        b0=0.0,
        alpha_ms=0.0,
        a_ms=slo_ms / 4 / ROWS_START,
        kappa_ms_per_token=slo_ms / 4 / KV_START_TOKENS,
        prefill_ms_per_token=slo_ms / 2 / CHUNK_START_TOKENS,
    )


def _scaled(model: LatencyModel, scale: Scale, free_tokens: float) -> Fit:
    """``model`` at its best scale."""
    factor = scale.least if scale.least > 1.0 else scale.mean
    return Fit(scaled(model, factor), scale.error, free_tokens, None, 0.0)


def _caps_rows(model: LatencyModel) -> bool:
    """Whether more than B0 rows lower the tokens per second, little KV held."""
    return model.alpha_ms * model.b0 > model.l_min_ms
