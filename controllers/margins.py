"""How far the linear loop is from instability: poles first, then gain, phase and disk margin.

The loop is stable when 1 + L(z) has no zero on or outside the unit circle. That is decided
first (eigenvalues for short length laws, the argument principle for long ones), because a
margin read off an unstable loop is meaningless. Margins then come from the frequency
response, with the crossing at omega = pi looked at by hand: discrete loops of this kind
first become unstable exactly there, and tools that search for sign changes miss it.

Disk margin: Seiler, Packard and Gahinet, An Introduction to Disk Margins, 2020; balanced
(skew 0): alpha = 1/max |S - 1/2|, S = 1/(1 + L).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

from controllers.laws.base import FrozenModel
from controllers.linearisation import LinearLoop, linearise
from controllers.models import LoopModel
from controllers.plant import Complex

POLES_UP_TO = 96
"""Longest length law whose poles are computed by eigenvalues (a few ms); beyond, the argument
principle gives the same answer from the frequency response (a test compares the two)."""

DISK_MARGIN_GOAL = 0.67
"""Balanced disk margin to aim at in the worst case: about 6 dB and 37 degrees at once."""

MAX_FACTOR = 1e9
"""Gain factors above count as infinite: a loop gain so small is rounding, not feedback."""

_NEAR = 0.05
"""Relative error allowed to an interpolated crossing before it is refined: at eight grid
points per lobe of the plant it is below a hundredth."""

Real = NDArray[np.float64]


class Margins(FrozenModel):
    """Margins of one loop; ``None`` stands for infinite (JSON has no infinity).

    Attributes:
        stable: whether the linear loop is asymptotically stable.
        gain_margin: factor by which the loop gain may grow; of an unstable loop the factor
            below 1 to which it must fall.
        phase_margin_deg: phase lag in degrees that the loop bears; 0 when unstable.
        disk_margin_alpha: balanced disk margin, at most 2; 0 when unstable.
        loop_gain: g = d ln l/d ln B at the operating point.
        critical_loop_gain: g at which the loop would become unstable, its shape unchanged.
        max_sensitivity: max |S|.
        regime: regime of the operating point.
    """

    stable: bool
    gain_margin: float | None
    phase_margin_deg: float | None
    disk_margin_alpha: float
    loop_gain: float
    critical_loop_gain: float | None
    max_sensitivity: float | None
    regime: str


def margins(loop: LoopModel) -> Margins:
    """Margins of ``loop`` linearised at its own equilibrium.

    Raises:
        ValueError: the law switches (vegas, aimd) and has no linearisation.
    """
    return margins_of(linearise(loop))


def margins_of(linear: LinearLoop) -> Margins:
    """Margins of a loop linearised at any point, not only where it rests."""
    omega, gain = linear.grid
    stable = is_stable(linear)
    g = linear.point.loop_gain
    factors = critical_factors(omega, gain, linear.gain)
    critical = _critical_loop_gain(linear, factors, stable)
    if not stable:
        below = [f for f in factors if f < 1]
        return Margins(
            stable=False,
            gain_margin=below[0] if below else 0.0,
            phase_margin_deg=0.0,
            disk_margin_alpha=0.0,
            loop_gain=g,
            critical_loop_gain=critical,
            max_sensitivity=None,
            regime=linear.point.regime,
        )
    above = [f for f in factors if f > 1]
    return Margins(
        stable=True,
        gain_margin=above[0] if above else None,
        phase_margin_deg=phase_margin_deg(omega, gain, linear.gain),
        disk_margin_alpha=disk_margin(omega, gain, linear.gain),
        loop_gain=g,
        critical_loop_gain=critical,
        max_sensitivity=float(np.max(np.abs(1.0 / (1.0 + gain)))),
        regime=linear.point.regime,
    )


def _critical_loop_gain(linear: LinearLoop, factors: list[float], stable: bool) -> float | None:
    g = linear.point.loop_gain
    if g > 0:
        # From a gain of 0, where the loop is stable, the least factor is where it stops being
        # so; a stable loop may have crossed and returned (conditional stability).
        factor = next((f for f in factors if f > 1 or not stable), None)
        return None if factor is None else g * factor
    # Idle: no slope, hence no L. The shape is the same just above the knee, where a slope
    # of one l/B per request is a loop gain of 1.
    if linear.point.batch <= 0:
        return None
    unit = LinearLoop(
        linear.loop, linear.point, linear.jacobian, linear.point.step_ms / linear.point.batch
    )
    omega, gain = unit.grid
    found = critical_factors(omega, gain, unit.gain)
    return found[0] if found else None


def is_stable(linear: LinearLoop) -> bool:
    """Whether the closed loop's poles all lie strictly inside the unit circle."""
    lengths = linear.loop.lengths
    if lengths.longest <= POLES_UP_TO:
        return bool(np.max(np.abs(linear.poles())) < 1.0)
    return unstable_pole_count(linear) == 0


