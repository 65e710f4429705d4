"""A step model from a part of a step trace, and how well it foretells another part."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from controllers.identification import identify
from controllers.laws.base import FrozenModel
from controllers.trace_reader import FloatArray, StepTrace
from twp_sglang.simulator.step_models import Affine, AffineStep
from twp_sglang.simulator.step_replay import fit_affine

FEWEST_STEPS = 8
"""Fewer prefill-only steps than that give no line of their own."""

_USUAL_SCATTER = 0.05
"""Relative errors beyond this count by their size, not by its square."""


class Calibrated(NamedTuple):
    """Step times by kind of step.

    A step of prompts alone and a step that decodes are different programs (on a CPU they
    differ in the constant as well as in the slope), so each has its own line.
    """

    decode: AffineStep
    """Steps with decoding rows, prompts in them or not."""
    prefill: AffineStep | None
    """Steps of prompts alone; None where there were too few."""
    source: str
    """How the first was found."""

    def model(self) -> ByKind:
        """Ready to be asked."""
        return ByKind(self)


class ByKind:
    """A :class:`~twp_sglang.simulator.step_models.StepModel` of two lines."""

    leaps = True

    def __init__(self, calibrated: Calibrated) -> None:
        self._decode = Affine(calibrated.decode)
        self._prefill = None if calibrated.prefill is None else Affine(calibrated.prefill)

    def step_ms(self, rows: int, kv_tokens: int, prefill_tokens: int) -> float:
        """See :class:`~twp_sglang.simulator.step_models.StepModel`."""
        if rows == 0 and self._prefill is not None:
            return self._prefill.step_ms(0, 0, prefill_tokens)
        return self._decode.step_ms(rows, kv_tokens, prefill_tokens)

    def decode_steps_ms(self, rows: int, kv_tokens: int, steps: int) -> FloatArray:
        """See :class:`~twp_sglang.simulator.step_models.StepModel`."""
        return self._decode.decode_steps_ms(rows, kv_tokens, steps)


class StepErrors(FrozenModel):
    """Predicted against measured step times, relative to the measured ones."""

    kind: str
    steps: int
    mape_percent: float | None
    median_ape_percent: float | None
    bias_percent: float | None
    """Sum of the predicted times over the sum of the measured ones, less 1: what a run's
    length is off by."""


def part(trace: StepTrace, mask: npt.NDArray[np.bool_]) -> StepTrace:
    """The steps of ``trace`` where ``mask`` holds."""
    place = np.cumsum(mask) - 1
    kept = mask[trace.finished_row]
    return replace(
        trace,
        kind=trace.kind[mask],
        columns={name: column[mask] for name, column in trace.columns.items()},
        finished=trace.finished[kept],
        finished_row=place[trace.finished_row[kept]],
    )


def calibrate(trace: StepTrace) -> Calibrated:
    """Fit the steps of ``trace``.

    Raises:
        ValueError: too few timed steps.
    """
    fit = identify(trace).fit
    if fit is not None:
        # Also where no knee was seen: a loop may not be tuned on such a fit, but steps like
        # those that it was made from can be foretold.
        c, a, alpha, kappa, p = (max(float(value), 0.0) for value in fit.coefficients)
        decode = AffineStep(
            l_min_ms=max(c, 1e-6),
            a_ms=a,
            b0=0.0 if np.isnan(fit.b0) else float(fit.b0),
            alpha_ms=alpha,
            kappa_ms_per_token=kappa,
            prefill_ms_per_token=p,
        )
        source = "controllers.identification"
    else:
        decode = fit_affine(part(trace, trace["batch"] > 0))
        source = "least squares: too few decode steps for the identification"
    alone = timed(trace) & (trace["batch"] == 0) & (trace["prefill_tokens"] > 0)
    if int(alone.sum()) < FEWEST_STEPS:
        return Calibrated(decode, None, source)
    tokens, duration = trace["prefill_tokens"][alone], trace["duration_ms"][alone]
    largest = float(tokens.max())
    # Relative errors, for a long prompt must not drown all the short ones; and robust, for
    # the engine shares its machine.
    matrix = np.stack([np.ones(len(tokens)), tokens / largest], axis=1) / duration[:, None]
    start = float(np.median(duration))
    constant, slope = least_squares(
        lambda terms: matrix @ terms - 1,
        (start, start),
        bounds=(0.0, np.inf),
        loss="soft_l1",
        f_scale=_USUAL_SCATTER,
    ).x
    prefill = AffineStep(
        l_min_ms=max(float(constant), 1e-6), prefill_ms_per_token=float(slope) / largest
    )
    return Calibrated(decode, prefill, source)


def timed(trace: StepTrace) -> npt.NDArray[np.bool_]:
    """Steps whose duration means something."""
    return np.isfinite(trace["duration_ms"]) & (trace["duration_ms"] > 0)


def step_errors(trace: StepTrace, calibrated: Calibrated) -> tuple[StepErrors, ...]:
    """How ``calibrated`` foretells the timed steps of ``trace``, by kind and together."""
    model = calibrated.model()
    use = timed(trace)
    measured = trace["duration_ms"][use]
    columns = (trace[name][use] for name in ("batch", "kv_tokens", "prefill_tokens"))
    predicted = np.array(
        [
            model.step_ms(int(rows), int(kv), int(prompt))
            for rows, kv, prompt in zip(*columns, strict=True)
        ]
    )
    rides, prompts = trace["batch"][use] > 0, trace["prefill_tokens"][use] > 0
    return tuple(
        _errors(kind, measured[mask], predicted[mask])
        for kind, mask in (
            ("all", np.ones(len(measured), dtype=bool)),
            ("decode", rides & ~prompts),
            ("prefill", ~rides),
            ("mixed", rides & prompts),
        )
    )


def _errors(kind: str, measured: FloatArray, predicted: FloatArray) -> StepErrors:
    if not len(measured):
        return StepErrors(
            kind=kind, steps=0, mape_percent=None, median_ape_percent=None, bias_percent=None
        )
    relative = 100 * np.abs(predicted / measured - 1)
    return StepErrors(
        kind=kind,
        steps=len(measured),
        mape_percent=float(relative.mean()),
        median_ape_percent=float(np.median(relative)),
        bias_percent=float(100 * (predicted.sum() / measured.sum() - 1)),
    )
