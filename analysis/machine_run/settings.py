"""What a run on a machine was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from controllers.laws.base import FrozenModel

Platform = Literal["auto", "gpu", "cpu"]

DUMMY = "dummy:"
"""``dummy:SHAPE``: that shape with random weights."""


class RunSettings(FrozenModel):
    """One run of ``python -m analysis.flashinfer_run``."""

    model: str = Field(
        description="a model's folder or name, or dummy:SHAPE for random weights of a bundled shape"
    )
    out: Path = Field(description="folder for everything that is measured")
    minutes: float = Field(
        default=10.0, gt=0, description="time to plan for; what does not fit is left out and named"
    )
    resume: bool = Field(
        default=False, description="go on in --out; stages that finished are not repeated"
    )
    platform: Platform = Field(
        default="auto",
        description="gpu where there is one; cpu runs the engine on the reference platform",
    )
    attention_backend: str = Field(
        default="flashinfer", description="SGLang's --attention-backend on a GPU"
    )
    seed: int = Field(default=0, ge=0, description="of the workload and of the profiler")
    load: float = Field(
        default=0.5,
        gt=0,
        description="share of the engine that the traffic outside the burst asks for",
    )
    burst_factor: float = Field(
        default=4.0,
        gt=1,
        description="rate in the burst over the rate outside: the paper's evaluation has 4",
    )
    slo: str = Field(
        default="",
        description="objectives for goodput, for example ttft=2s,itl_p99=50ms; unset, none are "
        "judged",
    )
    engine_flags: tuple[str, ...] = Field(
        default=(), description="more flags for every server, after --"
    )

    @property
    def dummy(self) -> str | None:
        """The shape of a model of random weights; None for a real model."""
        return self.model.removeprefix(DUMMY) if self.model.startswith(DUMMY) else None