def unstable_pole_count(linear: LinearLoop) -> int:
    """Closed-loop poles outside the unit circle, by the argument principle.

    (1 + L(z)) prod (1 - p_i/z) over the law's eigenvalues p_i is analytic outside the circle
    and tends to 1, so its winding along the circle counts the poles outside. The product
    also lifts the pole of an integrator at z = 1, so that no indentation is needed.

    Raises:
        ValueError: the law is itself unstable with its feedback cut.
    """
    eigenvalues = linear.law_eigenvalues
    if np.any(np.abs(eigenvalues) > 1.0 + 1e-9):
        raise ValueError(f"law {linear.loop.law!r} is unstable with its feedback cut")
    omega, gain = linear.grid

    def curve(frequencies: Real, loop_gain: Complex) -> Complex:
        z = np.exp(1j * frequencies)
        values: Complex = 1.0 + loop_gain
        for eigenvalue in eigenvalues:
            values = values * (1.0 - eigenvalue / z)
        return values

    points = curve(omega, gain)
    # Refine until no step turns by more than a right angle; twelve halvings of a grid that
    # already resolves the plant's lobes mean a curve through the origin itself.
    for _ in range(12):
        turns = np.abs(np.angle(points[1:] / points[:-1]))
        coarse = np.flatnonzero(turns > math.pi / 2)
        if coarse.size == 0:
            break
        middle = 0.5 * (omega[coarse] + omega[coarse + 1])
        omega = np.insert(omega, coarse + 1, middle)
        points = np.insert(points, coarse + 1, curve(middle, linear.gain(middle)))
    turned = float(np.sum(np.angle(points[1:] / points[:-1])))
    # At omega = 0 the curve is real; the first point is beside it.
    start = float(np.angle(points[0]))
    turned += start - math.pi * round(start / math.pi)
    return -round(turned / math.pi)


Gain = Callable[[Any], Complex]


def critical_factors(omega: Real, gain: Complex, evaluate: Gain | None = None) -> list[float]:
    """Factors k > 0 with 1 + k L(e^{j omega}) = 0 somewhere on the grid, ascending.

    Args:
        omega: grid up to and including pi, radians per step, shape (n,).
        gain: L on the grid, shape (n,).
        evaluate: L at any frequency, to refine crossings to rounding error; without it
            crossings are interpolated linearly between grid points (FRD data).
    """
    imaginary, real = gain.imag, gain.real
    # By sign bits, so that a grid point exactly on the axis counts once, not never.
    turns = np.signbit(imaginary[:-1]) != np.signbit(imaginary[1:])
    turns &= imaginary[:-1] != imaginary[1:]
    crossing = turns & (np.minimum(real[:-1], real[1:]) < 0)
    at = np.flatnonzero(crossing)
    share = imaginary[at] / (imaginary[at] - imaginary[at + 1])
    values = real[at] + share * (real[at + 1] - real[at])
    if evaluate is not None:
        # A plant with many lobes crosses often; only the crossings that can be the least
        # factor of all, or the least above 1, are worth refining.
        estimates = np.where(values < 0, -1.0 / np.minimum(values, -1e-300), np.inf)
        for floor in (0.0, 1.0 - _NEAR):
            above = estimates[estimates >= floor]
            if above.size == 0:
                continue
            near = (estimates >= floor) & (estimates <= (1 + _NEAR) * above.min())
            for i in np.flatnonzero(near):
                values[i] = _refine(evaluate, float(omega[at[i]]), float(omega[at[i] + 1]))
    factors = [-1.0 / float(v) for v in values if v < -1.0 / MAX_FACTOR]
    # The crossing at pi: L is real there, so no sign change of its imaginary part shows it.
    if math.isclose(float(omega[-1]), math.pi, rel_tol=1e-9) and real[-1] < -1.0 / MAX_FACTOR:
        factors.append(-1.0 / float(real[-1]))
    return sorted(factors)


