"""Whether a series of readings grows: Theil and Sen's slope, which outliers do not move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Growth(NamedTuple):
    """How a quantity moved over a span of seconds.

    Attributes:
        first: median of the first fifth of the readings.
        last: median of the last fifth.
        per_hour: slope, in the quantity's unit per hour.
        low_per_hour: lower end of the slope's 95 % interval (for independent readings).
        high_per_hour: upper end.
        total: what the slope makes of the whole span.
    """

    first: float
    last: float
    per_hour: float
    low_per_hour: float
    high_per_hour: float
    total: float


_FEWEST = 10
_MOST = 600
"""Pairs grow with the square; 600 readings make 180,000."""


def growth(times_s: Sequence[float], values: Sequence[float]) -> Growth | None:
    """Trend of ``values`` over ``times_s``; None for fewer than ten readings."""
    if len(values) < _FEWEST:
        return None
    stride = -(-len(values) // _MOST)
    times = np.asarray(times_s, float)[::stride]
    readings = np.asarray(values, float)[::stride]
    slope, _, low, high = stats.theilslopes(readings, times)
    fifth = max(1, len(readings) // 5)
    return Growth(
        float(np.median(readings[:fifth])),
        float(np.median(readings[-fifth:])),
        float(slope) * 3600.0,
        float(low) * 3600.0,
        float(high) * 3600.0,
        float(slope) * float(times[-1] - times[0]),
    )
