"""Survival curves of output lengths from answers that ended or were cut at their limit.

Kaplan and Meier (1958) on bins: of the answers that reached a bin, the share that ended in it
is its hazard; S, the product of what is left, is P(L > length). An answer cut at its limit
says that it was at least that long and nothing about its end, so it counts among those at
risk and not among the ended. Newer answers count more: each one fades all before it by 1/512.

Sums run in a fixed order (cumulative ones) and the rest is elementwise, so that
tensor-parallel ranks on unlike processors get the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twp_sglang.scheduling.length_bins import BINS, LAST, MIDDLE, bin_of

Floats = NDArray[np.float64]

FADE = 1.0 - 1.0 / 512.0
"""Memory of 512 answers: a high quantile of a heavy tail needs some hundred."""

PRIOR_ANSWERS = 8.0
"""Weight of the engine's own belief against answers that reached a bin. It falls by the square
of 8/(n + 8): after eight of them a quarter is left, after 64 one per cent."""

BEYOND = 2.0**40
"""Stands for "no answer was seen to end": longer than any limit."""

_REFRESH_SHARE = 1.0 / 32.0
"""A curve is drawn anew after 3 % more answers: earlier it has hardly moved."""

_REFRESH_MOST = 16.0


class Tables(NamedTuple):
    """What is looked up, shape (curves, bins); the bin is that of the smallest length still
    possible."""

    quantile: Floats
    """Total length not exceeded with the asked probability, or :data:`BEYOND`."""
    mean: Floats
    """Expected total length, of the answers seen to end, times their probability."""
    tail: Floats
    """Probability to be longer than any that was seen to end."""
    trust: Floats
    """Weight of the curve against the prior, 0 to below 1."""
    survival: Floats
    """P(L > LAST[bin]), unconditional."""


class SurvivalCurves:
    """Curves by number.

    Args:
        curves: how many.
        quantile: probability for :attr:`Tables.quantile`, between 0 and 1.
    """

    def __init__(self, curves: int, quantile: float) -> None:
        self.level = quantile
        self._ended = np.zeros((curves, BINS))
        self._cut = np.zeros((curves, BINS))
        self.answers = [0.0] * curves
        """Answers that a curve has seen since it began, not faded."""
        self._drawn_at = [0.0] * curves
        self._due: set[int] = set()
        """Curves that have moved enough to be drawn anew."""
        self.tables = Tables(
            np.full((curves, BINS), BEYOND),
            np.zeros((curves, BINS)),
            np.ones((curves, BINS)),
            np.zeros((curves, BINS)),
            np.ones((curves, BINS)),
        )

    def ask_for(self, quantile: float) -> None:
        """Another quantile from now on."""
        self.level = quantile
        for curve, answers in enumerate(self.answers):
            if answers:
                self._due.add(curve)

    def learn(self, curve: int, length: int, *, cut: bool) -> None:
        """One answer of ``length`` tokens ended by itself, or was ``cut`` at its limit."""
        self._ended[curve] *= FADE
        self._cut[curve] *= FADE
        counts = self._cut if cut else self._ended
        counts[curve, bin_of(length)] += 1.0
        seen = self.answers[curve] = self.answers[curve] + 1.0
        drawn = self._drawn_at[curve]
        if seen - drawn >= min(max(1.0, _REFRESH_SHARE * drawn), _REFRESH_MOST):
            self._due.add(curve)

    def forget(self, curve: int) -> None:
        """Start ``curve`` anew, for another client."""
        self._ended[curve] = 0.0
        self._cut[curve] = 0.0
        self.answers[curve] = self._drawn_at[curve] = 0.0
        self._due.discard(curve)
        for table, empty in zip(self.tables, (BEYOND, 0.0, 1.0, 0.0, 1.0), strict=True):
            table[curve] = empty

    def draw(self) -> Tables:
        """The tables, those curves drawn anew that have moved."""
        if self._due:
            for curve in sorted(self._due):
                self._draw(curve)
                self._drawn_at[curve] = self.answers[curve]
            self._due.clear()
        return self.tables

    def _draw(self, curve: int) -> None:
        ended = self._ended[curve]
        at_risk = np.cumsum((ended + self._cut[curve])[::-1])[::-1]
        # A bin that nobody reached has no hazard.
        hazard = np.divide(ended, at_risk, out=np.zeros(BINS), where=at_risk > 0)
        # Rounding must not leave a sliver where all that reached a bin ended in it.
        after = np.cumprod(np.where(hazard > 1.0 - 1e-12, 0.0, 1.0 - hazard))
        before = np.concatenate(([1.0], after[:-1]))
        tables = self.tables
        tables.survival[curve] = after
        # The first bin behind which no more than the asked share of the survivors is left.
        place = np.searchsorted(-after, -(1.0 - self.level) * before, side="left")
        known = (place < BINS) & (before > 0.0)
        tables.quantile[curve] = np.where(known, LAST[np.minimum(place, BINS - 1)], BEYOND)
        mass = np.cumsum((MIDDLE * (before - after))[::-1])[::-1]
        alive = before > 0.0
        tables.mean[curve] = np.divide(mass, before, out=np.zeros(BINS), where=alive)
        tables.tail[curve] = np.divide(after[-1], before, out=np.ones(BINS), where=alive)
        doubt = PRIOR_ANSWERS / (at_risk + PRIOR_ANSWERS)
        tables.trust[curve] = 1.0 - doubt * doubt
