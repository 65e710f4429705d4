"""How the simulated engine is set up: SGLang's own options, by their own meaning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from controllers.laws.base import FrozenModel

StepKind = Literal["prefill-first", "interval", "mixed"]


class EngineSettings(FrozenModel):
    """One engine. Field names follow SGLang's flags where there is one."""

    kv_tokens: int = Field(
        ge=1, description="KV-cache tokens of the pool; SGLang logs it as max_total_num_tokens"
    )
    page_size: int = Field(default=1, ge=1, description="tokens per KV page; SGLang's default")
    step_kind: StepKind = Field(
        default="prefill-first",
        description="prefill-first: waiting prompts before decoding (stock); interval: some "
        "decode steps after each prefill step; mixed: prompt chunks ride in decode steps",
    )
    prefill_decode_interval: int = Field(
        default=1,
        ge=1,
        description="decode steps after a prefill step when step_kind is interval; what the "
        "launcher sets on a CPU",
    )
    chunk_tokens: int | None = Field(
        default=8192,
        ge=1,
        description="prompt tokens per step (--chunked-prefill-size); none runs whole prompts; "
        "SGLang's own choice on an 80 GB GPU",
    )
    decode_chunk_tokens: int | None = Field(
        default=None,
        ge=1,
        description="C, the bound on prompt tokens per step while somebody decodes, under a "
        "policy that steers; chunk_tokens stays the bound otherwise. None leaves chunk_tokens",
    )
    max_prefill_tokens: int = Field(
        default=16384, ge=1, description="prompt tokens per prefill batch; SGLang's default"
    )
    max_running_requests: int = Field(
        default=2048,
        ge=1,
        description="rows of the running batch; SGLang's lower bound of its own choice, rarely "
        "reached before memory",
    )
    max_queued_requests: int | None = Field(
        default=None,
        ge=0,
        description="a request beyond this many waiting is refused (HTTP 503); none queues "
        "without bound, as stock",
    )
    overlap: bool = Field(
        default=True,
        description="schedule the next step while one runs (SGLang's default): decisions then "
        "see measurements one step late",
    )
    schedule_conservativeness: float = Field(
        default=1.0,
        gt=0,
        description="factor on the reserved share of outstanding output; SGLang's default",
    )
    ignore_eos: bool = Field(
        default=False,
        description="requests run to their limit by request (load generators ask for that): "
        "SGLang then reserves the whole limit instead of a share",
    )
    priority_preemption: bool = Field(
        default=False,
        description="a request of higher priority may take the place of a running one "
        "(--enable-priority-preemption)",
    )
    preemption_threshold: int = Field(
        default=10,
        ge=0,
        description="difference of priority that preemption needs; SGLang's default",
    )
    prefix_cache: bool = Field(
        default=True,
        description="keep the KV of finished requests until memory is wanted and reuse "
        "prefixes; matters only where the workload names prefixes",
    )

    @model_validator(mode="after")
    def _pool_holds_a_page(self) -> EngineSettings:
        if self.kv_tokens < self.page_size:
            raise ValueError(
                f"kv_tokens = {self.kv_tokens} is less than one page of {self.page_size} tokens: "
                "give the pool at least one page"
            )
        for name in ("chunk_tokens", "decode_chunk_tokens"):
            chunk = getattr(self, name)
            if chunk is not None and chunk % self.page_size:
                raise ValueError(
                    f"{name} = {chunk} is not a multiple of page_size = {self.page_size}: "
                    "SGLang ends chunks on pages, so give "
                    f"{-(-chunk // self.page_size) * self.page_size}"
                )
        return self
