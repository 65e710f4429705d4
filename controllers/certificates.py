"""Guarantees that hold far from the operating point, and what the drain allows.

The circle criterion covers the loop's two nonlinearities, in deviations relative to rest:

    l(B)     chords through the operating point have slopes in [(sigma* - 1)/sigma*, g]
    1/sigma  chords have slopes in [0, sigma*], because sigma >= 1

joined by the linear parts rbar P(z), the ITL filter with its delay, and the window's pull.
With a diagonal multiplier D > 0 (Khalil, Nonlinear Systems, 7.1; one scalar ratio for two
channels) absolute stability follows when the sector-transformed G satisfies
He{D (K^-1 + G(e^jw))} > 0 at all frequencies.

It does not cover the clamps, nor the third nonlinearity: nothing admitted can be taken back,
so a falling window is followed only as fast as requests drain (:func:`drain_steps`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controllers.laws.base import FrozenModel
from controllers.laws.paper import PaperLaw
from controllers.linearisation import linearise
from controllers.margins import is_stable
from controllers.models import LengthLaw, LoopModel
from controllers.operating_point import Regime, equilibrium
from controllers.plant import grid_response


class CircleCertificate(FrozenModel):
    """Outcome of the circle criterion.

    Attributes:
        certified: every motion of the model with K = H tends to the operating point.
        margin: smallest eigenvalue of the condition over frequency, normalised; the
            certificate holds when it is positive.
        batch_slopes: sector of the latency, relative slopes.
        inverse_slopes: sector of 1/sigma, relative slopes.
        multiplier: ratio of the two entries of D that gave ``margin``.
        reason: what was assumed, or why nothing could be certified.
    """

    certified: bool
    margin: float
    batch_slopes: tuple[float, float]
    inverse_slopes: tuple[float, float]
    multiplier: float
    reason: str


def circle_certificate(loop: LoopModel) -> CircleCertificate:
    """Circle criterion for the paper's law on a plant without KV term.

    Sufficient, not necessary: a loop that is not certified may still be globally stable.

    Raises:
        ValueError: another law, or a KV term, for which the sectors above do not hold.
    """
    law = loop.make_law()
    if not isinstance(law, PaperLaw):
        raise ValueError(f"law = {loop.law!r}: the circle certificate is worked out for 'paper'")
    if loop.latency.kappa_ms_per_token > 0:
        raise ValueError(
            "kappa_ms_per_token > 0: KV follows the batch with memory, which these sectors "
            "do not cover"
        )
    point = equilibrium(loop)
    linear = linearise(loop, point)
    if not is_stable(linear):
        return _refused("the loop is not even locally stable", (0.0, point.loop_gain))
    if point.regime in (Regime.CLAMPED_MIN, Regime.CLAMPED_MAX):
        return _refused(
            "the operating point lies on a clamp, where the sectors are not centred",
            (0.0, point.loop_gain),
        )
    slope = loop.latency.a_ms * point.batch / point.step_ms
    steep = slope + loop.latency.alpha_ms * point.batch / point.step_ms
    # The chord to B = 0 is the flattest; a hair less where l is straight, so that the sector
    # has a width to divide by.
    low = min((point.sigma - 1.0) / point.sigma, 0.999 * steep)
    batch_slopes = (low, steep)
    inverse_slopes = (0.0, point.sigma)
    if steep == 0.0:
        return CircleCertificate(
            certified=True,
            margin=1.0,
            batch_slopes=batch_slopes,
            inverse_slopes=inverse_slopes,
            multiplier=1.0,
            reason="latency does not answer to the batch: there is no feedback",
        )
    return _search(loop, law.config.gamma, batch_slopes, inverse_slopes)


def _refused(reason: str, batch_slopes: tuple[float, float]) -> CircleCertificate:
    return CircleCertificate(
        certified=False,
        margin=-1.0,
        batch_slopes=batch_slopes,
        inverse_slopes=(0.0, 1.0),
        multiplier=1.0,
        reason=reason,
    )


def _search(
    loop: LoopModel,
    gamma: float,
    batch_slopes: tuple[float, float],
    inverse_slopes: tuple[float, float],
) -> CircleCertificate:
    grid = grid_response(loop.lengths)
    z = np.exp(1j * grid.omega)
    plant = loop.lengths.residual_mean * grid.plant.batch
    window = gamma / (z - 1 + gamma)
    sensor = loop.beta * z / (z - 1 + loop.beta) * z ** -float(loop.timing.delay_steps)
    # Channel 1: batch deviation -> latency deviation. Channel 2: slowdown -> window.
    # y1 = -(plant * window) w2, y2 = sensor * w1, with the sign of 1/sigma in channel 1.
    to_batch, to_sigma = plant * window, sensor
    low = batch_slopes[0]
    # Loop shift by the lower slope of channel 1 only (the other's is 0):
    # u1 = w1 - low y1, so y2 = sensor (u1 + low y1), and the sectors become [0, width].
    # The feedback form is w = -psi(y): G maps (u1, u2) to -(y1, y2).
    width = (batch_slopes[1] - low, inverse_slopes[1])
    zero = np.zeros_like(to_batch)
    g = np.array([[zero, to_batch], [-to_sigma, low * to_sigma * to_batch]])
    # He{D (K^-1 + G)} for D = diag(1, d), normalised by the entries' scales.
    best, best_ratio = -math.inf, 1.0
    for ratio in np.geomspace(1e-4, 1e4, 161):
        d = np.array([1.0, ratio])
        value = _smallest_eigenvalue(d, width, g)
        if value > best:
            best, best_ratio = value, float(ratio)
    return CircleCertificate(
        certified=best > 0,
        margin=best,
        batch_slopes=batch_slopes,
        inverse_slopes=inverse_slopes,
        multiplier=best_ratio,
        reason="K = H throughout: a saturated gate, and no faster fall than the drain"
        if best > 0
        else "the sectors are too wide for the circle criterion",
    )


def _smallest_eigenvalue(
    d: NDArray[np.float64], width: tuple[float, float], g: NDArray[np.complex128]
) -> float:
    first = d[0] * (1.0 / width[0] + g[0, 0].real)
    second = d[1] * (1.0 / width[1] + g[1, 1].real)
    cross = 0.5 * (d[0] * g[0, 1] + d[1] * np.conj(g[1, 0]))
    # Scaled to unit diagonal of D K^-1, so that ratios compare.
    scale = (d[0] / width[0], d[1] / width[1])
    first, second = first / scale[0], second / scale[1]
    cross = cross / math.sqrt(scale[0] * scale[1])
    mean, half = 0.5 * (first + second), 0.5 * (first - second)
    eigenvalue = mean - np.sqrt(half**2 + np.abs(cross) ** 2)
    return float(np.min(eigenvalue))


def globally_attracting(loop: LoopModel) -> bool:
    """Whether x < 1 guarantees rest from any start, for any gamma, beta and delay.

    Holds for the paper's law on a memoryless plant without KV or linear term: the map
    B -> 2 H0/(rbar sigma(B)) then has no two-cycle, and a chain of unit-gain filters with
    positive impulse responses around it cannot make one.

    Raises:
        ValueError: the law is another.
    """
    if loop.law != "paper":
        raise ValueError(f"law = {loop.law!r}: this is a property of 'paper'")
    flat = loop.slope_per_request_ms == 0
    return flat and loop.latency.x < 1 and is_memoryless(loop.lengths)


def is_memoryless(lengths: LengthLaw, tolerance: float = 1e-9) -> bool:
    """Whether the hazard is constant (geometric lengths), so that P(z) = 1/E[L]."""
    survival = lengths.survival_array
    visible = survival[survival > 1e-6]
    if visible.size == 1:
        return lengths.longest == 1
    ratios = visible[1:] / visible[:-1]
    return bool(np.ptp(ratios) <= tolerance) and lengths.longest > visible.size


class Drain(NamedTuple):
    """A saturated, stationary engine after its gate has shut; one value per step from 0.

    Attributes:
        load_share: K(t)/K(0) = sum_{u >= t} R(u) / sum_{u >= 0} R(u).
        batch_share: B(t)/B(0) = R(t)/R(0).
    """

    load_share: NDArray[np.float64]
    batch_share: NDArray[np.float64]


def drain(lengths: LengthLaw) -> Drain:
    """How load and batch fall once nothing more is admitted."""
    remaining = lengths.remaining_array
    load = np.cumsum(remaining[::-1])[::-1]
    return Drain(np.append(load / load[0], 0.0), np.append(remaining / remaining[0], 0.0))


def drain_steps(lengths: LengthLaw, share: float) -> int:
    """Steps until K has fallen to ``share`` of a stationary load: the fastest step-down.

    No gain makes a smaller window felt sooner, because nothing admitted is taken back.

    Raises:
        ValueError: the share is not in (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"share = {share:g}: must lie in (0, 1]")
    return int(np.argmax(drain(lengths).load_share <= share))


class StepDown(NamedTuple):
    """A fall of the window from one value to another.

    Attributes:
        window_steps: steps until the law has gone 63 % of the way, 1/gamma.
        drain_steps: steps until the load has.
        drain_limited: whether draining, not the law, sets the pace.
    """

    window_steps: float
    drain_steps: int
    drain_limited: bool


def step_down(loop: LoopModel, from_tokens: float, to_tokens: float) -> StepDown:
    """Which of law and drain sets the pace of a step-down of the paper's law.

    Raises:
        ValueError: another law, or windows that do not fall.
    """
    law = loop.make_law()
    if not isinstance(law, PaperLaw):
        raise ValueError(f"law = {loop.law!r}: a step-down needs the time constant of 'paper'")
    if not 0 < to_tokens < from_tokens:
        raise ValueError(f"from {from_tokens:g} to {to_tokens:g} tokens is not a step down")
    reached = 1.0 - (1.0 - to_tokens / from_tokens) * (1.0 - math.exp(-1.0))
    steps = drain_steps(loop.lengths, reached)
    pace = 1.0 / law.config.gamma
    return StepDown(pace, steps, steps > pace)
