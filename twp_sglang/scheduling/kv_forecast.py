"""Whether a prompt fits beside what the requests already in will still need.

Every request is taken to end after one fixed quantile of its remaining output, and to hold
its prompt and its output until then. With remaining outputs r_1 >= r_2 >= ... and h_j held
now, the pool is fullest just before some request ends:

    peak = max over k of  (h_1 + ... + h_k) + k r_k  + what belongs to nobody
    fits when  peak <= (1 - margin) capacity

Those with the most to come are counted first because they are still there when the others
have given back their memory. ``h`` counts a prompt whole from its admission on, so an input is
checked before its first chunk.
"""

from __future__ import annotations

import numpy as np

from twp_sglang.scheduling.active_rows import Tokens


class KvForecast:
    """Peak of KV-cache use, for requests that join one by one.

    Args:
        held: KV tokens of each active request, prompts counted whole.
        remaining: output tokens still to come of each.
        used: KV tokens in use or promised in the pool.
        capacity: of the pool.
        margin: share of the pool to stay free at the peak.
    """

    def __init__(
        self, held: Tokens, remaining: Tokens, used: int, capacity: int, margin: float
    ) -> None:
        self.limit = int((1.0 - margin) * capacity)
        total = int(held.sum())
        used = max(used, 0)
        # Shared prefixes: each gives back its part. What is left over belongs to nobody:
        # page rounding, and requests that end in this very pass.
        if total > used:
            held = (held * (used / total)).astype(np.int64)
            total = int(held.sum())
        self._nobodys = max(0, used - total)
        self._held = held
        self._remaining = remaining
        self._joined: list[tuple[int, int]] = []
        self.peak = self._nobodys
        """Predicted peak, or a bound on it since somebody joined."""
        self._settle()

    def fits(self, prompt_tokens: int, remaining_tokens: int) -> bool:
        """Whether one more request keeps the predicted peak within the limit."""
        # At worst it is at its fullest when the others are.
        if self.peak + prompt_tokens + remaining_tokens <= self.limit:
            return True
        if self._joined:
            self._settle()
        return self._with(prompt_tokens, remaining_tokens) <= self.limit

    def join(self, prompt_tokens: int, remaining_tokens: int) -> None:
        """Count a request in from now on."""
        self._joined.append((prompt_tokens, remaining_tokens))
        self.peak += prompt_tokens + remaining_tokens

    def _with(self, prompt_tokens: int, remaining_tokens: int) -> int:
        """The peak with one more request; the rows are in order."""
        place = int(np.searchsorted(-self._remaining, -remaining_tokens, side="left"))
        peak = remaining_tokens * (place + 1) + prompt_tokens
        if place:
            peak += int(self._cumulated[place - 1])
            peak = max(peak, int(self._levels[:place].max()))
        if place < self._levels.size:
            after = self._levels[place:] + self._remaining[place:]
            peak = max(peak, int(after.max()) + prompt_tokens)
        return peak + self._nobodys

    def _settle(self) -> None:
        """Put everybody in order and find the peak."""
        if self._joined:
            joined = np.array(self._joined, dtype=np.int64)
            self._held = np.concatenate((self._held, joined[:, 0]))
            self._remaining = np.concatenate((self._remaining, joined[:, 1]))
            self._joined = []
        order = np.argsort(-self._remaining, kind="stable")
        self._held, self._remaining = self._held[order], self._remaining[order]
        self._cumulated = np.cumsum(self._held)
        self._levels = self._cumulated + self._remaining * np.arange(1, order.size + 1)
        highest = int(self._levels.max()) if self._levels.size else 0
        self.peak = highest + self._nobodys
