"""Robust segmented regression of the step time, with a profile likelihood for the knee.

Errors of step times are not Gaussian: a garbage collection or a neighbour's burst makes
single steps several times too long, always upwards. Huber's estimator would only bound
their pull, and one-sided outliers would still shift the constant by more than its
confidence interval. So Huber weights only start the iteration, and Tukey's bisquare,
which gives gross outliers the weight zero, ends it (Maronna, Martin, Yohai: Robust
Statistics, 2006, sections 4.4 and 5.3). The scatter may grow with the step time; its
power is estimated, so that busy steps do not drown the quiet ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from controllers.identification.knee_moments import Design, KneeMoments, Terms
from controllers.identification.samples import DecodeSamples
from controllers.trace_reader import FloatArray

HUBER: Final = 1.345
"""Tuning constant, in standard deviations, for 95 % efficiency on Gaussian errors."""
BISQUARE: Final = 4.685
"""The same for Tukey's bisquare."""

_MAD_TO_SIGMA: Final = 1.4826
_MIN_ROWS_EACH_SIDE: Final = 30
_ROUNDS: Final = 12
_REFINE: Final = 33
_FLOOR_RELATIVE: Final = 1e-9
# Numerical floor of the scatter: noise-free traces (simulators) have none.


@dataclass(frozen=True)
class SegmentedFit:
    """A fitted model: coefficients, knee, and what each row had to say.

    Attributes:
        coefficients: (5,) in the order of ``knee_moments.COLUMNS``, ms and tokens.
        b0: knee in requests; NaN without one.
        fitted_ms: (n,) model's step time.
        scatter_ms: (n,) standard deviation of a step time about the model.
        weight: (n,) weight in the normal equations, 1/scatter^2 times the robust weight.
        robust: (n,) the robust weight alone, 0 for gross outliers.
        weight_over_slope: mean robust weight over the mean slope of the influence
            function; turns the spread of a fixed-weight fit into that of the M-estimator.
        rss: weighted residual sum of squares.
    """

    terms: Terms
    design: Design
    moments: KneeMoments
    coefficients: FloatArray
    b0: float
    fitted_ms: FloatArray
    scatter_ms: FloatArray
    weight: FloatArray
    robust: FloatArray
    weight_over_slope: float
    rss: float


def knee_candidates(design: Design) -> FloatArray:
    """Knees worth trying: batch sizes with two others above, one below, and rows on both sides.

    A knee beyond which a handful of steps lie would only chase their noise.
    """
    rows = np.bincount(design.knot_of_row, minlength=design.knots.size)
    up_to = np.cumsum(rows)
    supported = (up_to >= _MIN_ROWS_EACH_SIDE) & (up_to[-1] - up_to >= _MIN_ROWS_EACH_SIDE)
    supported[:1] = supported[-2:] = False
    return np.asarray(design.knots[supported], dtype=np.float64)


def knee_bounds(design: Design) -> tuple[float, float]:
    """Range of knees that the grid of ``knee_candidates`` stands for, ends included.

    Not above the largest candidate: there the few largest batches alone would carry the
    slope, and one outlier among them would bend the model into itself.
    """
    grid, knots = knee_candidates(design), design.knots
    return float(knots[np.searchsorted(knots, grid[0]) - 1]), float(grid[-1])


def best_knee(moments: KneeMoments, terms: Terms) -> float:
    """Maximum-likelihood knee: grid over the batch sizes, then twice finer between them."""
    if not terms.knee:
        return float("nan")
    grid = knee_candidates(moments.design)
    if grid.size == 0:
        return float("nan")
    lowest, highest = knee_bounds(moments.design)
    for _ in range(3):
        _, rss = moments.solve(terms, grid)
        best = int(np.argmin(rss))
        low = grid[best - 1] if best > 0 else lowest
        high = grid[best + 1] if best + 1 < grid.size else highest
        grid = np.linspace(low, high, _REFINE)
    _, rss = moments.solve(terms, grid)
    return parabola_minimum(grid, rss)


