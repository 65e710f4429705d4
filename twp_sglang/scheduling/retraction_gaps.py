"""The longest time that a retracted request made no token.

From the loss of its memory to the end of the step that has computed its tokens again. The
99th percentile of the inter-token latency hides these gaps, because they are rare and long.
"""

from __future__ import annotations

from typing import Any

from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import StepSample


class _Return:
    """One that is back in the engine and not yet producing."""

    __slots__ = ("gap_ms", "owed_tokens", "since_pass")

    def __init__(self, since_pass: int, owed_tokens: int, gap_ms: float) -> None:
        self.since_pass = since_pass
        self.owed_tokens = owed_tokens
        self.gap_ms = gap_ms


class RetractionGaps:
    """Follows retracted requests by what the policy is told."""

    def __init__(self) -> None:
        self.retractions = 0
        self.longest_ms: float | None = None
        self._returning: list[_Return] = []

    def lost(self, request: RequestInfo) -> None:
        """A retracted request joined the queue."""
        self.retractions += 1

    def admitted(self, request: RequestInfo, pass_index: int, now_ms: float) -> None:
        """It was taken again."""
        waited = max(0.0, now_ms - request.arrival_ms)
        self._returning.append(_Return(pass_index, request.prompt_tokens, waited))

    def observe(self, sample: StepSample) -> None:
        """A step was measured; the tokens it computed are those of the oldest first."""
        if not self._returning:
            return
        computed = sample.prefill_tokens
        still: list[_Return] = []
        for one in self._returning:
            if sample.step < one.since_pass:
                still.append(one)
                continue
            one.gap_ms += sample.duration_ms or 0.0
            used = min(computed, one.owed_tokens)
            computed -= used
            one.owed_tokens -= used
            # A step without prompt tokens: the rest was found in the prefix cache.
            if one.owed_tokens > 0 and sample.prefill_tokens > 0:
                still.append(one)
            else:
                self.longest_ms = max(self.longest_ms or 0.0, one.gap_ms)
        self._returning = still

    def snapshot(self) -> dict[str, Any]:
        """JSON types only; the gap is None until somebody came back."""
        return {
            "retractions": self.retractions,
            "longest_gap_after_retraction_ms": self.longest_ms,
        }
