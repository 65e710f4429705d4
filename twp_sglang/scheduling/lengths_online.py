"""Output lengths as they turn out, for a forecast of memory.

Clients declare limits, not lengths. What ended teaches the first two moments of the length
L, and by renewal theory the mean remaining length of a request seen at a random time is

    rbar = (E[L^2] / E[L] + 1) / 2                       (tokens; constant L: (L + 1)/2)
"""

from __future__ import annotations

WEIGHT = 1.0 / 256.0
"""Memory of 256 answers: two moments of a heavy tail need some hundred."""

TRUSTED_AFTER = 32
"""Answers before which the declared limits are believed instead: short answers end first, so
the first few are a biased sample."""


class OutputLengths:
    """Moments of finished outputs."""

    def __init__(self) -> None:
        self.finished = 0
        self._mean = 0.0
        self._square = 0.0

    def observe(self, output_tokens: int) -> None:
        """One answer ended after ``output_tokens``."""
        self.finished += 1
        weight = max(WEIGHT, 1.0 / self.finished)
        self._mean += weight * (output_tokens - self._mean)
        self._square += weight * (output_tokens**2 - self._square)

    @property
    def mean_remaining_tokens(self) -> float | None:
        """rbar; None until enough answers ended."""
        if self.finished < TRUSTED_AFTER or self._mean <= 0:
            return None
        return (self._square / self._mean + 1.0) / 2.0
