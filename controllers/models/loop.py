"""What closes the loop around the engine: timing, law, filter, and how unsure we are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator, model_validator

from controllers.laws.base import FrozenModel
from controllers.models.latency import LatencyModel
from controllers.models.lengths import LengthLaw

if TYPE_CHECKING:
    from controllers.laws.jacobian import AnalysedLaw

SATURATED = "saturated"
"""Queue setting that stands for q >= Q at every step."""


class LoopTiming(FrozenModel):
    """When a measurement reaches the law."""

    delay_steps: int = Field(
        default=0,
        ge=0,
        le=64,
        description="extra steps d between a step's end and the law seeing it: 0 in the "
        "paper's timing, 1 when step t is launched before the result of t-1 is processed "
        "(an overlapping scheduler)",
    )


class LoopModel(FrozenModel):
    """One closed loop: engine, length law, timing, window law and ITL filter.

    ``law`` names an entry of :mod:`controllers.laws.registry`; ``law_params`` are fields of
    that law's configuration and are validated when the model is built.
    """

    latency: LatencyModel = Field(default_factory=LatencyModel)
    lengths: LengthLaw = Field(
        default_factory=lambda: LengthLaw.geometric(50.0),
        description="geometric with mean 50: memoryless, the plain case of the theory",
    )
    timing: LoopTiming = Field(default_factory=LoopTiming)
    law: str = Field(default="paper", description="name in controllers.laws.registry")
    law_params: dict[str, Any] = Field(
        default_factory=dict, description="fields of the law's configuration"
    )
    beta: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="weight of the newest sample in the ITL filter; the paper gives none: a "
        "memory of five steps, as long as its gamma = 0.15 needs to move the window",
    )
    queue: float | str = Field(
        default=SATURATED,
        description="waiting requests the loop sees, or 'saturated' for q >= Q",
    )
    prompt_tokens: float = Field(
        default=0.0,
        ge=0,
        description="mean prompt length; counts only where kappa or the prefill term do",
    )

    @field_validator("queue")
    @classmethod
    def _queue_known(cls, value: float | str) -> float | str:
        if isinstance(value, str):
            if value != SATURATED:
                raise ValueError(f"{value!r} is neither a depth >= 0 nor '{SATURATED}'")
        elif value < 0:
            raise ValueError(f"{value:g} is negative: give a depth >= 0 or '{SATURATED}'")
        return value

    @model_validator(mode="after")
    def _law_buildable(self) -> LoopModel:
        self.make_law()
        return self

    def make_law(self) -> AnalysedLaw:
        """The law object, as the server would run it."""
        from controllers.laws.registry import make_law  # registry imports every law

        return make_law(self.law, self.law_params)

    @property
    def kv_per_request(self) -> float:
        """KV tokens of a running request, seen over time: prompt plus mean age."""
        return self.prompt_tokens + self.lengths.age_mean

    @property
    def slope_per_request_ms(self) -> float:
        """Step-time slope below the knee per request with the KV it holds, ms."""
        return self.latency.a_ms + self.latency.kappa_ms_per_token * self.kv_per_request

    def steady_step_ms(self, batch: float) -> float:
        """Decode step time, ms, at a steady batch whose requests hold their mean KV.

        Prompt tokens are left out: the slowdown must not count a chunk's own time, or every
        prefill would close the window.
        """
        return self.latency.step_ms(batch, batch * self.kv_per_request)


class UncertaintySet(FrozenModel):
    """Every combination of latency model, length law and delay that could be the truth."""

    latencies: tuple[LatencyModel, ...] = Field(min_length=1)
    lengths: tuple[LengthLaw, ...] = Field(min_length=1)
    delays_steps: tuple[int, ...] = Field(min_length=1)

    def __len__(self) -> int:
        return len(self.latencies) * len(self.lengths) * len(self.delays_steps)

    def loops(self, nominal: LoopModel) -> Iterator[LoopModel]:
        """``nominal`` with each member of the set in place of its engine model."""
        for latency, lengths, delay in itertools.product(
            self.latencies, self.lengths, self.delays_steps
        ):
            yield nominal.model_copy(
                update={
                    "latency": latency,
                    "lengths": lengths,
                    "timing": LoopTiming(delay_steps=delay),
                }
            )