def _refine(evaluate: Gain, low: float, high: float) -> float:
    ends = [evaluate(low)[0], evaluate(high)[0]]
    if ends[0].imag * ends[1].imag >= 0:
        # The grid's value (by FFT) and this one differ by rounding, and the crossing lies
        # within it at one end.
        return float(min(ends, key=lambda value: abs(value.imag)).real)
    root = brentq(lambda w: float(evaluate(w)[0].imag), low, high, xtol=1e-15, rtol=1e-14)
    return float(evaluate(root)[0].real)


def phase_margin_deg(omega: Real, gain: Complex, evaluate: Gain | None = None) -> float | None:
    """Smallest angle between L and -1 where |L| = 1, degrees; None when |L| never is."""
    excess = np.abs(gain) - 1.0
    at = np.flatnonzero(excess[:-1] * excess[1:] < 0)
    if at.size == 0:
        return None
    share = excess[at] / (excess[at] - excess[at + 1])
    angles = np.abs(np.angle(-(gain[at] + share * (gain[at + 1] - gain[at]))))
    if evaluate is not None:
        for i in np.flatnonzero(angles <= (1 + _NEAR) * angles.min() + 1e-3):
            low, high = float(omega[at[i]]), float(omega[at[i] + 1])
            ends = [float(np.abs(evaluate(w)[0])) - 1.0 for w in (low, high)]
            if ends[0] * ends[1] < 0:  # else within rounding of one end: as interpolated
                root = brentq(lambda w: float(np.abs(evaluate(w)[0])) - 1.0, low, high, xtol=1e-14)
                angles[i] = abs(float(np.angle(-evaluate(root)[0])))
    return math.degrees(float(angles.min()))


def disk_margin(omega: Real, gain: Complex, evaluate: Gain | None = None) -> float:
    """Balanced disk margin alpha = 1/max |S - 1/2| of a loop known to be stable.

    Right for frequency-response data, which python-control's ``disk_margins`` rejects.
    """
    # |S - 1/2| = |1 - L| / (2 |1 + L|), which is 1/2 where |L| is infinite, never NaN.
    with np.errstate(divide="ignore"):
        size = np.abs(1.0 - gain) / (2.0 * np.abs(1.0 + gain))
    peak = int(np.argmax(size))
    best = float(size[peak])
    if evaluate is not None and 0 < peak < omega.size - 1:

        def negative(frequency: float) -> float:
            value = evaluate(frequency)[0]
            return -float(abs(1.0 - value) / (2.0 * abs(1.0 + value)))

        found = minimize_scalar(
            negative, bounds=(omega[peak - 1], omega[peak + 1]), method="bounded"
        )
        best = max(best, -float(found.fun))
    return 1.0 / best


def disk_to_gain_phase(alpha: float) -> tuple[float, float]:
    """Gain factor and phase (degrees) that a balanced disk margin guarantees, each alone.

    Gain (2 + alpha)/(2 - alpha) up or down, phase 2 atan(alpha/2); infinite gain at 2.
    """
    gain = math.inf if alpha >= 2 else (2 + alpha) / (2 - alpha)
    return gain, 2 * math.degrees(math.atan(alpha / 2))
