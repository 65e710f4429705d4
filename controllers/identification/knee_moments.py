"""Least squares of the one-knee model at any knee, from moments gathered once.

For a fixed knee B0 the model l = c + a B + alpha (B - B0)+ + kappa KV + p prefill is
linear. Its normal equations need only sums of products over all rows and over the rows
with B > B0, and those change only where B0 passes a batch size that occurs. So one pass
over the trace gives the exact residual sum of squares for every B0: a profile
likelihood over hundreds of knees costs milliseconds, and no optimiser can stick in a
local minimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from controllers.identification.samples import DecodeSamples
from controllers.trace_reader import FloatArray

COLUMNS: Final = ("l_min_ms", "a_ms", "alpha_ms", "kappa_ms_per_token", "prefill_ms_per_token")
"""Coefficients in the order of the design columns 1, B, (B - B0)+, KV, prefill."""

_RIDGE: Final = 1e-13  # of the diagonal: keeps an empty or collinear column solvable


class Terms(NamedTuple):
    """Which optional terms the model has; the constant is always there."""

    a: bool
    knee: bool
    kv: bool
    prefill: bool

    @property
    def columns(self) -> tuple[int, ...]:
        """Indices into ``COLUMNS``."""
        chosen = (True, self.a, self.knee, self.kv, self.prefill)
        return tuple(i for i, used in enumerate(chosen) if used)

    @property
    def parameters(self) -> int:
        """Free parameters, the knee itself counted."""
        return len(self.columns) + int(self.knee)

    def describe(self) -> str:
        """The model as a formula."""
        names = ("c", "a B", "alpha (B - B0)+", "kappa KV", "p prefill")
        return "l = " + " + ".join(names[i] for i in self.columns)


@dataclass(frozen=True)
class Design:
    """Centred and scaled regressors of one set of samples, reused across weightings.

    Scaling keeps the normal equations well conditioned: KV runs to 1e6 where B is 10.
    """

    z: FloatArray  # (n, 4): 1, B/scale, (KV - mean)/scale, (prefill - mean)/scale
    knots: FloatArray  # (t,): batch sizes that occur, ascending
    knot_of_row: np.ndarray  # (n,)
    batch_scale: float
    means: tuple[float, float]
    scales: tuple[float, float]

    @classmethod
    def of(cls, samples: DecodeSamples) -> Design:
        """Design of ``samples``."""
        knots, knot_of_row = np.unique(samples.batch, return_inverse=True)
        batch_scale = float(knots[-1])
        columns = [np.ones(len(samples)), samples.batch / batch_scale]
        means, scales = [], []
        for column in (samples.kv_tokens, samples.prefill_tokens):
            mean, scale = float(column.mean()), float(column.std()) or 1.0
            means.append(mean)
            scales.append(scale)
            columns.append((column - mean) / scale)
        return cls(
            z=np.column_stack(columns),
            knots=knots,
            knot_of_row=knot_of_row,
            batch_scale=batch_scale,
            means=(means[0], means[1]),
            scales=(scales[0], scales[1]),
        )

    def columns_at(self, b0: float, terms: Terms) -> FloatArray:
        """Design matrix (n, p) at the knee ``b0``, in scaled units."""
        knee = np.maximum(self.z[:, 1] - b0 / self.batch_scale, 0.0)
        everything = np.column_stack([self.z[:, 0], self.z[:, 1], knee, self.z[:, 2], self.z[:, 3]])
        return np.asarray(everything[:, terms.columns], dtype=np.float64)

    def physical(self, terms: Terms, scaled: FloatArray) -> FloatArray:
        """Coefficients (..., 5) in ms and tokens from scaled ones (..., p); absent terms 0."""
        full = np.zeros((*scaled.shape[:-1], 5))
        full[..., terms.columns] = scaled
        full[..., 1] /= self.batch_scale
        full[..., 2] /= self.batch_scale
        for column, mean, scale in zip((3, 4), self.means, self.scales, strict=True):
            full[..., column] /= scale
            full[..., 0] -= full[..., column] * mean
        return full

    def sums(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Sums of z * values over all rows (4,), and over rows above each knot (t, 4)."""
        per_knot: FloatArray = np.column_stack(
            [
                np.bincount(self.knot_of_row, self.z[:, k] * values, minlength=self.knots.size)
                for k in range(4)
            ]
        ).astype(np.float64, copy=False)
        return per_knot.sum(axis=0), _above(per_knot)


