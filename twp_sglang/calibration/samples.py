"""What measuring yields: timed decode steps at a held batch, timed prefill probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class DecodeSteps:
    """Decode steps at one held batch, in order.

    ``step_ms`` and ``kv_tokens`` have shape (n,): duration of each step, KV tokens held in
    it. ``ramp_steps`` decode steps went by before the last request had joined.
    """

    step_ms: FloatArray
    kv_tokens: FloatArray
    ramp_steps: int


@dataclass(frozen=True)
class DecodePoint:
    """One visit of a batch size."""

    batch: int
    context_tokens: int
    round: int
    steps: DecodeSteps


@dataclass(frozen=True)
class PrefillProbe:
    """One prompt that ran against held decodes.

    ``prefill_ms`` is the time it took from them: the span in which its chunks ran, less
    the decode steps in that span at their usual duration.
    """

    tokens: int
    chunks: int
    prefill_ms: float
    decoding: int
    round: int = 0


DISTURBED = 1.25
"""A visit so many times slower than the fastest of its batch size was disturbed."""


def undisturbed(points: Sequence[DecodePoint]) -> list[DecodePoint]:
    """Visits that nothing outside the engine slowed down, in their order.

    Whatever disturbs a machine only ever adds time, so the fastest visit of a batch size is
    the nearest to the engine's own step time, and visits far above it tell of neighbours.
    """
    fastest: dict[tuple[int, int], float] = {}
    for point in points:
        key, value = (point.batch, point.context_tokens), median(point.steps.step_ms)
        fastest[key] = min(value, fastest.get(key, value))
    return [
        point
        for point in points
        if median(point.steps.step_ms) <= DISTURBED * fastest[point.batch, point.context_tokens]
    ]


def median(values: FloatArray) -> float:
    """Median of a non-empty array."""
    return float(np.median(values))


def iqr(values: FloatArray) -> float:
    """Distance between the quartiles of a non-empty array."""
    low, high = np.percentile(values, (25, 75))
    return float(high - low)
