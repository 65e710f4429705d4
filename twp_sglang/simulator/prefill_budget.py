"""What one prefill batch may take: SGLang's ``PrefillAdder`` for a plain KV pool.

A request is let in when its prompt, its whole outstanding output and a page fit into what
is free less what the batch and the running requests are expected to need; of the output
still to come of running requests only a share is reserved, the new-token ratio.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from twp_sglang.scheduling.lengths import CLIP_TOKENS
from twp_sglang.simulator.kv_pool import KvPool

Verdict = Literal["no-token", "other"]
"""Why a request was not taken: no memory, or the budget of the step."""


class Extend(NamedTuple):
    """Prompt tokens to compute in this step, and whether more will follow."""

    tokens: int
    chunked: bool


class NewTokenRatio:
    """Share of the outstanding output that is reserved.

    It starts at 0.7 times the conservativeness, falls to 14 % of that over 600 decode
    steps, and after a retraction starts again from the share that running requests have
    used, plus 20 tokens each (SGLang's defaults).
    """

    def __init__(self, conservativeness: float) -> None:
        self._init = min(0.7 * conservativeness, 1.0)
        self._floor = min(self._init * 0.14, 1.0)
        self._decay = (self._init - self._floor) / 600
        self._from = self._init
        self.decayed_steps = 0

    @property
    def current(self) -> float:
        """The share, at most 1."""
        return self.after(0)

    def after(self, decode_steps: int) -> float:
        """The share that many decode steps later."""
        return max(self._from - self._decay * (self.decayed_steps + decode_steps), self._floor)

    def after_retraction(self, produced_tokens: int, limit_tokens: int, requests: int) -> None:
        """Start again from what the remaining requests have used."""
        self._from = min(1.0, (produced_tokens + 20 * requests) / (limit_tokens + 1))
        self.decayed_steps = 0

    def idle(self) -> None:
        """An idle engine forgets."""
        self._from = self._init
        self.decayed_steps = 0


class PrefillBudget:
    """Memory and prompt tokens left for one prefill batch."""

    def __init__(
        self,
        pool: KvPool,
        reserved_tokens: float,
        mixed_rows: int,
        max_prefill_tokens: int,
        chunk_tokens: int | None,
    ) -> None:
        self._pool = pool
        self._total = reserved_tokens + mixed_rows
        self._now = float(mixed_rows)
        self._input = max_prefill_tokens - mixed_rows
        self._chunk = chunk_tokens
        self._taken = 0

    @property
    def free_tokens(self) -> float:
        """Free less everything expected."""
        return self._pool.free_tokens - self._total

    def spent(self) -> bool:
        """Whether the step holds no further prompt token."""
        return self._input <= 0 or (self._chunk is not None and self._chunk <= 0)

    def exhausted(self) -> bool:
        """Whether memory holds no further request."""
        return self.free_tokens <= 0 or self._pool.free_tokens - self._now <= 0

    def charge(self, tokens: float) -> None:
        """Expect ``tokens`` more to be needed; negative ones when a running request left."""
        self._total += tokens

    def next_chunk(self, owed_tokens: int, limit_tokens: int) -> Extend | None:
        """The next part of a prompt that is under way; None when the step has no room."""
        chunk = self._chunk
        if chunk is None:
            chunk = owed_tokens
        available = min(chunk, int(self.free_tokens))
        # A prompt under way must move on, or it would hold its memory for ever.
        if available <= 0:
            available = chunk
        page = self._pool.page_size
        tokens = min(owed_tokens, available)
        if self._pool.ceil(tokens) > self._pool.free_tokens:
            # SGLang's allocator would fail here; wait for pages instead.
            tokens = self._pool.free_tokens // page * page
        if tokens <= 0:
            return None
        chunked = tokens < owed_tokens
        self._reserve(tokens, 0 if chunked else min(limit_tokens, CLIP_TOKENS))
        return Extend(tokens, chunked)

    def take(
        self, owed_tokens: int, hit_tokens: int, outstanding_tokens: int, limit_tokens: int
    ) -> Extend | Verdict:
        """Try a waiting request.

        Args:
            owed_tokens: prompt tokens to compute.
            hit_tokens: prompt tokens before them whose KV is there.
            outstanding_tokens: output it may still produce.
            limit_tokens: its limit from the start.
        """
        pool = self._pool
        total = owed_tokens + min(outstanding_tokens, CLIP_TOKENS) + pool.page_size
        if total >= self.free_tokens:
            return "no-token"
        paged = pool.ceil(owed_tokens)
        if self._chunk is None:
            # Whole prompts: the first of a batch may exceed the step's budget.
            if self._taken and paged >= self._input:
                return "other"
        elif paged > self._chunk:
            page = pool.page_size
            tokens = self._chunk // page * page
            tokens = (hit_tokens + tokens) // page * page - hit_tokens
            if tokens <= 0:
                return "other"
            self._reserve(tokens, 0)
            return Extend(tokens, True)
        self._reserve(owed_tokens, min(limit_tokens, CLIP_TOKENS))
        return Extend(owed_tokens, False)

    def _reserve(self, tokens: int, output_tokens: int) -> None:
        paged = self._pool.ceil(tokens)
        self._total += paged + self._pool.page_size + output_tokens
        self._now += paged + self._pool.page_size
        self._input -= paged
        if self._chunk is not None:
            self._chunk -= paged
        self._taken += 1
