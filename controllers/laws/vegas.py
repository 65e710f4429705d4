"""TCP Vegas on the token window (Brakmo and Peterson 1995; Netflix concurrency-limits).

n = H / request_tokens is the limit in requests, n (1 - 1/sigma) the part of it that queues.
Below alpha = 3 log10 n of it the limit grows, above beta = 6 log10 n it shrinks, each by
log10 n; at most log10 n queued, it grows by beta at once. No change while K < H/2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pydantic import Field, model_validator

from controllers.laws.aimd import APP_LIMITED
from controllers.laws.base import LawSample
from controllers.laws.jacobian import LawJacobian, sample_row
from controllers.laws.limits import WindowLimits


class VegasLawConfig(WindowLimits):
    """Parameters of Vegas; the multiples are concurrency-limits' defaults."""

    request_tokens: float = Field(
        default=25.0,
        gt=0,
        description="tokens per request, to count the limit in requests as Vegas does; half "
        "the default H0 over the paper's B0 = 8",
    )
    alpha: float = Field(default=3.0, gt=0, description="grow below alpha*log10(n) queued")
    beta_queue: float = Field(default=6.0, gt=0, description="shrink above beta*log10(n) queued")

    @model_validator(mode="after")
    def _band_ordered(self) -> VegasLawConfig:
        if self.alpha >= self.beta_queue:
            raise ValueError(
                f"alpha = {self.alpha:g} must lie below beta_queue = {self.beta_queue:g}"
            )
        return self


class VegasState(NamedTuple):
    """The window H, in tokens."""

    window_tokens: float


class VegasLaw:
    """Holds the queued part of the limit in a band."""

    name = "vegas"

    def __init__(self, config: VegasLawConfig) -> None:
        self.config = config

    def initial(self) -> VegasState:
        """H0 inside the clamps."""
        return VegasState(self.config.clamp(self.config.h0_tokens))

    def window(self, state: VegasState) -> float:
        """H of ``state``, tokens."""
        return state.window_tokens

    def _raw(self, sample: LawSample, window: float) -> tuple[float, float]:
        """Unclamped next window and its derivative by the window."""
        if sample.load_tokens < APP_LIMITED * window or sample.sigma <= 0:
            return window, 1.0
        unit = self.config.request_tokens
        limit = window / unit
        # At least 1, so that a limit under ten requests still moves.
        scale, d_scale = (
            (math.log10(limit), 1.0 / (window * math.log(10))) if limit > 10 else (1, 0)
        )
        queued = limit * max(1.0 - 1.0 / sample.sigma, 0.0)
        if queued <= scale:
            times = self.config.beta_queue
        elif queued < self.config.alpha * scale:
            times = 1.0
        elif queued > self.config.beta_queue * scale:
            times = -1.0
        else:
            times = 0.0
        return window + times * scale * unit, 1.0 + times * d_scale * unit

    def step(self, sample: LawSample, state: VegasState) -> tuple[float, VegasState]:
        """Grow, shrink or hold."""
        window = self.config.clamp(self._raw(sample, state.window_tokens)[0])
        return window, VegasState(window)

    def jacobian(self, sample: LawSample, state: VegasState) -> LawJacobian:
        """By sigma it is a switch, so zero inside each branch; by H the branch's slope."""
        raw, slope = self._raw(sample, state.window_tokens)
        if self.config.clamps_bind(raw):
            slope = 0.0
        return LawJacobian(((slope,),), (sample_row({}),))
