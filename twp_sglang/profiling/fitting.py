"""The step model of what was measured, and how well it foretells points it has not seen.

    l = c + a B + alpha (B - B0)+ + kappa KV + p (prompt - free)+

by non-negative least squares on relative errors, so that a step of 2 ms counts as much as
one of 200. The knee B0 and the free prompt tokens are searched over what was measured; a
knee is kept only where it lowers the error by more than chance would.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from controllers.laws.base import FrozenModel
from twp_sglang.profiling.step_points import StepPoint
from twp_sglang.simulator.step_models import Affine, AffineStep

FEWEST_POINTS = 4
"""Below that there is nothing to fit a plane through."""

_PARAMETERS = ("l_min_ms", "a_ms", "alpha_ms", "kappa_ms_per_token", "prefill_ms_per_token")


_FREE_TOKENS = tuple(float(round(2.0 ** (k / 4))) for k in range(16, 45))
"""Candidates from 16 to 2048, a fifth apart: the bend is sharp, and half as far off costs a
step near it a tenth."""


class FitError(ValueError):
    """Too little was measured for a model."""


class StepFit(FrozenModel):
    """A model and its errors, % of the measured step, means of absolute values.

    ``held_out_error_percent`` maps a kind of step, and ``all``, to the error over the
    points that the fit did not see; a kind without such points is absent.
    """

    step: AffineStep
    fitted_points: int
    held_out_points: int
    fitted_error_percent: float
    held_out_error_percent: dict[str, float]
    worst_held_out: str = ""


class _Candidate(NamedTuple):
    error: float
    step: AffineStep


def fit_steps(measured_ms: Mapping[StepPoint, float], held_out: frozenset[StepPoint]) -> StepFit:
    """Fit the points that are not held out, and judge on those that are.

    Args:
        measured_ms: median step time by point.

    Raises:
        FitError: fewer than four points to fit, or decode steps of one batch only.
    """
    seen = {point: ms for point, ms in measured_ms.items() if point not in held_out}
    if len(seen) < FEWEST_POINTS:
        raise FitError(
            f"{len(seen)} points were measured, {FEWEST_POINTS} are needed for a step model; allow "
            "more time (--budget-s)"
        )
    points, times = list(seen), np.array(list(seen.values()))
    knees = sorted({float(p.batch) for p in points if p.batch})[1:-1]
    chunks = sorted({p.chunk for p in points if p.chunk})
    frees = [0.0, *(free for free in _FREE_TOKENS if chunks and free < chunks[-1])]
    plain = min((_fit(points, times, 0.0, free) for free in frees), key=lambda c: c.error)
    best = plain
    for knee in knees:
        for free in frees:
            found = _fit(points, times, knee, free)
            if found.error < best.error:
                best = found
    if not _worth_a_knee(plain.error, best.error, len(points)):
        best = plain
    return _judged(best.step, seen, {p: measured_ms[p] for p in held_out if p in measured_ms})


def _fit(
    points: Sequence[StepPoint], times: NDArray[np.float64], knee: float, free: float
) -> _Candidate:
    columns = np.array(
        [
            [
                1.0,
                float(p.batch),
                max(0.0, p.batch - knee) if knee else 0.0,
                float(p.kv_tokens),
                max(0.0, p.chunk - free),
            ]
            for p in points
        ]
    )
    scales = np.maximum(columns.max(axis=0), 1.0)
    matrix = columns / scales / times[:, None]
    solution, norm = nnls(matrix, np.ones(len(points)))
    values = dict(zip(_PARAMETERS, (solution / scales).tolist(), strict=True))
    # A constant of zero would be a step that takes no time: the fit has no such point.
    values["l_min_ms"] = max(values["l_min_ms"], 1e-6)
    step = AffineStep(b0=knee, prefill_free_tokens=free, **values)
    return _Candidate(norm * norm, step)


def _worth_a_knee(plain: float, with_knee: float, points: int) -> bool:
    """Schwarz's criterion for two parameters more (knee and slope)."""
    if with_knee <= 0.0 or plain <= 0.0:
        return with_knee < plain
    return points * math.log(plain / with_knee) > 2.0 * math.log(points)


def _judged(
    step: AffineStep, seen: Mapping[StepPoint, float], unseen: Mapping[StepPoint, float]
) -> StepFit:
    fitted = {p: error_percent(step, p, ms) for p, ms in seen.items()}
    judged = {p: error_percent(step, p, ms) for p, ms in unseen.items()}
    by_kind: dict[str, list[float]] = {}
    for point, error in judged.items():
        by_kind.setdefault(point.kind, []).append(abs(error))
        by_kind.setdefault("all", []).append(abs(error))
    worst = max(judged, key=lambda p: abs(judged[p]), default=None)
    return StepFit(
        step=step,
        fitted_points=len(fitted),
        held_out_points=len(judged),
        fitted_error_percent=float(np.mean([abs(e) for e in fitted.values()])),
        held_out_error_percent={kind: float(np.mean(e)) for kind, e in by_kind.items()},
        worst_held_out="" if worst is None else f"{worst.label()}: {judged[worst]:+.1f} %",
    )


def error_percent(step: AffineStep, point: StepPoint, measured_ms: float) -> float:
    """Predicted over measured, less 1, in %."""
    predicted = Affine(step).step_ms(point.batch, point.kv_tokens, point.chunk)
    return 100.0 * (predicted / measured_ms - 1.0)
