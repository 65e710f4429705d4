"""Confidence intervals by a wild block bootstrap.

Blocks of successive residuals are turned over at random as a whole and added back to
the fitted step times, and the model, knee included, is fitted anew. Keeping a block
whole keeps the correlation between successive steps; keeping the regressors in place
keeps the excitation, so that a replicate of a trace with a single burst still has its
burst. Reference: Shao, The dependent wild bootstrap, JASA 105 (2010).

The intervals hold jointly: all parameters lie inside theirs with 95 % probability. For
tuning the joint statement is the one that matters, and it is the wider one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from controllers.identification.knee_moments import ridged
from controllers.identification.segmented import SegmentedFit, knee_bounds
from controllers.trace_reader import FloatArray

REPLICATES: Final = 600
"""Enough for the outer percent of a joint interval to rest on several replicates."""

_GRID: Final = 97
_MAX_BLOCKS: Final = 600
_FIXED_WEIGHTS: Final = 1.06
# Replicates keep the robust weights, the scatter's shape and the terms of the original fit.
# In 300 synthetic traces with outliers that made joint 95 % intervals hold 92.7 % of the time.
_RANGE_DROP: Final = 45.0
# Log-likelihood range of knees a replicate may choose: beyond six standard deviations.


@dataclass(frozen=True)
class Replicates:
    """Bootstrap replicates: ``coefficients`` (r, 5) in ms and tokens, ``b0`` (r,)."""

    coefficients: FloatArray
    b0: FloatArray


@dataclass(frozen=True)
class Profile:
    """Profile likelihood of the knee.

    Attributes:
        b0: (g,) knees, requests.
        deviance: (g,) fall of twice the log-likelihood from its maximum, for correlated
            rows; 3.84 bounds a 95 % interval.
    """

    b0: FloatArray
    deviance: FloatArray

    def interval(self, drop: float = 3.84) -> tuple[float, float]:
        """Outermost knees whose deviance is at most ``drop``."""
        inside = np.flatnonzero(self.deviance <= drop)
        return float(self.b0[inside[0]]), float(self.b0[inside[-1]])


def knee_profile(fit: SegmentedFit, tau: float, points: int = _GRID) -> Profile:
    """Profile of a fit with a knee, on an even grid over the plausible knees."""
    unit = tau * fit.rss / max(float(fit.robust.sum()), 1.0) * fit.weight_over_slope
    low, high = knee_bounds(fit.design)
    grid = np.append(np.linspace(low, high, 8 * points)[1:-1], fit.b0)
    for _ in range(3):
        grid.sort()
        _, rss = fit.moments.solve(fit.terms, grid)
        inside = np.flatnonzero(rss - rss.min() <= _RANGE_DROP * unit)
        low = grid[max(inside[0] - 1, 0)]
        high = grid[min(inside[-1] + 1, grid.size - 1)]
        grid = np.append(np.linspace(low, high, points), fit.b0)
    wide = np.linspace(low, high, points)
    _, rss = fit.moments.solve(fit.terms, wide)
    deviance = (rss - float(rss.min())) / max(unit, 1e-300)
    return Profile(b0=wide, deviance=deviance)


def bootstrap(
    fit: SegmentedFit,
    step_ms: FloatArray,
    tau: float,
    rng: np.random.Generator,
    replicates: int = REPLICATES,
) -> Replicates:
    """Replicates of the coefficients and the knee of ``fit``."""
    design, moments, terms = fit.design, fit.moments, fit.terms
    n = step_ms.size
    length = max(math.ceil(n / _MAX_BLOCKS), math.ceil(5 * tau))
    block = np.arange(n) // length
    blocks = int(block[-1]) + 1
    score = (step_ms - fit.fitted_ms) * fit.weight * fit.weight_over_slope
    grid = knee_profile(fit, tau).b0 if terms.knee else np.array([design.knots[0]])
    total_fit, above_fit = design.sums(fit.weight * fit.fitted_ms)
    total, above = _block_sums(fit, score, block, blocks, grid)
    signs = rng.choice([-1.0, 1.0], size=(replicates, blocks))
    total_star = total_fit + signs @ total
    knots_used = np.searchsorted(design.knots, grid, side="right") - 1
    above_star = above_fit[knots_used] + np.einsum("rb,bgk->rgk", signs, above, optimize=True)
    side = _side(grid / design.batch_scale, total_star, above_star)[..., terms.columns]
    matrix = ridged(moments.at(grid)[0][:, terms.columns][:, :, terms.columns])
    solution = np.einsum("gpq,rgq->rgp", np.linalg.inv(matrix), side, optimize=True)
    explained = np.einsum("rgp,rgp->rg", solution, side)
    if not terms.knee:
        physical = design.physical(terms, solution[:, 0])
        return _at_least_analytic(fit, tau, physical, np.full(replicates, np.nan))
    best = np.argmax(explained, axis=1)
    chosen = solution[np.arange(replicates), best]
    b0 = grid[best].copy()
    inner = (best > 0) & (best < grid.size - 1)
    # Between grid points: the parabola through the best point and its neighbours, and the
    # coefficients interpolated with it; the grid is uniform.
    rows, mid = np.flatnonzero(inner), best[inner]
    left, middle, right = (explained[rows, mid + k] for k in (-1, 0, 1))
    curvature = left - 2 * middle + right
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = np.where(curvature < 0, 0.5 * (left - right) / curvature, 0.0)
    shift = np.clip(shift, -0.5, 0.5)
    b0[rows] += shift * (grid[1] - grid[0])
    step = np.where(shift >= 0, 1, -1)
    chosen[rows] += np.abs(shift)[:, None] * (solution[rows, mid + step] - solution[rows, mid])
    return _at_least_analytic(fit, tau, design.physical(terms, chosen), b0)


def analytic_deviation(fit: SegmentedFit, tau: float) -> tuple[FloatArray, float]:
    """Standard deviations (5,) of the coefficients and of the knee, by linearisation.

    Inverse information of the model linearised at the estimate, with the knee's column
    -alpha 1{B > B0}, for errors of the fitted scatter and correlation tau.
    """
    design, terms = fit.design, fit.terms
    columns = design.columns_at(0.0 if np.isnan(fit.b0) else fit.b0, terms)
    if terms.knee:
        beyond = fit.design.knots[fit.design.knot_of_row] > fit.b0
        columns = np.column_stack([columns, -fit.coefficients[2] * beyond])
    information = ridged((columns * fit.weight[:, None]).T @ columns)
    unit = tau * fit.rss / max(float(fit.robust.sum()), 1.0) * fit.weight_over_slope
    covariance = unit * np.linalg.inv(information)
    p = len(terms.columns)
    jacobian = design.physical(terms, np.eye(p))
    physical = np.einsum("pi,pq,qi->i", jacobian, covariance[:p, :p], jacobian)
    knee = float(np.sqrt(max(covariance[-1, -1], 0.0))) if terms.knee else float("nan")
    return np.sqrt(np.maximum(physical, 0.0)), knee


def _at_least_analytic(
    fit: SegmentedFit, tau: float, coefficients: FloatArray, b0: FloatArray
) -> Replicates:
    """Replicates spread about the fit at least as wide as the linearised model says.

    A coefficient that hangs on a few steps, as the constant does on a short stretch of
    light load, rests on one or two blocks, and their residuals alone, already bent
    towards the fit, make the bootstrap too narrow.
    """
    deviation, knee_deviation = analytic_deviation(fit, tau)
    spread = coefficients.std(axis=0)
    factor = _FIXED_WEIGHTS * np.maximum(1.0, deviation / np.maximum(spread, 1e-300))
    factor[spread == 0] = 1.0
    coefficients = fit.coefficients + (coefficients - fit.coefficients) * factor
    if fit.terms.knee and np.std(b0) > 0:
        b0 = fit.b0 + (b0 - fit.b0) * _FIXED_WEIGHTS * max(1.0, knee_deviation / float(np.std(b0)))
    return Replicates(coefficients=coefficients, b0=b0)


def _block_sums(
    fit: SegmentedFit, score: FloatArray, block: np.ndarray, blocks: int, grid: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Sums of z * score by block (b, 4), and over rows above each knee (b, g, 4)."""
    design = fit.design
    # Interval of the grid's knots that a row's batch falls in: rows above knee g are those
    # whose interval lies beyond g.
    interval = np.searchsorted(grid, design.knots, side="left")[design.knot_of_row]
    width = grid.size + 1
    per = np.stack(
        [
            np.bincount(block * width + interval, design.z[:, k] * score, minlength=blocks * width)
            .reshape(blocks, width)
            .astype(np.float64)
            for k in range(4)
        ],
        axis=-1,
    )
    beyond = np.cumsum(per[:, ::-1], axis=1)[:, ::-1]
    return per.sum(axis=1), beyond[:, 1:]


def _side(scaled_knee: FloatArray, total: FloatArray, above: FloatArray) -> FloatArray:
    """Right-hand sides (r, g, 5) from totals (r, 4) and sums above each knee (r, g, 4)."""
    side = np.empty((*above.shape[:-1], 5))
    side[..., [0, 1, 3, 4]] = total[:, None, :]
    side[..., 2] = above[..., 1] - scaled_knee * above[..., 0]
    return side


def joint_interval(values: FloatArray, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Percentile bounds (p,) that hold for all columns of ``values`` (r, p) together.

    The tail probability is shrunk until ``level`` of the replicates lie inside every
    column's bounds at once; at least the outermost replicate is always reached.
    """
    low_tail, high_tail = 0.0, (1 - level) / 2
    for _ in range(20):
        tail = 0.5 * (low_tail + high_tail)
        low, high = np.quantile(values, [tail, 1 - tail], axis=0)
        inside = float(np.mean(np.all((values >= low) & (values <= high), axis=1)))
        low_tail, high_tail = (tail, high_tail) if inside >= level else (low_tail, tail)
    low, high = np.quantile(values, [low_tail, 1 - low_tail], axis=0)
    return low, high
