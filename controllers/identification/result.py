"""What an identification found, with its uncertainty, and what it could not find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field

from controllers.identification.bootstrap import Profile
from controllers.identification.delay import DelayEstimate
from controllers.identification.length_law import LengthEstimate
from controllers.identification.samples import DecodeSamples
from controllers.identification.segmented import SegmentedFit
from controllers.laws.base import FrozenModel
from controllers.models import LatencyModel, LengthLaw, UncertaintySet

PARAMETERS: Final = (
    "l_min_ms",
    "b0",
    "alpha_ms",
    "kappa_ms_per_token",
    "prefill_ms_per_token",
    "a_ms",
)
"""Parameters of the step-time model, in the order of tables."""


class Estimate(FrozenModel):
    """A parameter with its 95 % interval; the intervals of one model hold jointly."""

    value: float
    lo: float
    hi: float


class Refusal(FrozenModel):
    """One thing that the data cannot carry, why, and which data would."""

    code: str = Field(description="short name for programs, for example 'knee-not-reached'")
    reason: str = Field(description="what is missing, in words")
    wanted: str = Field(description="which recording would supply it")

    def sentence(self) -> str:
        """Reason and mend as one line."""
        return f"{self.reason}. {self.wanted}."


class IdentificationSummary(FrozenModel):
    """Everything that fits in a table; the JSON answer of ``identify``.

    A parameter is None where the trace does not determine it.
    """

    trace: str
    engine: str = ""
    model: str = ""
    emulated: bool = False
    identifiable: bool = Field(description="whether a loop may be tuned on this model")
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = Field(default=(), description="what a reader should know")
    formula: str = Field(default="", description="terms that the data asked for")
    l_min_ms: Estimate | None = None
    b0: Estimate | None = None
    alpha_ms: Estimate | None = None
    kappa_ms_per_token: Estimate | None = None
    prefill_ms_per_token: Estimate | None = None
    a_ms: Estimate | None = None
    noise_percent: float | None = Field(
        default=None, description="scatter of a step's time about the model, % of it"
    )
    fit_percent: float | None = Field(default=None, description="held-out fit, %")
    held_out_error_percent: float | None = Field(
        default=None, description="held-out mean absolute error, % of the step time"
    )
    outlier_percent: float | None = Field(default=None, description="steps given no weight, %")
    residual_lag1: float | None = Field(default=None, description="lag-one autocorrelation")
    ljung_box_p: float | None = Field(
        default=None, description="p-value of residual whiteness, 20 lags"
    )
    batch_range: tuple[float, float] | None = Field(default=None, description="batches seen")
    steps: int = Field(default=0, description="steps in the trace")
    steps_used: int = Field(default=0, description="timed decode steps that were fitted")
    delay: DelayEstimate | None = None
    lengths: LengthEstimate | None = None

    def answer(self) -> dict[str, Any]:
        """JSON object for the command line."""
        data = self.model_dump(mode="json")
        if self.delay is not None:
            delays = self.delay.plausible_steps
            data["delay_steps"] = {
                "value": self.delay.delay_steps,
                "lo": min(delays),
                "hi": max(delays),
            }
        return data


@dataclass(frozen=True)
class Identification:
    """Summary plus the objects that tuning and reports work with.

    ``latency`` and ``bootstrap_latencies`` are None / empty unless the step-time model is
    identifiable; ``lengths`` and ``outer_lengths`` likewise for the length law.
    """

    summary: IdentificationSummary
    samples: DecodeSamples
    fit: SegmentedFit | None = None
    profile: Profile | None = None
    latency: LatencyModel | None = None
    bootstrap_latencies: tuple[LatencyModel, ...] = ()
    lengths: LengthLaw | None = None
    outer_lengths: tuple[LengthLaw, ...] = ()

    def uncertainty(self, models: int) -> UncertaintySet:
        """The ``models`` first bootstrap models x length laws x plausible delays.

        Raises:
            ValueError: the trace does not identify the loop; the message says why.
        """
        if self.latency is None or self.lengths is None or self.summary.delay is None:
            raise ValueError(" ".join(r.sentence() for r in self.summary.refusals))
        return UncertaintySet(
            latencies=(self.latency, *self.bootstrap_latencies[:models]),
            lengths=(self.lengths, *self.outer_lengths),
            delays_steps=self.summary.delay.plausible_steps,
        )
