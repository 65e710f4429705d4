"""The configuration: one frozen tree from which flags, files and docs are made.

Precedence, lowest first: defaults, profile (``--twp-profile``), file (``--twp-config``),
flags (``--twp-*``). Field names are those of the paper and of ``controllers``, so a file
written by ``python -m controllers tune`` is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from controllers.laws.base import FrozenModel
from controllers.laws.registry import law_entry
from controllers.models.latency import MIN_STEP_MS, LatencyModel
from twp_sglang.objective_values import SPELLINGS, Objective, checked, folded

PolicyName = Literal["off", "observe", "fcfs", "priority", "dynamic-batch", "twp", "slo"]
POLICY_NAMES: tuple[PolicyName, ...] = (
    "off",
    "observe",
    "fcfs",
    "priority",
    "dynamic-batch",
    "twp",
    "slo",
)

LawName = Literal["paper", "regulated", "gradient2", "vegas", "aimd", "fixed"]


_LARGEST = 2**53  # beyond it arithmetic loses tokens, overflows, or refuses the number


class TwpConfig(FrozenModel):
    """Everything that decides. Each default has its reason in the description."""

    policy: PolicyName = Field(
        default="slo",
        description="who decides admissions: slo holds itl_slo_ms and ttft_slo_ms by a model of "
        "the step, best in nearly every comparison (docs/results); twp is the paper's law; fcfs, "
        "priority (shortest prompt first) and dynamic-batch are its baselines; observe decides "
        "nothing and records what twp would have done; off registers no hook at all",
    )
    law: LawName = Field(
        default="paper", description="window law; paper is equations (3) and (4) to the letter"
    )

    # The window.
    gamma: float = Field(
        default=0.15, gt=0, le=1, description="window gain, equation (4); the paper's value"
    )
    beta: float = Field(
        default=0.25,
        gt=0,
        le=1,
        description="weight of the newest step in the ITL filter; the paper gives none: with "
        "gamma 0.15 it leaves a critical loop gain of 9.7 under overlapped scheduling",
    )
    h0_tokens: float | None = Field(
        default=None,
        gt=0,
        description="nominal window H0; unset, b0 times the mean expected output length of the "
        "requests seen (section V), starting from the paper's 400",
    )
    h_min_tokens: float | None = Field(
        default=None, gt=0, description="lower clamp of the window; unset, H0/4"
    )
    h_max_tokens: float | None = Field(
        default=None,
        gt=0,
        description="upper clamp of the window; unset, 2 H0 under law paper, 4 H0 under the others",
    )
    queue_ref: float = Field(
        default=16.0,
        gt=0,
        description="queue depth that counts as saturated, Q; the paper gives none: two batches "
        "of its B0",
    )
    l_min_ms: float | None = Field(
        default=None,
        ge=MIN_STEP_MS,
        description="baseline decode step time; unset, learned while serving from decode steps "
        "with b0/2 to b0 requests",
    )
    b0: int = Field(
        default=8, ge=1, description="saturation batch size B0; the paper's, calibrate gives yours"
    )
    alpha_ms: float | None = Field(
        default=None,
        ge=0,
        description="slope of the step time above b0, per request, beyond a_ms; read by policy slo "
        "and by the analysis, not by the paper's law",
    )
    sigma_ref: float = Field(
        default=1.1, gt=1, description="slowdown that law regulated holds (analysis: docs/control)"
    )
    k: float = Field(
        default=0.05, gt=0, le=1, description="integral gain of law regulated (docs/control)"
    )

    # The gate.
    chunk_tokens: int | None = Field(
        default=None,
        ge=1,
        description="prompt tokens per step C; unset, the paper's 64 on the CPU platform and 512 "
        "on an accelerator, where 64 per step cannot carry a production prefill load",
    )
    t_max_steps: int = Field(
        default=200,
        ge=1,
        description="passes a request may wait before it is forced in; about 9 s at the "
        "paper's 45 ms per step",
    )
    forced_per_step: int | None = Field(
        default=1,
        ge=1,
        description="forced admissions per step; 'none' is the paper's unlimited forcing, which "
        "can keep an overloaded engine overloaded for good, and lifts forced_tokens_per_step too",
    )
    forced_tokens_per_step: float | None = Field(
        default=8.0,
        gt=0,
        description="prompt tokens per step that forced admissions may take on average; an eighth "
        "of the paper's chunk. Simulated at 70 % load after a burst beyond the knee, 8 recovers "
        "and 128, or one request per step, never does; 'none' bounds only their number",
    )
    forced_burst_tokens: float = Field(
        default=2048.0,
        gt=0,
        description="prompt tokens that forcing saves up while nobody is forced; a handful of "
        "ordinary prompts, so that a short jam ends at once",
    )
    kv_headroom_min: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="share of the KV cache an admission leaves free while memory is stable; one "
        "SGLang page-allocation burst of 64 requests stays well below it",
    )
    kv_headroom_max: float = Field(
        default=0.30,
        ge=0,
        lt=1,
        description="upper bound of that share while memory depletes; above it prompts of "
        "ordinary length would starve",
    )
    kv_horizon_steps: int = Field(
        default=32,
        ge=1,
        description="steps of depletion at the present rate that the headroom must cover; about "
        "the length of a chat turn's first paragraph",
    )
    kv_relax: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="share of the way back to its target that the headroom relaxes per step: "
        "tightening is at once, relaxing takes about 20 steps",
    )

    # Overload.
    queue_max_requests: int | None = Field(
        default=100_000,
        ge=1,
        description="policies twp and slo: a request that finds so many waiting is refused (HTTP "
        "429 with Retry-After); far more than anybody waits for, so that offline batches pass: it "
        "only keeps a runaway client from filling the host. For interactive use set refuse_ttft_ms",
    )
    queue_max_prompt_tokens: int | None = Field(
        default=67_108_864,
        ge=1,
        description="policies twp and slo: a request is refused where the prompt tokens that wait "
        "would become more; 64 Mi token ids take half a GiB in every scheduler process",
    )
    refuse_ttft_ms: float | None = Field(
        default=None,
        gt=0,
        description="policies twp and slo: a request is refused where its first token is predicted "
        "to come later than this, and later than an objective of its own; unset, nobody is: stock "
        "SGLang serves late rather than not at all, and who swaps the launch command expects that",
    )
    oversized: Literal["clip", "refuse"] = Field(
        default="clip",
        description="a request that asks for more output than the KV cache can ever hold beside "
        "its prompt: clip it to what fits, as stock SGLang does without a word, or refuse it with "
        "HTTP 400 and the reason. Prompts that do not fit are refused in any case",
    )

    # Ranking.
    w_starvation: float = Field(default=0.6, gt=0, description="weight w1 of waiting time")
    w_balance: float = Field(
        default=0.3,
        gt=0,
        description="weight w2 of equation (5); the order w1 > w2 > w3 is the "
        "paper's, the values only have to keep it",
    )
    w_fairness: float = Field(
        default=0.1, gt=0, description="weight w3 of waiting time per job size"
    )

    # Measurement.
    warmup_steps: int = Field(
        default=8,
        ge=0,
        description="first steps after start whose times do not count: caches, allocators and "
        "kernel selection settle",
    )
    itl_target_ms: float = Field(
        default=100.0,
        gt=0,
        description="static target of policy dynamic-batch; twice the paper's ITL, for want of "
        "one in the text",
    )

    # Policy slo.
    itl_slo_ms: Objective = Field(
        default=50.0,
        description="policy slo: longest step, ms, or auto; 20 tokens per second, faster than "
        "people read. The same with its unit: itl_slo = 50ms",
    )
    ttft_slo_ms: Objective = Field(
        default=2000.0,
        description="policy slo: longest time to first token, ms, or auto; a usual objective of "
        "chat. The same with its unit: ttft_slo = 2s",
    )
    itl_delivery_ms: float = Field(
        default=10.0,
        ge=0,
        description="policy slo: part of the ITL objective left to what follows the step, a fifth "
        "of it at most; on two cores detokenizer, HTTP and client add 6 ms to the P99 of all gaps",
    )
    itl_auto_multiple: float = Field(
        default=5.0,
        gt=1,
        description="policy slo: itl_slo auto is this many baseline decode steps of the machine; "
        "5 is the strict objective of Sarathi-Serve (OSDI 2024)",
    )
    ttft_auto_multiple: float = Field(
        default=25.0,
        gt=1,
        description="policy slo: ttft_slo auto is this many times what an idle machine needs for "
        "the first token of a prompt of 1,024 tokens; a burst of 25 such prompts is then served "
        "in time, one after the other",
    )
    c_ms: float | None = Field(
        default=None,
        gt=0,
        description="policy slo: constant of the step time, before rows, KV and prompt tokens, ms; "
        "unset, l_min_ms, from which it differs where a small batch already makes the step longer",
    )
    a_ms: float | None = Field(
        default=None,
        ge=0,
        description="policy slo: slope of the step time at every batch size, ms per request; "
        "unset, 0 where the model is given",
    )
    kappa_ms_per_token: float | None = Field(
        default=None,
        ge=0,
        description="policy slo: step time per KV-cache token read, ms; unset, 0 where the model "
        "is given",
    )
    prefill_ms_per_token: float | None = Field(
        default=None,
        ge=0,
        description="policy slo: step time per prompt token, ms; the model is given where this "
        "and c_ms or l_min_ms are, and learned while serving otherwise",
    )
    prefill_free_tokens: float = Field(
        default=0.0,
        ge=0,
        description="policy slo: prompt tokens per step that cost nothing, because the step reads "
        "weights meanwhile; 0 is the cautious side",
    )
    graph_ceiling_rows: int | None = Field(
        default=None,
        ge=1,
        description="policy slo: largest batch with captured CUDA graphs; beyond it steps jump, so "
        "the batch goes there only where that makes more tokens per second. Unset, the server "
        "asks its engine; without a profile a jump is also learned",
    )
    late_after_ms: float = Field(
        default=30_000.0,
        gt=0,
        description="policy slo: waiting time from which a request that missed its TTFT may go "
        "first; half the patience of usual client time limits of a minute",
    )
    late_share: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="policy slo: share of the prompt tokens that requests gone first for their age "
        "may take; without a bound they cost the others 4 to 9 points of goodput",
    )
    kv_margin: float = Field(
        default=0.04,
        ge=0,
        lt=1,
        description="policy slo: share of the KV cache kept free at the predicted peak; the error "
        "of the forecast",
    )
    kv_quantile: float = Field(
        default=0.65,
        gt=0,
        lt=1,
        description="policy slo: quantile of the remaining output, learned from the answers that "
        "ended, with which memory is forecast; the mean of a geometric law is its 0.63 quantile, "
        "so sums over many requests come out right and a little over",
    )
    length_source: Literal["declared", "learned"] = Field(
        default="declared",
        description="policy twp: where expected output lengths come from; declared, each request's "
        "own limit, because the paper takes lengths as given; learned, the mean of the answers "
        "that ended, for clients that declare far more than comes",
    )
    client_fairness: Literal["on", "off"] = Field(
        default="on",
        description="policy slo: clients that requests name take turns by the tokens they were "
        "served, among requests of equal priority and chance to be in time; on, because who names "
        "clients wants one of them not to starve the others, and without names nothing changes",
    )
    evidence: dict[str, Any] | None = Field(
        default=None, description="where the values come from; written by tune, not read"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, data: Any) -> Any:
        return folded(data) if isinstance(data, Mapping) else data

    @field_validator("*", mode="before")
    @classmethod
    def _no_lookalikes(cls, value: Any, info: ValidationInfo) -> Any:
        # Pydantic would take true as 1 and "0.15" as 0.15; in a file both are mistakes.
        name = info.field_name or ""
        if name in ("policy", "law", "oversized", "client_fairness", "length_source", "evidence"):
            return value
        if name in SPELLINGS.values():
            return checked(name, value)
        if isinstance(value, bool | str):
            raise ValueError("must be a number, not text or true and false")
        if isinstance(value, int | float) and _LARGEST < abs(value) < inf:
            raise ValueError(f"must be at most {_LARGEST:,}")
        return value

    def step_model(self) -> LatencyModel | None:
        """The calibrated step model, where the configuration holds one: constant and cost of
        a prompt token at least."""
        constant = self.l_min_ms if self.c_ms is None else self.c_ms
        if constant is None or self.prefill_ms_per_token is None:
            return None
        return LatencyModel(
            l_min_ms=constant,
            b0=float(self.b0),
            alpha_ms=self.alpha_ms or 0.0,
            a_ms=self.a_ms or 0.0,
            kappa_ms_per_token=self.kappa_ms_per_token or 0.0,
            prefill_ms_per_token=self.prefill_ms_per_token,
        )

    @model_validator(mode="after")
    def _orders(self) -> TwpConfig:
        if not self.w_starvation > self.w_balance > self.w_fairness:
            raise ValueError(
                f"w_starvation = {self.w_starvation:g}, w_balance = {self.w_balance:g}, "
                f"w_fairness = {self.w_fairness:g}: must be strictly descending "
                "(the paper's w1 > w2 > w3), for example 0.6, 0.3, 0.1"
            )
        if self.kv_headroom_min > self.kv_headroom_max:
            raise ValueError(
                f"kv_headroom_min = {self.kv_headroom_min:g} is above kv_headroom_max = "
                f"{self.kv_headroom_max:g}: lower the first or raise the second"
            )
        low, high, h0 = self.h_min_tokens, self.h_max_tokens, self.h0_tokens
        if h0 is not None:
            # The law knows what it takes for a clamp that is unset.
            clamps = {"h0_tokens": h0, "h_min_tokens": low, "h_max_tokens": high}
            try:
                law_entry(self.law).config.model_validate(clamps)
            except ValidationError as error:
                reason = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise ValueError(reason) from None
        elif low is not None and high is not None and low > high:
            raise ValueError(
                f"h_min_tokens = {low:g} is above h_max_tokens = {high:g}: lower h_min_tokens "
                "or raise h_max_tokens"
            )
        try:
            self.step_model()
        except ValidationError as error:
            first = error.errors()[0]
            given = "c_ms" if first["loc"] == ("l_min_ms",) and self.c_ms else first["loc"][0]
            raise ValueError(
                f"the step model cannot be used: {given} = {first['input']:g}: {first['msg']}"
            ) from None
        return self
