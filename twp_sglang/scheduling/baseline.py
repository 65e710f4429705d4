"""The baseline step time l_min, learned while serving when no profile gives it.

Only decode steps whose batch lies between B0/2 and B0 count. Below, the baseline would be
that of a nearly empty engine, and on machines where going from one request to two costs a
lot every batch would look congested. Above, a saturated engine would redefine what it is
measured against.
"""

from __future__ import annotations

from statistics import median

WINDOW_STEPS = 16
"""Samples per estimate: their median ignores a stray slow step."""

RISE = 0.05
"""Share of the way up per window. A faster machine is believed at once, a slower one
(another tenant, heat) after about 20 windows of uncongested steps."""


class Baseline:
    """l_min in ms: given once, or the lowest window median, rising slowly."""

    def __init__(self, b0: int, l_min_ms: float | None) -> None:
        self._given = l_min_ms is not None
        self._low = max(1, b0 // 2)
        self._high = b0
        self._window: list[float] = []
        self.l_min_ms = l_min_ms

    def reconfigure(self, b0: int, l_min_ms: float | None) -> None:
        """Take another B0 and l_min. What was learned stays; a value that was given and is no
        longer is learned anew."""
        if self._given or l_min_ms is not None:
            self.l_min_ms = l_min_ms
        if (l_min_ms is not None, b0) != (self._given, self._high):
            self._window.clear()
        self._given = l_min_ms is not None
        self._low = max(1, b0 // 2)
        self._high = b0

    @property
    def source(self) -> str:
        """``given``, ``learned``, or ``learning`` while there is none and sigma rests at 1."""
        if self._given:
            return "given"
        return "learning" if self.l_min_ms is None else "learned"

    def observe(self, duration_ms: float, batch: int) -> None:
        """Take one decode-only step."""
        if self._given or not self._low <= batch <= self._high:
            return
        self._window.append(duration_ms)
        if len(self._window) < WINDOW_STEPS:
            return
        middle = median(self._window)
        self._window.clear()
        if self.l_min_ms is None or middle < self.l_min_ms:
            self.l_min_ms = middle
        else:
            self.l_min_ms += RISE * (middle - self.l_min_ms)
