"""What a calibration is asked to do."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from controllers.laws.base import FrozenModel
from controllers.models import LengthLaw

SourceChoice = Literal["auto", "trace", "stream"]
H0Rule = Literal["paper", "safe"]

MIN_BATCH_SIZES = 4
"""A knee needs one size below it and two above, and a line to compare with."""


class CalibrationSettings(FrozenModel):
    """One calibration. Each default has its reason in the description."""

    url: str | None = Field(default=None, description="running server; None when one is launched")
    launch: tuple[str, ...] | None = Field(
        default=None, description="flags of python -m twp_sglang.launch_server"
    )
    out: Path = Field(default=Path("profile.json"), description="the profile")
    png: Path | None = Field(default=None, description="the picture; None draws none")
    batches: tuple[int, ...] | None = Field(
        default=None, description="batch sizes; unset, half octaves up to max_batch"
    )
    max_batch: int | None = Field(
        default=None,
        ge=MIN_BATCH_SIZES,
        description="largest batch of the default sizes; unset, 32 on a CPU and 128 on an "
        "accelerator, four to sixteen times the knees seen on them, less where the KV cache "
        "or the server's limits hold fewer",
    )
    contexts: tuple[int, ...] | None = Field(
        default=None,
        description="prompt tokens of the held requests, every one at every batch size; unset, "
        "64 at all of them and 512 at three, which tells the cost of a KV token from that of a "
        "request and keeps the run short",
    )
    prefill: tuple[int, ...] | None = Field(
        default=None,
        description="prompt lengths of the prefill probes; unset, 1/4 to 4 chunks; empty, none",
    )
    steps: int = Field(
        default=32,
        ge=8,
        description="decode steps measured per point; their median is then known to about a "
        "quarter of the scatter of one step",
    )
    settle_steps: int = Field(
        default=4, ge=0, description="steps left out after the last prefill: pipelines refill"
    )
    rounds: int = Field(
        default=3,
        ge=1,
        description="times every point is visited, in shuffled order, so that drift of the "
        "machine shows as scatter and not as a knee",
    )
    budget_s: float = Field(
        default=300.0, gt=0, description="no point is started that would end later than this"
    )
    source: SourceChoice = Field(
        default="auto",
        description="where step times come from; auto takes the server's step trace where it "
        "writes one that is readable here, because only it knows each step's batch",
    )
    mean_output_tokens: float | None = Field(
        default=None, gt=0, description="mean output length for H0; unset, H0 is left unset"
    )
    output_lengths: LengthLaw | None = Field(
        default=None, description="law of output lengths, in place of their mean alone"
    )
    h0_rule: H0Rule = Field(
        default="paper", description="which H0 the profile hands on; the paper's by default"
    )
    min_scaling: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="without a knee, b0 is the batch up to which x % more requests bring at "
        "least this share of x % more tokens/s; half is where l = c + a B doubles its floor",
    )
    allow_busy: bool = Field(default=False, description="go on beside somebody else's requests")
    timeout_s: float = Field(
        default=120.0, gt=0, description="for one point; a hung server ends the run"
    )
    start_timeout_s: float = Field(
        default=600.0, gt=0, description="for a launched server: large models load slowly"
    )
    seed: int = Field(default=0, ge=0, description="order of the points and the bootstrap")
    api_key_env: str | None = Field(
        default=None, description="environment variable with the server's API key"
    )

    @model_validator(mode="after")
    def _consistent(self) -> CalibrationSettings:
        if (self.url is None) == (self.launch is None):
            raise ValueError(
                "give either --url of a running server or --launch -- FLAGS to start one"
            )
        if self.batches is not None and len(set(self.batches)) < MIN_BATCH_SIZES:
            raise ValueError(
                f"--batches {','.join(map(str, self.batches))}: a knee cannot be seen in fewer "
                f"than {MIN_BATCH_SIZES} different batch sizes; give more, for example 1,2,4,8,16"
            )
        if self.batches is not None and self.max_batch is not None:
            raise ValueError("--batches and --max-batch: give one of the two")
        for name in ("batches", "contexts", "prefill"):
            if any(value < 1 for value in getattr(self, name) or ()):
                raise ValueError(f"--{name}: every value must be at least 1")
        if self.contexts == ():
            raise ValueError("--contexts: give at least one prompt length")
        if self.mean_output_tokens is not None and self.output_lengths is not None:
            raise ValueError("--mean-output-tokens and --output-lengths: give one of the two")
        if self.mean_output_tokens is not None and self.mean_output_tokens < 1:
            raise ValueError("--mean-output-tokens: every request makes a token; give 1 or more")
        return self

    @property
    def mean_length(self) -> float | None:
        """Mean output length in tokens, if anything is known of it."""
        if self.output_lengths is not None:
            return self.output_lengths.mean
        return self.mean_output_tokens
