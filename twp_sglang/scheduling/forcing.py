"""How many prompt tokens forced admissions may take: a token bucket, filled by the pass.

Forced admissions pass both guards. Under lasting overload everybody has waited T_max, and if
each step let one more in, the guards would not exist: the engine would stay overloaded for
good. So forcing has a rate. In any n passes it takes at most

    burst + n * rate + one prompt

tokens: a prompt larger than what is left may enter as long as something is left, and the debt
is paid off before the next, so that no prompt is too long to be forced.
"""

from __future__ import annotations


class ForcingBudget:
    """The bucket, full at the start.

    Args:
        tokens_per_step: prompt tokens per pass on average; None for no bound.
        burst_tokens: most that is saved up.
    """

    def __init__(self, tokens_per_step: float | None, burst_tokens: float) -> None:
        self._rate = tokens_per_step
        self._burst = burst_tokens
        self._credit = burst_tokens
        self._at_pass = 0

    def reconfigure(self, tokens_per_step: float | None, burst_tokens: float) -> None:
        """Another rate or depth from now on; a full bucket stays full, a debt a debt."""
        if self._credit >= self._burst:
            self._credit = burst_tokens
        self._rate, self._burst = tokens_per_step, burst_tokens
        self._credit = min(self._credit, burst_tokens)

    def credit(self, pass_index: int) -> float | None:
        """Prompt tokens that may be forced in this pass; at or below 0 none. None: unbounded.
        Changes nothing."""
        if self._rate is None:
            return None
        passes = max(0, pass_index - self._at_pass)
        return min(self._burst, self._credit + passes * self._rate)

    def spend(self, prompt_tokens: int, pass_index: int) -> None:
        """A prompt was forced in."""
        credit = self.credit(pass_index)
        if credit is not None:
            self._credit = credit - prompt_tokens
            self._at_pass = max(self._at_pass, pass_index)
