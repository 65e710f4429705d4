"""Whether the machine is another one than the model in force says: slower or faster by much.

Where almost every one of the last steps took more than CHANGED_BY times what the model foretold, or
less than one part in as many, the two gains do not bring it back, and what was seen of the machine
before is of no use any more: neighbours came or went, or the clock of the processor changed.

A batch beyond a knee that nobody knew of looks alike; there a fit, which is due after eight steps
of a new kind, explains the steps long before so many are seen.
"""

from __future__ import annotations

from math import exp, log

CHANGED_BY = 1.7
"""Within it the gains, which end at a half and at twice, follow with room to spare."""

CHANGED_STEPS = 64
"""Steps off to the same side until it is believed: two seconds or so. A pause is over by then."""

STRAY = 4
"""Steps off that one step which is not takes back: some one in ten is a pause or was measured
short after one."""


class MachineChange:
    """Counts steps that the model in force does not explain."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._slower = True
        self._count = 0
        self._log_sum = 0.0
        self._summed = 0

    def observe(self, step_ms: float, model_ms: float) -> float | None:
        """Take one step.

        Args:
            step_ms: it took, above 0.
            model_ms: the model says, without gains; at most 0 if it says nothing.

        Returns:
            The factor on the model that explains the last steps (their geometric mean), once it is
            believed that the machine has changed; counting then starts again.
        """
        if model_ms <= 0.0:
            return None
        ratio = step_ms / model_ms
        if 1.0 / CHANGED_BY < ratio < CHANGED_BY or not 0.0 < ratio < 1e9:
            self._count -= STRAY
            if self._count <= 0:
                self._forget()
            return None
        slower = ratio > 1.0
        if slower != self._slower:
            self._forget()
            self._slower = slower
        self._count += 1
        self._log_sum += log(ratio)
        self._summed += 1
        if self._count < CHANGED_STEPS:
            return None
        factor = exp(self._log_sum / self._summed)
        self._forget()
        return factor
