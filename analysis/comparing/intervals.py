"""How sure a mean over seeds is.

95 % percentile bootstrap over seeds. With five seeds such an interval is somewhat too narrow
(it covers the truth in about 85 % of cases instead of 95 %); it shows scatter, it is no test.
Contenders meet the same seeds, so differences are taken seed by seed and are much surer than
two intervals side by side would say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap

RESAMPLES = 2000
"""Bootstrap draws: the ends then scatter by less than a tenth of the interval."""


class Estimate(NamedTuple):
    """A mean with its 95 % interval; without one for a single seed."""

    mean: float
    low: float | None
    high: float | None


def mean_over_seeds(values: Sequence[float]) -> Estimate | None:
    """Mean of ``values``, one per seed; None without any."""
    if not values:
        return None
    sample = np.asarray(values, dtype=np.float64)
    mean = float(sample.mean())
    if len(sample) < 2:
        return Estimate(mean, None, None)
    if np.ptp(sample) == 0.0:
        return Estimate(mean, mean, mean)
    interval = bootstrap(
        (sample,),
        np.mean,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(mean, float(interval.low), float(interval.high))


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Estimate | None:
    """Mean of ours less theirs, seed by seed; None where the seeds do not match."""
    if len(ours) != len(theirs):
        return None
    return mean_over_seeds([a - b for a, b in zip(ours, theirs, strict=True)])


class Capacity(NamedTuple):
    """Largest load at which a wanted share still meets the objectives.

    ``bound`` is ``"<"`` where even the smallest load misses it, ``">"`` where even the
    largest holds it: ``load`` is then that load. The interval is over seeds.
    """

    load: float
    bound: str
    low: float
    high: float


def capacity(loads: Sequence[float], fractions: NDArray[np.float64], wanted: float) -> Capacity:
    """Load at which the mean fraction falls through ``wanted``, linear between loads.

    Args:
        loads: ascending, shape (n,).
        fractions: per seed and load, shape (seeds, n).
        wanted: share of the requests.
    """
    load, bound = _crossing(loads, fractions.mean(axis=0), wanted)
    rng = np.random.default_rng(0)
    seeds = len(fractions)
    drawn = [
        _crossing(loads, fractions[rng.integers(seeds, size=seeds)].mean(axis=0), wanted)[0]
        for _ in range(RESAMPLES if seeds > 1 else 1)
    ]
    return Capacity(
        load, bound, float(np.percentile(drawn, 2.5)), float(np.percentile(drawn, 97.5))
    )


def _crossing(
    loads: Sequence[float], curve: NDArray[np.float64], wanted: float
) -> tuple[float, str]:
    if curve[0] < wanted:
        return loads[0], "<"
    for index in range(1, len(loads)):
        if curve[index] < wanted:
            share = (curve[index - 1] - wanted) / (curve[index - 1] - curve[index])
            return float(loads[index - 1] + share * (loads[index] - loads[index - 1])), ""
    return loads[-1], ">"
