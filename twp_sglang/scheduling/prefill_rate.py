"""The rate at which waiting prompts are served, measured while somebody waits.

Only steps that left a request waiting count: they tell what the engine can do, while steps
of a calm engine tell what it was asked. Steps in which the gate stayed shut count as well,
because they serve no prompt either.

    rate = sum of prompt tokens / sum of step times,  both forgotten with exp(-t / MEMORY)
"""

from __future__ import annotations

from math import exp

MEMORY_MS = 10_000.0
"""Ten seconds: about the length of a burst, and some 200 steps."""

PRIOR_MS = 1_000.0
"""Weight of the model's own guess at start, as if it had been measured for a second."""

MEASURED_MIN_MS = 200.0
"""A handful of steps: fewer say more of the moment than of the rate."""


class PrefillRate:
    """Prompt tokens per ms under backlog."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._ms = 0.0

    def observe(self, step_ms: float, prefill_tokens: int) -> None:
        """Take one step that left somebody waiting."""
        keep = exp(-step_ms / MEMORY_MS)
        self._tokens = keep * self._tokens + prefill_tokens
        self._ms = keep * self._ms + step_ms

    def measured_tokens_per_ms(self) -> float | None:
        """The rate without a guess; None before :data:`MEASURED_MIN_MS` were measured, and
        while no prompt was served in them."""
        if self._ms < MEASURED_MIN_MS or self._tokens <= 0:
            return None
        return self._tokens / self._ms

    def tokens_per_ms(self, prior: float) -> float:
        """The rate; ``prior`` is the model's guess, tokens per ms, above 0."""
        return (self._tokens + PRIOR_MS * prior) / (self._ms + PRIOR_MS)
