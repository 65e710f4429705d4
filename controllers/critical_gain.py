"""Loop gain at which the loop loses stability: closed forms for a memoryless plant.

Memoryless means P(z) = 1/rbar: geometric lengths, or a batch that follows the window at once.
The paper's law, L = g gamma/(z - 1 + gamma) beta z/(z - 1 + beta) z^-d:

    d = 0   g_c = (2/gamma - 1)(2/beta - 1)                          crossing at pi
    d = 1   g_c = 1/gamma + 1/beta - 1
    d = 2   g_c = (-s + sqrt(s^2 + 4 (1 - b)))/(2 gamma beta),
            s = 2 - gamma - beta,  b = (1 - gamma)(1 - beta)         (Jury)

The log-integral law at beta = 1, L = g k z^-d/(z - 1):   k g_c = 2 sin(pi/(2 (2 d + 1))).

Longer delays and filtered integrators are solved numerically for the crossing of least gain.
For a plant with memory use :func:`controllers.margins.margins`.
"""

from __future__ import annotations

import math

import numpy as np

from controllers.margins import critical_factors
from controllers.plant import Complex

_GRID = np.pi * np.arange(1, 4097) / 4096


def _check(gain_name: str, gain: float, beta: float, delay_steps: int) -> None:
    for name, value in ((gain_name, gain), ("beta", beta)):
        if not 0 < value <= 1:
            raise ValueError(f"{name} = {value:g}: must lie in (0, 1]")
    if delay_steps < 0:
        raise ValueError(f"delay_steps = {delay_steps}: must not be negative")


def paper_critical_gain(gamma: float, beta: float, delay_steps: int) -> float:
    """Critical g of the paper's law on a memoryless plant.

    Raises:
        ValueError: a gain outside (0, 1] or a negative delay.
    """
    _check("gamma", gamma, beta, delay_steps)
    if delay_steps == 0:
        return (2 / gamma - 1) * (2 / beta - 1)
    if delay_steps == 1:
        return 1 / gamma + 1 / beta - 1
    if delay_steps == 2:
        s = 2 - gamma - beta
        b = (1 - gamma) * (1 - beta)
        # The conjugate form of the closed form: no cancellation when s is large.
        return 2 * (1 - b) / ((s + math.sqrt(s * s + 4 * (1 - b))) * gamma * beta)

    def loop(omega: object) -> Complex:
        z = np.exp(1j * np.atleast_1d(np.asarray(omega, dtype=np.float64)))
        gain: Complex = gamma * beta * z ** (1.0 - delay_steps) / ((z - 1 + gamma) * (z - 1 + beta))
        return gain

    return critical_factors(_GRID, loop(_GRID), loop)[0]


def regulated_critical_gain(k: float, beta: float, delay_steps: int) -> float:
    """Critical g of the log-integral law with gain ``k`` on a memoryless plant.

    Raises:
        ValueError: a gain outside (0, 1] or a negative delay.
    """
    _check("k", k, beta, delay_steps)
    if beta == 1:
        return 2 * math.sin(math.pi / (2 * (2 * delay_steps + 1))) / k

    def loop(omega: object) -> Complex:
        z = np.exp(1j * np.atleast_1d(np.asarray(omega, dtype=np.float64)))
        gain: Complex = k * beta * z ** (1.0 - delay_steps) / ((z - 1) * (z - 1 + beta))
        return gain

    return critical_factors(_GRID, loop(_GRID), loop)[0]


def characteristic_polynomial(
    gamma: float, beta: float, delay_steps: int, loop_gain: float
) -> list[float]:
    """Characteristic polynomial of the paper's law, memoryless, descending powers of z.

    (z - 1 + gamma)(z - 1 + beta) z^d + g gamma beta z, with one factor z cancelled for d > 0.
    """
    quadratic = [1.0, -(2 - gamma - beta), (1 - gamma) * (1 - beta)]
    if delay_steps == 0:
        quadratic[1] += loop_gain * gamma * beta
        return quadratic
    polynomial = quadratic + [0.0] * (delay_steps - 1)
    polynomial[-1] += loop_gain * gamma * beta
    return polynomial
