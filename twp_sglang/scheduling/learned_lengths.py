"""Expected output lengths from what was learned, where the declared limits say too little."""

from __future__ import annotations

import numpy as np

from twp_sglang.scheduling.lengths import Counts
from twp_sglang.scheduling.lengths_online import OutputLengths

DECLARED_SHARE = 1.0
"""Until answers have reached a length, the declared limit stands, as without this source."""


class LearnedLengths:
    """Mean remaining output given what was produced, by the length of the prompt."""

    def __init__(self, law: OutputLengths) -> None:
        self.law = law

    def remaining(self, prompt_tokens: int, max_new_tokens: int, produced_tokens: int) -> int:
        """Expected remaining output tokens of one request, within its limit."""
        return self.total(
            *(np.array([count]) for count in (prompt_tokens, max_new_tokens, produced_tokens))
        )

    def total(self, prompt_tokens: Counts, max_new_tokens: Counts, produced_tokens: Counts) -> int:
        """Sum of :meth:`remaining` over requests."""
        expected = self.law.expected(prompt_tokens, max_new_tokens, produced_tokens, DECLARED_SHARE)
        return int(expected.sum())
