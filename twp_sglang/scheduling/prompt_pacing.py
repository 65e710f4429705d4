"""How many prompt tokens a step should carry, of those the objective allows.

A step costs c whatever it carries, and its first ``free`` prompt tokens nothing (weights are
being read meanwhile). Served in chunks of n >= free a prompt token costs

    p + (c - p free)/n    ms of engine time, beside its decoding rows

so where c <= p free, larger chunks gain nothing, and otherwise the gain is below OVERHEAD
from ``(c - p free)/(OVERHEAD p)`` tokens on. Larger chunks then only lengthen the steps, and
they empty the queue at once, so that the steps after them carry no prompt and waste what is
free. Where prompts are most of the load, or memory bounds the rows, that waste is the
difference between keeping up and not.

While most steps of the last minute were mostly empty nothing can be wasted: whoever waits is
then taken at once if one step holds them all, and a burst is met with the largest chunks
where these bring prompts in markedly faster, which is where decoding takes most of a small
step. What that costs the decoding rows is within their objective. Not where rows or memory have
kept somebody out lately: prompts then come in as rows end, not as fast as they are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

OVERHEAD = 0.05
"""Part of a prompt token's own cost that its share of the step may add."""

EVEN_MIN_TOKENS = 32
"""The least chunk of the law: far too small a constant would make the even one nothing."""

LIGHT = 0.5
"""Below this part of the even chunk per step, on average, the engine has steps to spare."""

WEIGHT = 0.0005
"""Memory of that average: 2,000 steps, half a minute or so; a burst of some seconds does not fill
it, a load that lasts does."""

CROWDED_MS = 10_000.0
"""How long that is held against larger chunks: as long as the memory of the prompt rate."""

FASTER = 1.1
"""Prompt rate of the largest chunk over that of the even one, from which a burst is worth longer
steps."""


WIDENS = 1.0005
"""Doubles in 1,400 steps: an objective at the P99 of an answer bears no step in fifty above."""

MARGIN = 0.75
"""Chunks that would just have kept it would miss it half of the time."""

BOUND_MIN_TOKENS = 512
"""The usual token budget of chunked prefill; below it the model and its margin decide."""

PAUSE = 4.0
"""Steps so many times too long are pauses."""


RETEST_STEPS = 512
"""Steps without a chunk of twice the even one after which the next is as large as the objective
allows: a prompt cost that is thought too high makes the even chunk small, and no step would ever
show it. Once in 512 such a chunk wastes next to nothing."""


class PromptPacing:
    """Keeps the average of prompt tokens per step and picks the chunk."""

    def __init__(self) -> None:
        self.prompts_per_step = 0.0
        self._crowded_until_ms = -inf
        self._untested_steps = 0

    def crowded(self, now_ms: float) -> None:
        """Rows or memory keep somebody out."""
        self._crowded_until_ms = now_ms + CROWDED_MS

    def observe(self, prefill_tokens: int, even: float) -> None:
        """Take one step, planned with this even chunk."""
        tested = prefill_tokens >= 2.0 * even
        self._untested_steps = 0 if tested else self._untested_steps + 1
        self.prompts_per_step += WEIGHT * (prefill_tokens - self.prompts_per_step)

    def chunk_tokens(
        self,
        allowed: int,
        waiting_tokens: int,
        even: float,
        step_ms: Callable[[int], float],
        now_ms: float,
    ) -> int:
        """Prompt tokens of the next step, at most ``allowed`` (by the objective).

        Args:
            allowed: at least 1.
            waiting_tokens: of everybody who waits and of prompts under way.
            even: from :func:`even_chunk`.
            step_ms: predicted step with so many prompt tokens, above 0.
            now_ms: the time.
        """
        if even >= allowed:
            return allowed
        if self._untested_steps >= RETEST_STEPS:
            return allowed
        chunk = min(allowed, max(EVEN_MIN_TOKENS, int(even)))
        if self.prompts_per_step >= LIGHT * even or now_ms < self._crowded_until_ms:
            return chunk
        if waiting_tokens <= allowed or allowed * step_ms(chunk) > FASTER * chunk * step_ms(
            allowed
        ):
            return allowed
        return chunk


def even_chunk(constant_ms: float, per_token_ms: float, free_tokens: float) -> float:
    """Prompt tokens per step beyond which larger chunks gain next to nothing.

    Args:
        constant_ms: c.
        per_token_ms: p; 0 means that prompts cost nothing, and no chunk is too large.
        free_tokens: prompt tokens per step that cost nothing.
    """
    worth_ms = OVERHEAD * per_token_ms
    if worth_ms <= 0:  # also where the product is too small for a float
        return inf
    fixed = constant_ms - per_token_ms * free_tokens
    # Too small a figure for what is free leaves a remainder that asks for larger chunks.
    return max(free_tokens, fixed / worth_ms)


class ChunkBound:
    """Bounds chunks by what the steps themselves said, while the model still has to learn it.

    A step beyond the objective with n prompt tokens bounds chunks to the part of n that would
    have kept it; the bound then widens again by :data:`WIDENS` per step.
    """

    def __init__(self) -> None:
        self.tokens = inf

    def observe(self, prefill_tokens: int, step_ms: float, allowed_ms: float) -> None:
        """Take one step.

        Args:
            prefill_tokens: it carried.
            step_ms: it took.
            allowed_ms: it should have taken at most.
        """
        self.tokens *= WIDENS
        # A pause of the process says nothing about prompts.
        if prefill_tokens > BOUND_MIN_TOKENS and allowed_ms < step_ms <= PAUSE * allowed_ms:
            kept = max(BOUND_MIN_TOKENS, MARGIN * prefill_tokens * allowed_ms / step_ms)
            self.tokens = min(self.tokens, kept)
