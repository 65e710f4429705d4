"""Margins of all loops of an uncertainty set at once, for any gain and filter weight.

For the laws on sigma the gain and the filter enter the loop as one factor,

    F(z) = gamma/(z - 1 + gamma) * beta z/(z - 1 + beta)     paper
    F(z) = k/(z - 1) * beta z/(z - 1 + beta)                 regulated,

so L for one pair of gains, computed by :mod:`controllers.linearisation`, gives L for any
other by a multiplication. That makes a search over gains and hundreds of models cheap;
what it finds is then checked with the exact margins.

Each model is looked at where it rests and where its loop gain is largest between the
clamps: just above the knee for the paper's law, whose gain a f H0/(rbar sigma^2) falls
with the slowdown, and at H_max for the regulated one, whose gain k g rises with the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from controllers.linearisation import LinearLoop, linearise
from controllers.margins import critical_factors
from controllers.models import LoopModel
from controllers.operating_point import Equilibrium, Regime, equilibrium

Complex = npt.NDArray[np.complex128]
FloatArray = npt.NDArray[np.float64]

_MAX_POINTS = 1200
_ABOVE_KNEE = 1 + 1e-6


@dataclass(frozen=True)
class GainVerdict:
    """Worst case over a set of loops for one pair of gain and filter weight.

    Attributes:
        stable: whether every loop is stable.
        disk_margin: smallest balanced disk margin; 0 when one is unstable.
        worst: index of the loop with the smallest margin.
        bandwidth: smallest closed-loop bandwidth, radians per step, where |T| has fallen to
            1/sqrt(2) of its value at rest.
        jitter: largest relative standard deviation of H per unit of step noise.
    """

    stable: bool
    disk_margin: float
    worst: int
    bandwidth: float
    jitter: float


def law_factor(law: str, gain: float, beta: float, z: Complex) -> Complex:
    """F(z), the part of the loop that gain and filter weight make up."""
    filtered = beta * z / (z - 1 + beta)
    pull = gain / (z - 1 + gain) if law == "paper" else gain / (z - 1)
    return np.asarray(pull * filtered, dtype=np.complex128)


def gain_of(loop: LoopModel) -> float:
    """The law's gain as the loop has it: gamma or k."""
    config = loop.make_law().config
    return float(config.gamma if loop.law == "paper" else config.k)


def point_at(loop: LoopModel, batch: float) -> Equilibrium:
    """A point of operation at ``batch``, whether or not the loop rests there."""
    step = loop.steady_step_ms(batch)
    slope = loop.slope_per_request_ms
    slope += loop.latency.alpha_ms if batch > loop.latency.b0 else 0.0
    return Equilibrium(
        sigma=step / loop.latency.l_min_ms,
        window_tokens=batch * loop.lengths.residual_mean,
        batch=batch,
        regime=Regime.ACTIVE,
        mean_remaining_tokens=loop.lengths.residual_mean,
        step_ms=step,
        kv_tokens=batch * loop.kv_per_request,
        loop_gain=slope * batch / step,
    )


def operating_points(loop: LoopModel) -> list[LinearLoop]:
    """``loop`` linearised where it rests and where its loop gain is largest."""
    rest = equilibrium(loop)
    # Linearised without the clamps: resting on one there is no feedback, and none of it is
    # evidence for the moment when the loop comes off it.
    free = {"h_min_tokens": 1e-6, "h_max_tokens": 1e12}
    loop = loop.model_copy(update={"law_params": loop.law_params | free})
    knee = max(loop.latency.b0, 1e-3) * _ABOVE_KNEE
    steepest = knee if loop.law == "paper" else max(knee, rest.batch)
    points = [point_at(loop, steepest)]
    if rest.regime is Regime.ACTIVE and abs(rest.batch / steepest - 1) > 1e-3:
        points.append(point_at(loop, rest.batch))
    return [linearise(_resting_at(loop, point), point) for point in points]


