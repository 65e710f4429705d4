"""A histogram kept as plain numbers and handed to Prometheus now and then.

Observing on the metric itself costs several locked writes to a shared file, in every step.
Here a step costs a bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any


class BatchedHistogram:
    """Counts per bucket since the last flush.

    Args:
        bounds_s: upper bounds, ascending; the last bucket is open.
    """

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = tuple(bounds_s)
        self._counts = [0] * (len(self.bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """``times`` values of ``seconds``."""
        self._counts[bisect_left(self.bounds_s, seconds)] += times
        self._sum_s += seconds * times

    @property
    def empty(self) -> bool:
        """Whether nothing was observed since the last flush."""
        return not any(self._counts)

    def flush(self, child: Any) -> None:
        """Add everything to ``child``, a histogram of prometheus_client with the same bounds,
        and start anew.

        prometheus_client has no call for many observations at once; its buckets are counters
        of their own, and SGLang adds to them in the same way
        (``TokenizerMetricsCollector.observe_inter_token_latency``).
        """
        for place, count in enumerate(self._counts):
            if count:
                child._buckets[place].inc(count)
                self._counts[place] = 0
        child._sum.inc(self._sum_s)
        self._sum_s = 0.0
