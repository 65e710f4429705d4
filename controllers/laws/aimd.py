"""Additive increase, multiplicative decrease on the token window (Chiu and Jain 1989).

H <- backoff * H           when sigma > sigma_ref
H <- H + request_tokens    when sigma <= sigma_ref and K >= H/2

It has no equilibrium, only a saw-tooth; it is here to be compared with.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from controllers.laws.base import LawSample
from controllers.laws.jacobian import LawJacobian, sample_row
from controllers.laws.limits import WindowLimits

APP_LIMITED = 0.5
"""Below this part of the limit in use, no increase: the rule of Netflix concurrency-limits."""


class AimdLawConfig(WindowLimits):
    """Parameters of additive increase, multiplicative decrease."""

    sigma_ref: float = Field(
        default=1.1, gt=1, description="slowdown that counts as congestion; as in `regulated`"
    )
    backoff: float = Field(
        default=0.9, gt=0, lt=1, description="factor of a decrease; concurrency-limits' default"
    )
    request_tokens: float = Field(
        default=25.0,
        gt=0,
        description="increase per step, tokens: about one request, half the default H0 over "
        "the paper's B0 = 8",
    )


class AimdState(NamedTuple):
    """The window H, in tokens."""

    window_tokens: float


class AimdLaw:
    """Saw-tooth around the slowdown that counts as congestion."""

    name = "aimd"

    def __init__(self, config: AimdLawConfig) -> None:
        self.config = config

    def initial(self) -> AimdState:
        """H0 inside the clamps."""
        return AimdState(self.config.clamp(self.config.h0_tokens))

    def window(self, state: AimdState) -> float:
        """H of ``state``, tokens."""
        return state.window_tokens

    def _raw(self, sample: LawSample, window: float) -> tuple[float, float]:
        """Unclamped next window and its derivative by the window."""
        if sample.sigma > self.config.sigma_ref:
            return self.config.backoff * window, self.config.backoff
        if sample.load_tokens >= APP_LIMITED * window:
            return window + self.config.request_tokens, 1.0
        return window, 1.0

    def step(self, sample: LawSample, state: AimdState) -> tuple[float, AimdState]:
        """Back off, grow or hold."""
        window = self.config.clamp(self._raw(sample, state.window_tokens)[0])
        return window, AimdState(window)

    def jacobian(self, sample: LawSample, state: AimdState) -> LawJacobian:
        """By sigma it is a switch, so zero on either side; by H the branch's factor."""
        raw, slope = self._raw(sample, state.window_tokens)
        if self.config.clamps_bind(raw):
            slope = 0.0
        return LawJacobian(((slope,),), (sample_row({}),))
