"""What one soak is asked to do."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from controllers.laws.base import FrozenModel


class Mix(FrozenModel):
    """Shares of what is sent, by weight; every default has its reason beside it."""

    serve: float = Field(default=0.66, ge=0, description="requests that want their whole answer")
    leave_streaming: float = Field(
        default=0.09, ge=0, description="the client goes in the middle of its stream, as when a "
        "browser tab closes"
    )  # fmt: skip
    leave_waiting: float = Field(
        default=0.04, ge=0, description="the client goes before its reply, as on a time limit"
    )
    abort: float = Field(
        default=0.09, ge=0, description="/abort_request while it waits, prefills or decodes"
    )
    malformed: float = Field(default=0.08, ge=0, description="a body that must be refused")
    too_long: float = Field(
        default=0.04, ge=0, description="a prompt beyond the context, to be refused"
    )

    @model_validator(mode="after")
    def _some(self) -> Mix:
        if sum(self.model_dump().values()) <= 0:
            raise ValueError("all weights are 0: leave at least one above")
        return self


class SoakSettings(FrozenModel):
    """One soak. Units are in the names; rates in requests per second."""

    url: str
    minutes: float = Field(default=30.0, gt=0)
    seed: int = 0
    mix: Mix = Mix()
    rate_rps: float | None = Field(
        default=None, gt=0, description="what the server can carry; unset, measured at the start"
    )
    measure_s: float = Field(
        default=15.0, gt=0, description="how long that is measured; some batches of answers"
    )
    measure_clients: int = Field(
        default=16,
        ge=1,
        description="requests kept in flight meanwhile: two of the paper's batches",
    )
    base_load: float = Field(
        default=0.3, gt=0, description="share of that rate between bursts: the engine idles now "
        "and then, and only an idle engine checks its pools"
    )  # fmt: skip
    burst_load: float = Field(
        default=2.5,
        gt=0,
        description="share of that rate in a burst: above 1, so that a queue builds",
    )
    burst_s: float = Field(default=4.0, gt=0)
    burst_every_s: float = Field(
        default=30.0, gt=0, description="with the two above the mean load stays near 0.6"
    )
    longest_prompt_tokens: int = Field(
        default=600, ge=4, description="several chunks of the CPU platform's 64"
    )
    longest_output_tokens: int = Field(
        default=160, ge=4, description="long enough to be left and aborted in the middle"
    )
    vocabulary: int = Field(
        default=250, ge=8, description="token ids sent are below this: SGLang's scheduler dies of "
        "ids beyond the model's"
    )  # fmt: skip
    changes: bool = Field(
        default=True,
        description="change the configuration while serving, where the server lets one",
    )
    reply_bound_s: float = Field(
        default=300.0, gt=0, description="a request without its end after that is lost; bursts on "
        "a busy machine take a minute"
    )  # fmt: skip
    poll_s: float = Field(default=1.0, gt=0, description="how often server and processes are read")
    settle_s: float = Field(
        default=4.0,
        ge=0,
        description="rest after the last reply: sockets close, traces are written",
    )
    warm_up_share: float = Field(
        default=0.25, ge=0, lt=1, description="first share of the run whose memory does not count: "
        "caches and allocator arenas fill"
    )  # fmt: skip
    memory_growth_mib: float = Field(
        default=128.0,
        gt=0,
        description="largest growth of one process over the rest of the run; stock SGLang's HTTP "
        "process alone grows by 7 to 9 KiB per request (docs/soak.md)",
    )
    handle_growth: int = Field(
        default=16, ge=0, description="file handles a process may hold more at the end than before "
        "the load: some pools are opened late"
    )  # fmt: skip
    api_key: str | None = None
    launcher_pid: int | None = None
    json_path: Path | None = None

    @model_validator(mode="after")
    def _consistent(self) -> SoakSettings:
        if self.burst_s >= self.burst_every_s:
            raise ValueError(
                f"burst_s = {self.burst_s:g} is not below burst_every_s = {self.burst_every_s:g}: "
                "the bursts would never end; lower the first"
            )
        return self
