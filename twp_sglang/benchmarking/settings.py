"""What one benchmark run is asked to do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from controllers.laws.base import FrozenModel
from twp_sglang.benchmarking.arrivals import ArrivalProcess, Burst, check_bursts
from twp_sglang.benchmarking.lengths import LengthDistribution, parse_lengths
from twp_sglang.latency_metrics import Slo

Api = Literal["sglang", "openai", "openai-chat"]
WorkloadName = Literal["gsm8k", "mixture", "random", "csv"]
Mixture = Literal["workloads", "section-vi"]
PromptKind = Literal["auto", "ids", "text"]

# The paper's section VI: prompts of the four workloads and outputs, and the prompt
# ranges of the 18 requests/s run, for which the text gives no output lengths.
MIXTURE_INPUT: dict[Mixture, str] = {
    "workloads": "50@.5,200@.3,800@.2",
    "section-vi": "30-80@.6,120-250@.3,350-512@.1",
}
MIXTURE_OUTPUT = "20@.5,50@.3,200@.2"

GSM8K_OUTPUT = "256"
"""An answer with its working is 100-200 tokens; this bounds one that runs away."""

RANDOM_INPUT, RANDOM_OUTPUT = "32-512", "16-128"
"""Wide enough to mix prefill sizes, short enough for a CPU engine."""


Rate = Annotated[float, Field(gt=0, allow_inf_nan=True)]
"""Requests per second; infinity sends all at once."""


class RunSettings(FrozenModel):
    """One run. Times in seconds, lengths in tokens, rate in requests per second."""

    url: str
    workload: WorkloadName
    json_path: Path
    api: Api = "sglang"
    model: str | None = None
    api_key_env: str | None = None
    label: str = ""
    png_path: Path | None = None

    trace: Path | None = None
    limit: int | None = None
    time_stretch: float = 1.0
    requests: int | None = None
    rate_rps: Rate | None = None
    arrivals: ArrivalProcess = "poisson"
    bursts: tuple[Burst, ...] = ()
    seed: int = 0
    mixture: Mixture = "workloads"
    input_tokens: LengthDistribution | None = None
    output_tokens: LengthDistribution | None = None

    prompts: PromptKind = "auto"
    tokenizer: str | None = None
    vocab_size: int | None = None
    temperature: float = 0.0
    ignore_eos: bool | None = None

    slos: tuple[Slo, ...] = ()
    warmup: int = 2
    timeout_s: float = 600.0
    concurrency_cap: int | None = None
    flush: bool = True

    @model_validator(mode="after")
    def _fields_fit_together(self) -> RunSettings:
        if self.workload == "csv":
            if self.trace is None:
                raise ValueError("--workload csv needs a trace; give it with --trace FILE")
            refused = {
                "--rate": self.rate_rps,
                "--burst": self.bursts,
                "--input-tokens": self.input_tokens,
                "--output-tokens": self.output_tokens,
            }
            for flag, value in refused.items():
                if value:
                    raise ValueError(
                        f"{flag} does not apply to --workload csv, whose trace sets times and "
                        "lengths; leave it out (--time-stretch changes the rate)"
                    )
            if self.requests is not None:
                raise ValueError(
                    "--requests does not apply to --workload csv; use --limit N for the first N"
                )
        else:
            for flag, given in (
                ("--trace", self.trace is not None),
                ("--limit", self.limit is not None),
                ("--time-stretch", self.time_stretch != 1.0),
            ):
                if given:
                    raise ValueError(f"{flag} applies to --workload csv only; leave it out")
            if self.requests is None:
                raise ValueError(f"--workload {self.workload} needs --requests N")
            if self.rate_rps is None:
                raise ValueError(
                    f"--workload {self.workload} needs --rate R, in requests per second "
                    "(inf sends all at once)"
                )
        if self.workload == "gsm8k" and self.input_tokens is not None:
            raise ValueError("--input-tokens does not apply to gsm8k, whose questions have lengths")
        if self.workload != "mixture" and self.mixture != "workloads":
            raise ValueError("--mixture applies to --workload mixture only; leave it out")
        if self.bursts and self.rate_rps == float("inf"):
            raise ValueError("--burst has no meaning with --rate inf; give a finite rate")
        if self.api == "openai-chat" and self.prompts == "ids":
            raise ValueError("--prompts ids: the chat API takes text only; use sglang or openai")
        check_bursts(self.bursts)
        return self

    @property
    def input_law(self) -> LengthDistribution | None:
        """Prompt lengths; None where the workload brings its own prompts."""
        if self.workload in ("gsm8k", "csv"):
            return None
        default = MIXTURE_INPUT[self.mixture] if self.workload == "mixture" else RANDOM_INPUT
        return self.input_tokens or parse_lengths(default)

    @property
    def output_law(self) -> LengthDistribution | None:
        """Output lengths; None where a trace gives them."""
        defaults = {"gsm8k": GSM8K_OUTPUT, "mixture": MIXTURE_OUTPUT, "random": RANDOM_OUTPUT}
        if self.workload == "csv":
            return None
        return self.output_tokens or parse_lengths(defaults[self.workload])

    @property
    def generates_to_length(self) -> bool:
        """Whether end-of-sequence is ignored, so that outputs have the planned lengths.

        Default: yes where lengths define the workload, no where real questions do.
        """
        return self.workload != "gsm8k" if self.ignore_eos is None else self.ignore_eos