def parabola_minimum(grid: FloatArray, values: FloatArray) -> float:
    """Minimum of the parabola through the lowest point of ``values`` and its neighbours."""
    best = int(np.argmin(values))
    if best in (0, grid.size - 1):
        return float(grid[best])
    x = grid[best - 1 : best + 2] - grid[best]
    left, middle, right = values[best - 1 : best + 2]
    first = (left - middle) / x[0]
    second = (right - middle) / x[2]
    curvature = (second - first) / (x[2] - x[0])
    if not curvature > 0:
        return float(grid[best])
    shift = -(first - curvature * x[0]) / (2 * curvature)
    return float(grid[best] + np.clip(shift, x[0], x[2]))


def fit_at(moments: KneeMoments, terms: Terms, b0: float) -> tuple[FloatArray, float]:
    """Scaled coefficients (p,) and residual sum of squares with the knee at ``b0``."""
    at = moments.design.knots[0] if np.isnan(b0) else b0
    coefficients, rss = moments.solve(terms, np.array([at], dtype=np.float64))
    return coefficients[0], float(rss[0])


def fit_segmented(samples: DecodeSamples, terms: Terms) -> SegmentedFit:
    """Iteratively reweighted least squares, the knee profiled anew in every round."""
    design = Design.of(samples)
    y = samples.step_ms
    floor = _FLOOR_RELATIVE * float(np.median(y))
    robust = np.ones_like(y)
    shape = np.ones_like(y)  # scatter relative to its level
    level = 1.0
    scaled = np.empty(0)
    b0 = float("nan")
    fitted = y
    for round_ in range(2 * _ROUNDS):
        moments = KneeMoments(design, y, robust / shape**2)
        previous = fitted
        b0 = best_knee(moments, terms)
        scaled, _ = fit_at(moments, terms, b0)
        fitted = design.columns_at(_or_zero(b0), terms) @ scaled
        error = (y - fitted) / shape
        level = max(_MAD_TO_SIGMA * float(np.median(np.abs(error))), floor)
        standard = error / level
        if round_ < _ROUNDS:
            robust = np.minimum(1.0, HUBER / np.maximum(np.abs(standard), 1e-12))
            if round_ == 2:
                shape = _scatter_shape(y - fitted, fitted)
        else:
            robust = np.where(
                np.abs(standard) < BISQUARE, (1 - (standard / BISQUARE) ** 2) ** 2, 0.0
            )
        settled = float(np.max(np.abs(fitted - previous))) < 1e-6 * max(level, floor)
        if settled and round_ > _ROUNDS:
            break
    weight = robust / (shape * level) ** 2
    moments = KneeMoments(design, y, weight)
    b0 = best_knee(moments, terms)
    scaled, rss = fit_at(moments, terms, b0)
    fitted = design.columns_at(_or_zero(b0), terms) @ scaled
    ratio = np.clip((y - fitted) / (shape * level * BISQUARE), -1.0, 1.0) ** 2
    slope = float(np.mean((1 - ratio) * (1 - 5 * ratio)))
    return SegmentedFit(
        terms=terms,
        design=design,
        moments=moments,
        coefficients=design.physical(terms, scaled),
        b0=b0,
        fitted_ms=fitted,
        scatter_ms=shape * level,
        weight=weight,
        robust=robust,
        weight_over_slope=float(np.mean(robust)) / max(slope, 0.3),
        rss=rss,
    )


def _or_zero(b0: float) -> float:
    return 0.0 if np.isnan(b0) else b0


def _scatter_shape(residual: FloatArray, fitted: FloatArray) -> FloatArray:
    """Scatter relative to its median level, as a power of the step time between 0 and 1.5."""
    size = np.abs(residual)
    positive = (size > 0) & (fitted > 0)
    if positive.sum() < 50 or np.ptp(fitted[positive]) < 0.02 * float(np.median(fitted)):
        return np.ones_like(fitted)
    x = np.log(fitted[positive])
    x = x - x.mean()
    power = float(np.dot(x, np.log(size[positive])) / np.dot(x, x))
    base = np.maximum(fitted, 0.1 * float(np.median(fitted))) / float(np.median(fitted))
    return np.asarray(base ** float(np.clip(power, 0.0, 1.5)), dtype=np.float64)
