"""Start value and clamps that every law beside the paper's shares."""

from __future__ import annotations

from pydantic import Field, model_validator

from controllers.laws.base import FrozenModel


class WindowLimits(FrozenModel):
    """Where the window starts and between which clamps it stays."""

    h0_tokens: float = Field(
        default=400.0, gt=0, description="window at start-up; the paper's nominal H0"
    )
    h_min_tokens: float | None = Field(
        default=None,
        gt=0,
        description="lower clamp; default H0/4, as for the paper's law, so that laws compare",
    )
    h_max_tokens: float | None = Field(
        default=None,
        gt=0,
        description="upper clamp; default 4 H0: these laws look for their window themselves, "
        "so H0 is a guess that may be two doublings too low",
    )

    @property
    def h_min(self) -> float:
        """Lower clamp in force, tokens."""
        return self.h0_tokens / 4 if self.h_min_tokens is None else self.h_min_tokens

    @property
    def h_max(self) -> float:
        """Upper clamp in force, tokens."""
        return 4 * self.h0_tokens if self.h_max_tokens is None else self.h_max_tokens

    @model_validator(mode="after")
    def _clamps_ordered(self) -> WindowLimits:
        if self.h_min > self.h_max:
            raise ValueError(
                f"h_min_tokens = {self.h_min:g} is above h_max_tokens = {self.h_max:g}: "
                "lower h_min_tokens or raise h_max_tokens (defaults are h0_tokens/4 and "
                "4*h0_tokens)"
            )
        return self

    def clamp(self, window: float) -> float:
        """``window`` inside the clamps, tokens."""
        return min(max(window, self.h_min), self.h_max)

    def clamps_bind(self, window: float) -> bool:
        """Whether an unclamped ``window`` lies outside, so that its derivatives vanish."""
        return not self.h_min <= window <= self.h_max
