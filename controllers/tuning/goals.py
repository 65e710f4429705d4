"""What a tuned loop must hold, and what it costs not to be asked."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from controllers.laws.base import FrozenModel
from controllers.margins import DISK_MARGIN_GOAL


class TuningGoals(FrozenModel):
    """Constraints of the tuning. The objective is decode bandwidth, then speed."""

    law: Literal["paper", "regulated"] = Field(
        default="paper", description="window law; the two whose gain can be tuned on sigma"
    )
    disk_margin: float = Field(
        default=DISK_MARGIN_GOAL,
        gt=0,
        lt=2,
        description="smallest balanced disk margin over the uncertainty; about 6 dB and 37 "
        "degrees at once",
    )
    slo_sigma: float = Field(
        default=1.5,
        gt=1,
        description="largest slowdown at rest; half a step more than unloaded is what readers "
        "of streamed text hardly notice, state your own",
    )
    slo_ms: float | None = Field(
        default=None, gt=0, description="the same as a decode step time, ms; goes before slo_sigma"
    )
    batch_max: int | None = Field(
        default=None,
        ge=1,
        le=65_536,  # above any server's batch; the clamp's convolution grows with it
        description="batch not to be exceeded; default the largest the trace has seen, because "
        "nothing is known beyond it",
    )
    exceed_probability: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="bound of P(B > batch_max) with the window at H_max; one step in a hundred "
        "is what a P99 of the inter-token latency forgives",
    )
    window_jitter: float = Field(
        default=0.02,
        gt=0,
        lt=1,
        description="largest standard deviation of H over H that step noise may cause; below "
        "the share of one request in a window of fifty",
    )
    models: int = Field(
        default=24,
        ge=1,
        le=500,
        description="bootstrap models beside the estimate; the worst of 24 is beyond the 95th "
        "percentile with probability 0.7, and joint intervals are wide already",
    )
    queue_ref: float | None = Field(
        default=None,
        gt=0,
        description="queue depth that counts as saturated; default two batches at the knee",
    )
    sigma_ref: float | None = Field(
        default=None, gt=1, description="slowdown that law regulated holds; default derived"
    )
