"""One request of a workload: what a client submits, and how long the answer turns out."""

from __future__ import annotations

from typing import NamedTuple


class PrefixBlock(NamedTuple):
    """A stretch of prompt tokens that other requests may share.

    ``key`` stands for these tokens and everything before them: two requests with the same
    key have the same prompt up to the end of the block.
    """

    key: str
    tokens: int


class Request(NamedTuple):
    """One request.

    Attributes:
        arrival_s: seconds from the start of the workload.
        input_tokens: prompt length, at least 1.
        output_tokens: tokens that the model will produce, at least 1. The scheduler never
            sees this number.
        max_new_tokens: the client's own limit, which the scheduler does see; None where
            the client knew the length exactly.
        client: who sent it; empty where the source does not say.
        priority: larger goes first.
        prefix: leading blocks of the prompt, first to last; together at most
            ``input_tokens``.
        itl_slo_ms, ttft_slo_ms: objectives of its own, ms; None where the engine's hold.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    max_new_tokens: int | None = None
    client: str = ""
    priority: int = 0
    prefix: tuple[PrefixBlock, ...] = ()
    itl_slo_ms: float | None = None
    ttft_slo_ms: float | None = None
