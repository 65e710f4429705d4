"""When requests arrive: a Poisson or evenly spaced stream, with bursts.

A burst multiplies the rate for a while. Arrivals are drawn by the time-change theorem: a
unit-rate process is drawn once and mapped through the inverse of the integrated rate, so
that bursts are exact and the same seed gives the same draw whatever the rate.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from controllers.laws.base import FrozenModel

ArrivalProcess = Literal["poisson", "even"]


class Burst(FrozenModel):
    """The rate is multiplied by ``factor`` from ``start_s`` for ``duration_s`` seconds."""

    factor: float
    start_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        """When the burst is over."""
        return self.start_s + self.duration_s


def parse_burst(text: str) -> Burst:
    """Read ``FACTOR:START_S:DURATION_S``.

    Raises:
        ValueError: naming the part that is wrong.
    """
    parts = text.split(":")
    if len(parts) != 3:
        raise ValueError(
            f"'{text}' is not a burst; write FACTOR:START_S:DURATION_S, for example 4:10:5"
        )
    values = []
    for name, part in zip(("FACTOR", "START_S", "DURATION_S"), parts, strict=True):
        try:
            value = float(part)
        except ValueError:
            raise ValueError(f"'{text}': {name} is '{part}', not a number") from None
        if not math.isfinite(value) or value < 0 or (name == "DURATION_S" and value == 0):
            raise ValueError(f"'{text}': {name} is {part}; give a finite number above 0")
        values.append(value)
    return Burst(factor=values[0], start_s=values[1], duration_s=values[2])


def check_bursts(bursts: Sequence[Burst]) -> None:
    """Refuse bursts that overlap, whose joint factor would be anybody's guess.

    Raises:
        ValueError: naming the two bursts.
    """
    ordered = sorted(bursts, key=lambda burst: burst.start_s)
    for first, second in itertools.pairwise(ordered):
        if second.start_s < first.end_s:
            raise ValueError(
                f"the burst at {second.start_s:g} s begins before the one at "
                f"{first.start_s:g} s ends ({first.end_s:g} s); make them follow each other"
            )


def arrival_times_s(
    count: int,
    rate_rps: float,
    bursts: Sequence[Burst],
    process: ArrivalProcess,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Arrival times in seconds from the start of the run, shape (count,), the first at 0.

    Args:
        count: requests.
        rate_rps: requests per second outside bursts; infinity sends all at once.
        bursts: non-overlapping.
        process: ``poisson`` (exponential gaps) or ``even`` (equal gaps).
        rng: source of the draw.
    """
    if math.isinf(rate_rps):
        return np.zeros(count)
    gaps = rng.exponential(size=count) if process == "poisson" else np.ones(count)
    gaps[:1] = 0.0  # a run starts with its first request, not with a silence
    work = np.cumsum(gaps)

    edges_s, rates = [0.0], [rate_rps]
    for burst in sorted(bursts, key=lambda burst: burst.start_s):
        edges_s += [burst.start_s, burst.end_s]
        rates += [rate_rps * burst.factor, rate_rps]
    starts = np.array(edges_s)
    heights = np.array(rates)
    done_before = np.concatenate([[0.0], np.cumsum(np.diff(starts) * heights[:-1])])
    # The last segment begun before the work: side="left" also skips a silent segment
    # (factor 0), whose integrated rate is flat and has no inverse.
    segment = np.maximum(np.searchsorted(done_before, work, side="left") - 1, 0)
    return np.asarray(starts[segment] + (work - done_before[segment]) / heights[segment])