def _resting_at(loop: LoopModel, point: Equilibrium) -> LoopModel:
    """``loop``, an integrator's reference moved to ``point``.

    Away from its reference an integrator drifts, and the drift would enter the Jacobian as a
    pole off the unit circle; what is asked here is its reaction, not its drift.
    """
    if loop.law != "regulated":
        return loop
    reference = {"sigma_ref": max(point.sigma, 1 + 1e-9)}
    return loop.model_copy(update={"law_params": loop.law_params | reference})


class LoopSet:
    """Frequency responses of the loops of an uncertainty set, on coarse grids."""

    def __init__(self, loops: Sequence[LoopModel]) -> None:
        self.linear = [linear for loop in loops for linear in operating_points(loop)]
        self.law = loops[0].law
        self._members: list[tuple[FloatArray, Complex, Complex, npt.NDArray[np.int64]]] = []
        groups: dict[int, list[int]] = {}
        for index, linear in enumerate(self.linear):
            groups.setdefault(id(linear.grid[0]), []).append(index)
        for indices in groups.values():
            omega = self.linear[indices[0]].grid[0]
            kept = _thinned(omega)
            z = np.exp(1j * omega[kept])
            response = np.stack(
                [
                    self.linear[i].grid[1][kept]
                    / law_factor(
                        self.law, gain_of(self.linear[i].loop), self.linear[i].loop.beta, z
                    )
                    for i in indices
                ]
            )
            self._members.append((omega[kept], z, response, np.array(indices)))

    def verdict(self, gain: float, beta: float, goal: float = 0.0) -> GainVerdict:
        """Worst case with ``gain`` and ``beta``; cut short once below the ``goal``."""
        worst, margin, bandwidth, jitter = -1, 2.0, np.inf, 0.0
        for omega, z, response, indices in self._members:
            factor = law_factor(self.law, gain, beta, z)
            loop = response * factor
            size = np.abs(1 - loop) / (2 * np.abs(1 + loop))
            margins = 1.0 / size.max(axis=1)
            lowest = int(np.argmin(margins))
            if margins[lowest] < margin:
                margin, worst = float(margins[lowest]), int(indices[lowest])
            if margin < goal:
                return GainVerdict(True, margin, worst, 0.0, np.inf)
            for index, row in enumerate(loop):
                factors = critical_factors(omega, row)
                if factors and factors[0] <= 1:
                    return GainVerdict(False, 0.0, int(indices[index]), 0.0, np.inf)
            bandwidth = min(bandwidth, float(_bandwidth(omega, loop).min()))
            weight = np.gradient(omega) / np.pi
            power = (np.abs(factor / (1 + loop)) ** 2 * weight).sum(axis=1)
            jitter = max(jitter, float(np.sqrt(power.max())))
        return GainVerdict(True, margin, worst, bandwidth, jitter)


def _bandwidth(omega: FloatArray, loop: Complex) -> FloatArray:
    """First frequency at which |T| is below 1/sqrt(2) of its lowest-frequency value."""
    size = np.abs(loop / (1 + loop))
    low = size < size[:, :1] / np.sqrt(2)
    first = np.argmax(low, axis=1)
    return np.where(low.any(axis=1), omega[first], omega[-1])


def _thinned(omega: FloatArray) -> npt.NDArray[np.int64]:
    """Indices of at most ``_MAX_POINTS`` of a grid, even on a log scale, both ends kept."""
    if omega.size <= _MAX_POINTS:
        return np.arange(omega.size)
    wanted = np.concatenate(
        [
            np.geomspace(omega[0], omega[-1], _MAX_POINTS // 2),
            np.linspace(omega[0], omega[-1], _MAX_POINTS // 2),
        ]
    )
    return np.unique(
        np.append(np.searchsorted(omega, wanted).clip(0, omega.size - 1), omega.size - 1)
    )
