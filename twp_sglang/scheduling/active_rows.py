"""The active requests one by one, for policies that look beyond sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twp_sglang.scheduling.request import RequestInfo

Tokens = NDArray[np.int64]


class ActiveRows(NamedTuple):
    """Running and chunked requests; the arrays have one entry each, in the same order.

    ``requests`` is the same object as long as nobody joined or left, so that what is derived
    from it can be kept; an entry is None where the scheduler did not see it arrive.
    """

    requests: Sequence[RequestInfo | None]
    prompt_tokens: Tokens
    """Prompt tokens as they came, without what was produced."""
    max_new_tokens: Tokens
    """Each request's own limit."""
    produced_tokens: Tokens
    """Output tokens known to the scheduler."""
    new_token_ratio: float = 1.0
    """Share of the outstanding output that the engine itself reserves, 0 to 1: what it
    believes as long as nothing has been learned."""

    @property
    def held_tokens(self) -> Tokens:
        """KV tokens of each once its prompt is computed."""
        held: Tokens = self.prompt_tokens + self.produced_tokens
        return held


RowsReader = Callable[[], ActiveRows]
"""Reads the rows as they are at the start of a pass; a pass that does not ask pays nothing."""


def nobody() -> ActiveRows:
    """No active request."""
    none = np.zeros(0, dtype=np.int64)
    return ActiveRows((), none, none, none)
