"""Where the remaining output length of a request comes from.

The paper takes the target length L_i as known. A server knows only the request's own
limit, which :class:`DeclaredLengths` uses; an estimator implements the same protocol.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

CLIP_TOKENS = 4096
"""SGLang clips ``max_new_tokens`` here when it reserves memory
(SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION); the load is counted the same way."""


class LengthSource(Protocol):
    """Estimates how many output tokens a request still has to come."""

    def remaining(self, prompt_tokens: int, max_new_tokens: int, produced_tokens: int) -> int:
        """Expected remaining output tokens, at least 0."""

    def total(self, prompt_tokens: Counts, max_new_tokens: Counts, produced_tokens: Counts) -> int:
        """Sum of :meth:`remaining` over requests; the three name them in the same order."""


class DeclaredLengths:
    """The request's own limit less what it has produced, clipped: never an underestimate
    below the clip."""

    def __init__(self, clip_tokens: int = CLIP_TOKENS) -> None:
        if clip_tokens < 1:
            raise ValueError(f"clip_tokens = {clip_tokens}: must be at least 1")
        self.clip_tokens = clip_tokens

    def remaining(self, prompt_tokens: int, max_new_tokens: int, produced_tokens: int) -> int:
        """min(max_new_tokens - produced, clip), floored at 0, in tokens."""
        left = max_new_tokens - produced_tokens
        if left <= 0:
            return 0
        return left if left < self.clip_tokens else self.clip_tokens

    def total(self, prompt_tokens: Counts, max_new_tokens: Counts, produced_tokens: Counts) -> int:
        """See :class:`LengthSource`."""
        left = max_new_tokens - produced_tokens
        np.maximum(left, 0, out=left)
        np.minimum(left, self.clip_tokens, out=left)
        return int(left.sum())
