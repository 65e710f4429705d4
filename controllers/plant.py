"""The plant: how the batch answers to the window while a saturated gate keeps K = H.

With a(t) requests admitted at step t, S(s) = P(L > s) and R(s) = sum_{u >= s} S(u):

    B(t) = sum_s S(s) a(t - s)        requests admitted s steps ago that still run
    K(t) = sum_s R(s) a(t - s)        tokens that they are expected to produce yet
    K = H   =>   P(z) = B/H = S(z)/R(z) = S(z)(z - 1)/(z E[L] - S(z))

DC gain 1/rbar, initial gain 1/E[L]; constant 1/E[L] for geometric lengths. R(s) falls
strictly, so R has all zeros inside the unit circle (Enestrom-Kakeya): P is stable for every
length law. S/R is used rather than the closed form, which is 0/0 at z = 1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from controllers.models import LengthLaw

Complex = NDArray[np.complex128]
Real = NDArray[np.float64]

_BLOCK = 256
MAX_STATES = 2000
"""Longest law for which dense state-space matrices are built (32 MB)."""


def polynomial_on_circle(coefficients: ArrayLike, omega: ArrayLike) -> Complex:
    """sum_s c(s) e^{-j omega s}, shape of ``omega``.

    Splits s = 256 q + r, so that the bulk of the work is one matrix product.
    """
    values = np.asarray(coefficients, dtype=np.float64)
    frequencies = np.atleast_1d(np.asarray(omega, dtype=np.float64))
    blocks = -(-values.size // _BLOCK)
    padded = np.zeros(blocks * _BLOCK)
    padded[: values.size] = values
    fine = np.exp(-1j * np.outer(np.arange(_BLOCK), frequencies))
    coarse = np.exp(-1j * _BLOCK * np.outer(np.arange(blocks), frequencies))
    total: Complex = np.einsum("qw,qw->w", padded.reshape(blocks, _BLOCK) @ fine, coarse)
    return total


class PlantResponse(NamedTuple):
    """Responses per token of window on a frequency grid, each of its shape.

    Attributes:
        admissions: requests admitted per step, 1/R.
        batch: P = S/R.
        output_kv: KV tokens of produced output, sum_s s S(s) z^-s / R.
    """

    admissions: Complex
    batch: Complex
    output_kv: Complex


def plant_response(lengths: LengthLaw, omega: ArrayLike) -> PlantResponse:
    """Responses to the window at ``omega`` in radians per step, shape (n,)."""
    survival = lengths.survival_array
    ages = np.arange(lengths.longest)
    admissions = 1.0 / polynomial_on_circle(lengths.remaining_array, omega)
    return PlantResponse(
        admissions,
        polynomial_on_circle(survival, omega) * admissions,
        polynomial_on_circle(ages * survival, omega) * admissions,
    )


def frequency_response(lengths: LengthLaw, omega: ArrayLike) -> Complex:
    """P(e^{j omega}) in requests per token, ``omega`` in radians per step, shape (n,)."""
    return plant_response(lengths, omega).batch


class GridResponse(NamedTuple):
    """A frequency grid on (0, pi], radians per step, and the plant's response on it."""

    omega: Real
    plant: PlantResponse


@lru_cache(maxsize=64)
def grid_response(lengths: LengthLaw) -> GridResponse:
    """Plant on a grid fine enough for its lobes, which are 2 pi / longest wide.

    Eight points per lobe on a uniform grid (by FFT), and 40 per decade below it, down to
    1e-6: integral action needs the low end. A tail that fewer than one request in a thousand
    reaches makes no lobe that a margin could see, so it does not refine the grid.
    """
    visible = int(np.count_nonzero(lengths.survival_array > 1e-3))
    size = 1 << max(11, int(np.ceil(np.log2(8 * visible))))
    uniform = np.pi * np.arange(1, size // 2 + 1) / (size // 2)
    low = np.geomspace(1e-6, uniform[0], 40 * max(2, int(np.log10(uniform[0] / 1e-6))))[:-1]
    survival = lengths.survival_array
    ages = np.arange(lengths.longest)
    sums = [_on_roots(c, size) for c in (lengths.remaining_array, survival, ages * survival)]
    head = plant_response(lengths, low)
    return GridResponse(
        np.concatenate([low, uniform]),
        PlantResponse(
            np.concatenate([head.admissions, 1.0 / sums[0]]),
            np.concatenate([head.batch, sums[1] / sums[0]]),
            np.concatenate([head.output_kv, sums[2] / sums[0]]),
        ),
    )


def _on_roots(coefficients: Real, size: int) -> Complex:
    """sum_s c(s) z^-s at z = e^{2 pi j k/size}, k = 1 .. size/2."""
    # z^-size = 1 there, so folding keeps it exact where the sum is longer than the grid.
    folds = -(-coefficients.size // size)
    padded = np.zeros(folds * size)
    padded[: coefficients.size] = coefficients
    values: Complex = np.fft.rfft(padded.reshape(folds, size).sum(axis=0))[1:]
    return values


class StateSpace(NamedTuple):
    """x' = A x + B u, y = C x + D u, one step per tick."""

    a: Real
    b: Real
    c: Real
    d: Real


def admission_state_space(lengths: LengthLaw) -> StateSpace:
    """H -> (admissions, B, output KV); the state holds the last longest - 1 admissions.

    Raises:
        ValueError: the length law is longer than ``MAX_STATES``.
    """
    count = lengths.longest
    if count > MAX_STATES:
        raise ValueError(
            f"lengths: longest output {count} needs more than {MAX_STATES} states: use the "
            "frequency response"
        )
    survival, remaining = lengths.survival_array, lengths.remaining_array
    kv = np.arange(count) * survival
    states = count - 1
    # K = H fixes the admissions: a(t) = (H(t) - sum_{s >= 1} R(s) a(t - s)) / R(0).
    feedback = -remaining[1:] / remaining[0]
    gain = 1.0 / remaining[0]
    a = np.zeros((states, states))
    if states:
        a[0] = feedback
        a[1:, :-1] = np.eye(states - 1)
    b = np.zeros((states, 1))
    b[:1] = gain
    c = np.vstack(
        [feedback, survival[1:] + survival[0] * feedback, kv[1:] + kv[0] * feedback]
    ).reshape(3, states)
    d = np.array([[gain], [survival[0] * gain], [kv[0] * gain]])
    return StateSpace(a, b, c, d)


def plant_state_space(lengths: LengthLaw) -> StateSpace:
    """State space of P: H in tokens -> B in requests."""
    full = admission_state_space(lengths)
    return StateSpace(full.a, full.b, full.c[1:2], full.d[1:2])
