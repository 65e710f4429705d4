"""The token load K: remaining output tokens of all active requests (Definition 2)."""

from __future__ import annotations

from typing import NamedTuple


class ActiveLoad(NamedTuple):
    """K and B over the active set: running, chunked and just-admitted requests."""

    load_tokens: int
    batch: int

    @property
    def mean_remaining_tokens(self) -> float:
        """r-bar of equation (5); 0 when nobody is active."""
        return self.load_tokens / self.batch if self.batch else 0.0

    def plus(self, expected_tokens: int) -> ActiveLoad:
        """The load after one more admission."""
        return ActiveLoad(self.load_tokens + expected_tokens, self.batch + 1)