def _above(per_knot: FloatArray) -> FloatArray:
    """Sum over knots strictly above each knot, along the first axis."""
    reverse = np.cumsum(per_knot[::-1], axis=0)[::-1]
    above = np.zeros_like(per_knot)
    above[:-1] = reverse[1:]
    return above


class KneeMoments:
    """Weighted normal equations of a design and a response, for every knee."""

    def __init__(self, design: Design, response: FloatArray, weight: FloatArray) -> None:
        self.design = design
        knots = design.knots.size
        gram = np.empty((knots, 4, 4))
        for i in range(4):
            for j in range(i + 1):
                product = np.bincount(
                    design.knot_of_row, design.z[:, i] * design.z[:, j] * weight, minlength=knots
                )
                gram[:, i, j] = gram[:, j, i] = product
        self._gram_all: FloatArray = gram.sum(axis=0)
        self._gram_above = _above(gram)
        self._cross_all, self._cross_above = design.sums(response * weight)
        self.response_square = float(np.dot(weight, response * response))

    def at(self, b0: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Normal matrix (g, 5, 5) and right-hand side (g, 5) at each knee of ``b0`` (g,)."""
        knot = np.searchsorted(self.design.knots, b0, side="right") - 1
        scaled = b0 / self.design.batch_scale
        above = self._gram_above[knot]
        # (B - B0)+ = 1{B > B0} (B - B0): its products with 1, B, KV, prefill, and itself.
        knee = above[:, 1, :] - scaled[:, None] * above[:, 0, :]
        square = knee[:, 1] - scaled * knee[:, 0]
        order = [0, 1, 3, 4]
        matrix = np.empty((b0.size, 5, 5))
        matrix[np.ix_(range(b0.size), order, order)] = self._gram_all
        matrix[:, 2, order] = knee
        matrix[:, order, 2] = knee
        matrix[:, 2, 2] = square
        return matrix, self.right_side(b0, self._cross_all, self._cross_above)

    def right_side(self, b0: FloatArray, total: FloatArray, above: FloatArray) -> FloatArray:
        """Right-hand side (..., g, 5) from sums ``total`` (..., 4), ``above`` (..., t, 4)."""
        knot = np.searchsorted(self.design.knots, b0, side="right") - 1
        scaled = b0 / self.design.batch_scale
        picked = above[..., knot, :]
        side = np.empty((*picked.shape[:-1], 5))
        side[..., [0, 1, 3, 4]] = total[..., None, :]
        side[..., 2] = picked[..., 1] - scaled * picked[..., 0]
        return side

    def solve(self, terms: Terms, b0: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Coefficients (g, p), scaled, and residual sum of squares (g,) at each knee."""
        matrix, side = self.at(b0)
        matrix, side = matrix[:, terms.columns][:, :, terms.columns], side[:, terms.columns]
        coefficients = np.asarray(
            np.linalg.solve(ridged(matrix), side[..., None])[..., 0], dtype=np.float64
        )
        explained = np.einsum("gp,gp->g", coefficients, side)
        rss: FloatArray = np.maximum(self.response_square - explained, 0.0)
        return coefficients, rss


def ridged(matrix: FloatArray) -> FloatArray:
    """``matrix`` (..., p, p) with a vanishing ridge, so that a dead column solves to 0."""
    diagonal = np.einsum("...ii->...i", matrix)
    largest = diagonal.max(axis=-1, keepdims=True)
    eye = np.eye(matrix.shape[-1])
    return np.asarray(matrix + eye * (_RIDGE * largest)[..., None], dtype=np.float64)
