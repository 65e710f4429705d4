"""The window law of Token Window Pacing, to the letter (arXiv 2610.17689, IV-A).

H* = H0 (1 + min(1, q/Q)) / max(0.5, sigma)            (equation 3)
H  <- clamp(H + gamma (H* - H), H_min, H_max)           (equation 4, clamps of IV-B)
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field, model_validator

from controllers.laws.base import FrozenModel, LawSample
from controllers.laws.jacobian import LawJacobian, sample_row

SIGMA_FLOOR = 0.5
"""Floor of the slowdown in equation (3)."""


class PaperLawConfig(FrozenModel):
    """Parameters of equations (3) and (4)."""

    h0_tokens: float = Field(
        default=400.0, gt=0, description="nominal window H0 (the paper's section V)"
    )
    gamma: float = Field(
        default=0.15, gt=0, le=1, description="window gain (the paper's section V)"
    )
    queue_ref: float = Field(
        default=16.0,
        gt=0,
        description="queue depth Q that counts as saturated; the paper gives none: two "
        "batches of its B0 = 8",
    )
    h_min_tokens: float | None = Field(
        default=None,
        gt=0,
        description="lower clamp; default H0/4, the window that equation (3) asks for at a "
        "slowdown of 4 with an empty queue",
    )
    h_max_tokens: float | None = Field(
        default=None,
        gt=0,
        description="upper clamp; default 2 H0, what equation (3) asks for at no slowdown "
        "with a saturated queue, so that a stale baseline cannot open it to 4 H0",
    )

    @property
    def h_min(self) -> float:
        """Lower clamp in force, tokens."""
        return self.h0_tokens / 4 if self.h_min_tokens is None else self.h_min_tokens

    @property
    def h_max(self) -> float:
        """Upper clamp in force, tokens."""
        return 2 * self.h0_tokens if self.h_max_tokens is None else self.h_max_tokens

    @model_validator(mode="after")
    def _clamps_ordered(self) -> PaperLawConfig:
        if self.h_min > self.h_max:
            raise ValueError(
                f"h_min_tokens = {self.h_min:g} is above h_max_tokens = {self.h_max:g}: "
                "lower h_min_tokens or raise h_max_tokens (defaults are h0_tokens/4 and "
                "2*h0_tokens)"
            )
        return self


class PaperState(NamedTuple):
    """The window H, in tokens."""

    window_tokens: float


class PaperLaw:
    """Proportional pull of H towards H*, see the module's formula."""

    name = "paper"

    def __init__(self, config: PaperLawConfig) -> None:
        self.config = config
        # Plain floats: the step runs once per decode step in the server's scheduler,
        # where pydantic's attribute access and the clamp properties would be felt.
        self._h0 = config.h0_tokens
        self._gamma = config.gamma
        self._queue_ref = config.queue_ref
        self._h_min = config.h_min
        self._h_max = config.h_max

    def initial(self) -> PaperState:
        """H starts at H0 inside the clamps (Algorithm 1, line 1)."""
        return PaperState(min(max(self._h0, self._h_min), self._h_max))

    def window(self, state: PaperState) -> float:
        """H of ``state``, tokens."""
        return state.window_tokens

    def target(self, sigma: float, queue: float) -> float:
        """H*, equation (3), tokens."""
        return self._h0 * (1.0 + min(1.0, queue / self._queue_ref)) / max(SIGMA_FLOOR, sigma)

    def step(self, sample: LawSample, state: PaperState) -> tuple[float, PaperState]:
        """Equation (4) with the clamps of section IV-B."""
        target = self.target(sample.sigma, sample.queue)
        window = state.window_tokens + self._gamma * (target - state.window_tokens)
        window = min(max(window, self._h_min), self._h_max)
        return window, PaperState(window)

    def jacobian(self, sample: LawSample, state: PaperState) -> LawJacobian:
        """1 - gamma by H; gamma dH*/dsigma and gamma dH*/dq where neither limit binds."""
        target = self.target(sample.sigma, sample.queue)
        window = state.window_tokens + self._gamma * (target - state.window_tokens)
        if not self._h_min <= window <= self._h_max:
            return LawJacobian(((0.0,),), (sample_row({}),))
        by_sigma = -self._gamma * target / sample.sigma if sample.sigma > SIGMA_FLOOR else 0.0
        by_queue = 0.0
        if sample.queue < self._queue_ref:
            by_queue = self._gamma * target / (self._queue_ref + sample.queue)
        return LawJacobian(
            ((1.0 - self._gamma,),), (sample_row({"sigma": by_sigma, "queue": by_queue}),)
        )
