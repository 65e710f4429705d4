"""A batch size beyond which every step is longer by a jump, and when to go there all the same.

SGLang captures CUDA graphs up to a batch size; beyond it kernels are launched one by one, and
a batch that was pushed over stays there: its steps are longer, so fewer rows end per second
and more pile up. The rule: beyond the ceiling only if the rows that there are (running and
waiting) could make more tokens per second there than at the ceiling, under the objective.
Otherwise nobody enters until the batch is below again. What the jump costs is learned from
steps beyond it.
"""

from __future__ import annotations

from collections.abc import Callable

PRIOR = 1.0
"""Jump taken for granted before any was measured, in steps of the ceiling itself: twice as
long. Reported jumps are 1.7 and 3.2; a larger guess would never be put to the test."""

WEIGHT = 0.05
"""Memory of the jump, 20 steps beyond the ceiling."""

GAIN = 1.05
"""Tokens per second beyond the ceiling over those at it: within 5 % staying is safer."""

FADE = 1.0 / 4096.0
"""Per step below the ceiling, of the way back to the prior: a jump that was measured in a bad
moment is put to the test again after some minutes, and costs 20 steps."""


class GraphCeiling:
    """One ceiling and its jump, ms."""

    def __init__(self, rows: int, jump_ms: float | None = None) -> None:
        self.rows = rows
        self.jump_ms = jump_ms
        """As learned; None before any step beyond the ceiling."""

    def observe(
        self, batch: int, step_ms: float, predicted_ms: float, at_ceiling_ms: float
    ) -> bool:
        """Take a step that the model without a jump predicts at ``predicted_ms``; say whether
        it was beyond the ceiling."""
        if batch <= self.rows:
            if self.jump_ms is not None:
                self.jump_ms += FADE * (PRIOR * at_ceiling_ms - self.jump_ms)
            return False
        over = max(0.0, step_ms - predicted_ms)
        self.jump_ms = (
            over if self.jump_ms is None else self.jump_ms + WEIGHT * (over - self.jump_ms)
        )
        return True

    def extra_ms(self, batch: int, at_ceiling_ms: float) -> float:
        """What a step of ``batch`` rows takes longer than the model says."""
        if batch <= self.rows:
            return 0.0
        return PRIOR * at_ceiling_ms if self.jump_ms is None else self.jump_ms

    def worth_it(self, demand: int, allowed_ms: float, decode_ms: Callable[[int], float]) -> bool:
        """Whether up to ``demand`` rows make more tokens per second beyond than at the ceiling.

        Args:
            demand: rows running and waiting.
            allowed_ms: longest step.
            decode_ms: the model's step of so many rows, without the jump; rising.
        """
        rows = self.rows
        if demand <= rows:
            return False
        at = decode_ms(rows)
        extra = self.extra_ms(rows + 1, at)
        low, high = rows, demand
        while low < high:  # the most rows that the objective allows
            middle = (low + high + 1) // 2
            if decode_ms(middle) + extra <= allowed_ms:
                low = middle
            else:
                high = middle - 1
        # Beyond the jump tokens per second rise with the rows where they do below it, and
        # the gate's own knee rule stands where they do not.
        return low > rows and low * at > GAIN * rows * (decode_ms(low) + extra)
