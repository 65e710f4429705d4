"""Whether a prompt fits beside what the requests already in will still need.

    growth = SHARE * min(K, (B + 1) rbar)         K: declared remaining output, clipped
    fits when  free - prompt - growth > margin * capacity

``free`` already lacks the prompt tokens that chunked requests still owe, so an input is
checked as a whole before its first chunk. Rows end one after another and give back their
prompts as they do, so the pool never holds the whole remaining output at once; the engine's
own reserve and, as a last resort, its retraction stand behind this forecast.
"""

from __future__ import annotations

SHARE = 0.5
"""Half of the remaining output: lengths spread evenly up to 2 rbar peak at that, counting no
prompt that is given back."""


class KvForecast:
    """Peak of KV-cache use if one more request is admitted."""

    def __init__(self, margin: float) -> None:
        self.margin = margin

    def fits(
        self,
        free_tokens: int,
        capacity_tokens: int,
        prompt_tokens: int,
        load_tokens: int,
        batch: int,
        mean_remaining_tokens: float | None,
    ) -> bool:
        """Whether the predicted peak leaves the margin.

        Args:
            free_tokens: KV tokens free now, less what is promised already.
            capacity_tokens: of the pool.
            prompt_tokens: of the candidate.
            load_tokens: K with the candidate's expected output.
            batch: B with the candidate.
            mean_remaining_tokens: rbar, or None while nobody knows it.
        """
        left = float(load_tokens)
        if mean_remaining_tokens is not None:
            left = min(left, batch * mean_remaining_tokens)
        return free_tokens - prompt_tokens - SHARE * left > self.margin * capacity_tokens
