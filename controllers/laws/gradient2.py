"""Gradient2 on the token window (Netflix concurrency-limits).

long <- long + (itl - long)/long_steps          (seeded by the first sample; 5 % faster down
                                                 while it exceeds twice the newest)
gradient = clip(tolerance * long / itl, 0.5, 1)
H <- H + smoothing (H gradient + headroom_tokens - H), clamped; held while K < H/2.

The baseline is a long average of the very latency it judges: under lasting saturation it
drifts up to what it should prevent, and the window opens to its clamp (docs/control.md).
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from controllers.laws.aimd import APP_LIMITED
from controllers.laws.base import LawSample
from controllers.laws.jacobian import LawJacobian, sample_row
from controllers.laws.limits import WindowLimits

GRADIENT_FLOOR = 0.5
"""The limit at most halves at once."""
RECOVERY_RATIO = 2.0
RECOVERY_FACTOR = 0.95
"""A long average above twice the newest sample is an outdated one: let it decay faster."""


class Gradient2LawConfig(WindowLimits):
    """Parameters; the defaults are concurrency-limits' own."""

    tolerance: float = Field(default=1.5, ge=1, description="rise of latency taken without reply")
    smoothing: float = Field(default=0.2, gt=0, le=1, description="weight of the new limit")
    long_steps: float = Field(default=600.0, ge=1, description="memory of the long average")
    headroom_tokens: float = Field(
        default=100.0,
        gt=0,
        description="growth per full step; four requests (their queue size) of the 25 tokens "
        "that `aimd` and `vegas` count a request as",
    )


class Gradient2State(NamedTuple):
    """Window in tokens; long average of the inter-token latency, 0 before any sample."""

    window_tokens: float
    long_itl_ms: float


class Gradient2Law:
    """Shrinks by the ratio of the long average to the newest latency."""

    name = "gradient2"

    def __init__(self, config: Gradient2LawConfig) -> None:
        self.config = config

    def initial(self) -> Gradient2State:
        """H0 inside the clamps, no average yet."""
        return Gradient2State(self.config.clamp(self.config.h0_tokens), 0.0)

    def window(self, state: Gradient2State) -> float:
        """H of ``state``, tokens."""
        return state.window_tokens

    def _long(self, itl_ms: float, before: float) -> tuple[float, float, float]:
        """Next long average and its derivatives by the average and by the sample."""
        if before <= 0:
            return itl_ms, 0.0, 1.0
        weight = 1.0 / self.config.long_steps
        after = before + weight * (itl_ms - before)
        if after > RECOVERY_RATIO * itl_ms:
            return (
                RECOVERY_FACTOR * after,
                RECOVERY_FACTOR * (1 - weight),
                RECOVERY_FACTOR * weight,
            )
        return after, 1 - weight, weight

    def step(self, sample: LawSample, state: Gradient2State) -> tuple[float, Gradient2State]:
        """Update the average, then the window."""
        if sample.itl_ms <= 0:
            return state.window_tokens, state
        long_itl, _, _ = self._long(sample.itl_ms, state.long_itl_ms)
        window = state.window_tokens
        if sample.load_tokens >= APP_LIMITED * window:
            gradient = self.config.tolerance * long_itl / sample.itl_ms
            gradient = min(max(gradient, GRADIENT_FLOOR), 1.0)
            target = window * gradient + self.config.headroom_tokens
            window += self.config.smoothing * (target - window)
        window = self.config.clamp(window)
        return window, Gradient2State(window, long_itl)

    def jacobian(self, sample: LawSample, state: Gradient2State) -> LawJacobian:
        """Rows: window, long average."""
        if sample.itl_ms <= 0:
            return LawJacobian(((1.0, 0.0), (0.0, 1.0)), (sample_row({}), sample_row({})))
        long_itl, long_by_long, long_by_itl = self._long(sample.itl_ms, state.long_itl_ms)
        window, by_window, by_long, by_itl = state.window_tokens, 1.0, 0.0, 0.0
        if sample.load_tokens >= APP_LIMITED * window:
            itl, smoothing = sample.itl_ms, self.config.smoothing
            raw = self.config.tolerance * long_itl / itl
            gradient = min(max(raw, GRADIENT_FLOOR), 1.0)
            by_window = 1 - smoothing + smoothing * gradient
            if gradient == raw:
                pull = smoothing * window * self.config.tolerance / itl
                by_long = pull * long_by_long
                by_itl = pull * (long_by_itl - long_itl / itl)
            window += smoothing * (window * gradient + self.config.headroom_tokens - window)
        if self.config.clamps_bind(window):
            by_window = by_long = by_itl = 0.0
        return LawJacobian(
            ((by_window, by_long), (0.0, long_by_long)),
            (sample_row({"itl_ms": by_itl}), sample_row({"itl_ms": long_by_itl})),
        )
