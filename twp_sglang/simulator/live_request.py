"""One request on its way through a simulated engine."""

from __future__ import annotations

from typing import Literal, NamedTuple

from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.workloads.request import Request

Status = Literal["waiting", "active", "completed", "refused", "failed"]


class Segment(NamedTuple):
    """Output between two interruptions: a first token, then one per decode launch."""

    first_token_ms: float
    begin: int
    """First decode launch, as an index into the engine's completion times."""
    end: int
    """Behind the last one."""


class LiveRequest:
    """A request's fixed facts and its state in the engine.

    Attributes:
        spec: the request as the workload has it.
        index: place in the workload; names it in results.
        arrival_ms: when the engine received it.
        max_new_tokens: limit that the scheduler sees.
        by_length: its last token is foreseen because it is the limit; otherwise the model
            ends the answer, which an overlapped engine notices one step late.
        fill_tokens: tokens to prefill in this stay: the prompt and what it had produced.
        computed_tokens: of these, how many hold KV.
        produced: output tokens known to the scheduler.
        before_stay: output tokens produced before this stay.
        carried_tokens: tokens whose KV was computed here before it was admitted (live
            migration).
        shared_tokens: of its KV, tokens in blocks that others may use.
        stay: number of times it was admitted; results of an earlier stay are void.
        first, end: its decode launches in this stay, first index and behind the last;
            ``first`` is -1 until it joined the running batch.
        first_token_ms: when the prefill of this stay was done; None before.
        segments: output so far, without the open one.
    """

    __slots__ = (
        "arrival_ms",
        "before_stay",
        "by_length",
        "carried_tokens",
        "computed_tokens",
        "end",
        "fill_tokens",
        "first",
        "first_token_ms",
        "index",
        "info",
        "locked_blocks",
        "max_new_tokens",
        "produced",
        "reason",
        "retractions",
        "segments",
        "shared_tokens",
        "shrinks_from",
        "spec",
        "status",
        "stay",
    )

    def __init__(self, spec: Request, index: int, arrival_ms: float) -> None:
        self.spec = spec
        self.index = index
        self.arrival_ms = arrival_ms
        limit = spec.max_new_tokens
        # A model cannot produce more than the limit lets it.
        self.max_new_tokens = spec.output_tokens if limit is None else limit
        self.by_length = spec.output_tokens >= self.max_new_tokens
        self.status: Status = "waiting"
        self.reason = ""
        self.info: RequestInfo | None = None
        self.fill_tokens = spec.input_tokens
        self.computed_tokens = 0
        self.carried_tokens = 0
        self.produced = 0
        self.before_stay = 0
        self.shared_tokens = 0
        self.locked_blocks = 0
        self.stay = 0
        self.retractions = 0
        self.first = -1
        self.end = -1
        self.shrinks_from = -1
        self.first_token_ms: float | None = None
        self.segments: list[Segment] = []

    @property
    def output_tokens(self) -> int:
        """Tokens that the answer will have."""
        return min(self.spec.output_tokens, self.max_new_tokens)

    @property
    def owed_tokens(self) -> int:
        """Prompt tokens that hold no KV yet."""
        return self.fill_tokens - self.computed_tokens

    def __repr__(self) -> str:
        return (
            f"LiveRequest({self.index}, {self.status}, {self.computed_tokens}/"
            f"{self.fill_tokens} prefilled, {self.produced}/{self.output_tokens} produced)"
        )
