"""Log-integral window law: it drives the slowdown itself to a reference.

ln H <- ln H - clip(k ln(sigma / sigma_ref), -slew, slew)
frozen while K < load_fraction * H, clamped to [H_min, H_max].

The paper's law is proportional, so its offset above l_min depends on the length law; an
integrator has no offset: at rest sigma = sigma_ref whatever the lengths. The logarithm makes
the loop gain k * dln l/dln B, independent of the window's scale. It needs a plant where sigma
answers to the window (a knee in B); where the step follows KV tokens it regulates the wrong
thing (docs/control.md).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pydantic import Field

from controllers.laws.base import LawSample
from controllers.laws.jacobian import LawJacobian, sample_row
from controllers.laws.limits import WindowLimits


class RegulatedLawConfig(WindowLimits):
    """Parameters of the log-integral law."""

    sigma_ref: float = Field(
        default=1.1,
        gt=1,
        description="slowdown to hold; must exceed 1, because sigma cannot fall below it and "
        "an integrator would then push the window to its clamp. 1.1: a tenth above the floor "
        "is visible over the measurement's noise and still a small price in latency",
    )
    k: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="integral gain per step; 0.05 keeps k*g a factor 20 below the memoryless "
        "bound 2 sin(pi/6) = 1 of one step of delay",
    )
    load_fraction: float = Field(
        default=0.8,
        ge=0,
        lt=1,
        description="anti-windup: no step while the load K is below this part of H. A gate "
        "that is not closing says nothing about H; head-of-line gating leaves K within a "
        "request of H, so 0.8 only catches a gate that is open",
    )
    slew: float = Field(
        default=0.05,
        gt=0,
        description="largest change of ln H per step: a halving takes at least 14 steps, so "
        "that one mis-measured step cannot empty or flood the engine",
    )


class RegulatedState(NamedTuple):
    """The window H, in tokens."""

    window_tokens: float


class RegulatedLaw:
    """Integral action on ln sigma, see the module's formula."""

    name = "regulated"

    def __init__(self, config: RegulatedLawConfig) -> None:
        self.config = config
        # Plain floats for the scheduler's hot path, as in the paper's law.
        self._h_min = config.h_min
        self._h_max = config.h_max
        self._sigma_ref = config.sigma_ref
        self._k = config.k
        self._load_fraction = config.load_fraction
        self._slew = config.slew

    def initial(self) -> RegulatedState:
        """H0 inside the clamps."""
        return RegulatedState(self.config.clamp(self.config.h0_tokens))

    def window(self, state: RegulatedState) -> float:
        """H of ``state``, tokens."""
        return state.window_tokens

    def step(self, sample: LawSample, state: RegulatedState) -> tuple[float, RegulatedState]:
        """One step of integral action; a sigma that is not positive leaves H as it is."""
        window = state.window_tokens
        if sample.load_tokens >= self._load_fraction * window and sample.sigma > 0:
            move = -self._k * math.log(sample.sigma / self._sigma_ref)
            window *= math.exp(min(max(move, -self._slew), self._slew))
        window = min(max(window, self._h_min), self._h_max)
        return window, RegulatedState(window)

    def jacobian(self, sample: LawSample, state: RegulatedState) -> LawJacobian:
        """d H'/d H = H'/H and d H'/d sigma = -k H'/sigma where nothing limits."""
        window = state.window_tokens
        if sample.load_tokens < self._load_fraction * window or sample.sigma <= 0:
            slope = 0.0 if self.config.clamps_bind(window) else 1.0
            return LawJacobian(((slope,),), (sample_row({}),))
        move = -self._k * math.log(sample.sigma / self._sigma_ref)
        factor = math.exp(min(max(move, -self._slew), self._slew))
        if self.config.clamps_bind(window * factor):
            return LawJacobian(((0.0,),), (sample_row({}),))
        by_sigma = 0.0 if abs(move) > self._slew else -self._k * window * factor / sample.sigma
        return LawJacobian(((factor,),), (sample_row({"sigma": by_sigma}),))
