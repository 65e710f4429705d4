"""A window that never moves: the open loop, and the static cap that others must beat."""

from __future__ import annotations

from typing import NamedTuple

from controllers.laws.base import LawSample
from controllers.laws.jacobian import LawJacobian, sample_row
from controllers.laws.limits import WindowLimits


class FixedLawConfig(WindowLimits):
    """The window is ``h0_tokens`` inside the clamps."""


class FixedState(NamedTuple):
    """The window H, in tokens."""

    window_tokens: float


class FixedLaw:
    """H = H0."""

    name = "fixed"

    def __init__(self, config: FixedLawConfig) -> None:
        self.config = config
        self._window = config.clamp(config.h0_tokens)

    def initial(self) -> FixedState:
        """H0 inside the clamps."""
        return FixedState(self._window)

    def window(self, state: FixedState) -> float:
        """H of ``state``, tokens."""
        return state.window_tokens

    def step(self, sample: LawSample, state: FixedState) -> tuple[float, FixedState]:
        """The same window again."""
        return self._window, FixedState(self._window)

    def jacobian(self, sample: LawSample, state: FixedState) -> LawJacobian:
        """All zero: nothing feeds back."""
        return LawJacobian(((0.0,),), (sample_row({}),))
