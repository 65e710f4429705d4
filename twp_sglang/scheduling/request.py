"""What the scheduler knows of a request."""

from __future__ import annotations

from typing import Any


class RequestInfo:
    """One request in the queue or in the active set.

    Attributes:
        rid: the engine's name for it, for traces and logs only; decisions never read it.
        seq: order of arrival, unique, equal on all ranks.
        arrival_pass: scheduling pass in which it joined the queue.
        prompt_tokens: tokens of its prompt, for a retracted request those it had generated
            included.
        cached_tokens: those of them whose KV the engine's prefix cache holds, so that they need
            not be computed; changes by :meth:`Policy.recount` only while it waits.
        expected_tokens: output tokens still expected, r.
        max_new_tokens: its own limit of output tokens, produced ones included.
        produced_tokens: output tokens that it had when it joined.
        retractions: how often it lost its memory so far.
        preemptions: how often it made way for a higher priority so far.
        charged_tokens: of its output, what its client has been charged for.
        length_class: number that a policy files its output length under.
        priority: larger goes first; 0 where the engine has no priorities.
        retracted: it was running and lost its memory.
        arrival_ms: rank 0's clock when it joined, as all ranks know it; 0 where no policy
            reads it.
        handle: the engine's own object.
    """

    __slots__ = (
        "arrival_ms",
        "arrival_pass",
        "cached_tokens",
        "charged_tokens",
        "client",
        "expected_tokens",
        "handle",
        "itl_slo_ms",
        "length_class",
        "max_new_tokens",
        "preemptions",
        "priority",
        "produced_tokens",
        "prompt_tokens",
        "retracted",
        "retractions",
        "rid",
        "seq",
        "slot",
        "ttft_slo_ms",
    )

    def __init__(
        self,
        rid: str,
        seq: int,
        arrival_pass: int,
        prompt_tokens: int,
        expected_tokens: int,
        *,
        priority: int = 0,
        retracted: bool = False,
        handle: Any = None,
        arrival_ms: float = 0.0,
        client: str = "",
        itl_slo_ms: float | None = None,
        ttft_slo_ms: float | None = None,
        cached_tokens: int = 0,
        max_new_tokens: int | None = None,
        produced_tokens: int = 0,
        retractions: int = 0,
        preemptions: int = 0,
        charged_tokens: int = 0,
    ) -> None:
        self.rid = rid
        self.seq = seq
        self.arrival_pass = arrival_pass
        self.prompt_tokens = prompt_tokens
        self.expected_tokens = expected_tokens
        self.priority = priority
        self.retracted = retracted
        self.handle = handle
        self.arrival_ms = arrival_ms
        self.client = client
        self.itl_slo_ms = itl_slo_ms
        self.ttft_slo_ms = ttft_slo_ms
        self.cached_tokens = cached_tokens
        self.max_new_tokens = (
            produced_tokens + expected_tokens if max_new_tokens is None else max_new_tokens
        )
        self.produced_tokens = produced_tokens
        self.retractions = retractions
        self.preemptions = preemptions
        self.charged_tokens = charged_tokens
        self.length_class = 0
        self.slot = -1

    def __repr__(self) -> str:
        return (
            f"RequestInfo({self.rid!r}, seq={self.seq}, prompt={self.prompt_tokens}, "
            f"expected={self.expected_tokens}, since pass {self.arrival_pass}"
            f"{', retracted' if self.retracted else ''})"
        )
