"""Carries a runtime's readings to prometheus_client, a few times a second.

SGLang runs prometheus_client in multiprocess mode: every process writes its values to files
that the /metrics of the HTTP server merges. So nothing has to be sent anywhere; it is
enough to set values in the process that has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from patches.metrics.batched_histogram import BatchedHistogram
from patches.metrics.definitions import BOUNDS_S, METRICS, Metric

EVERY_S = 0.25
"""Least time between two exports. Scrapes come every few seconds; an export costs some hundred
microseconds, so less than a thousandth of the time goes into it."""


class Exporter:
    """The metrics of one scheduler process.

    Args:
        labels: on every metric, for instance model_name and dp_rank.
        clock: seconds.
        registry: of prometheus_client; None is its default, the one that /metrics reads.
    """

    def __init__(
        self, labels: Mapping[str, str], clock: Callable[[], float], registry: Any = None
    ) -> None:
        # Imported late: it picks its backend on import, by an environment variable that SGLang
        # sets while it starts.
        import prometheus_client

        self._labels = {name: str(value) for name, value in labels.items()}
        self._clock = clock
        self._next_s = 0.0
        self._exported: dict[tuple[str, str], float] = {}
        self._children: dict[tuple[str, str], Any] = {}
        self._histograms: dict[tuple[str, str], BatchedHistogram] = {}
        self._families = {
            metric.name: _family(prometheus_client, metric, tuple(self._labels), registry)
            for metric in METRICS
        }

    def due(self) -> bool:
        """Whether it is time to export; True at most once per :data:`EVERY_S`."""
        now = self._clock()
        if now < self._next_s:
            return False
        self._next_s = now + EVERY_S
        return True

    def step(self, kind: str, seconds: float, rows: int) -> None:
        """A step of ``rows`` decoding requests took ``seconds``."""
        self._histogram("twp_step_seconds", kind).observe(seconds)
        if rows:
            self._histogram("twp_scheduler_itl_seconds", "").observe(seconds, rows)

    def retraction_gap(self, seconds: float) -> None:
        """A retracted request went on after ``seconds``."""
        self._histogram("twp_retraction_gap_seconds", "").observe(seconds)

    def export(self, reading: Mapping[str, Any]) -> None:
        """Set every metric that ``reading`` knows."""
        for metric in METRICS:
            if metric.kind == "histogram":
                continue
            value = reading.get(metric.reading)
            if value is None:
                continue
            parts = value.items() if metric.label is not None else (("", value),)
            for part, number in parts:
                self._set(metric, str(part), float(number) * metric.scale)
        for (name, part), histogram in self._histograms.items():
            if not histogram.empty:
                histogram.flush(self._child(name, part))

    def _set(self, metric: Metric, part: str, value: float) -> None:
        child = self._child(metric.name, part)
        if metric.kind == "gauge":
            child.set(value)
            return
        key = (metric.name, part)
        rise = value - self._exported.get(key, 0.0)
        if rise > 0:
            child.inc(rise)
            self._exported[key] = value

    def _histogram(self, name: str, part: str) -> BatchedHistogram:
        histogram = self._histograms.get((name, part))
        if histogram is None:
            histogram = self._histograms[name, part] = BatchedHistogram(BOUNDS_S[name])
        return histogram

    def _child(self, name: str, part: str) -> Any:
        child = self._children.get((name, part))
        if child is None:
            own = _OWN_LABEL[name]
            labels = self._labels if own is None else {**self._labels, own: part}
            family = self._families[name]
            child = self._children[name, part] = family.labels(**labels) if labels else family
        return child


_OWN_LABEL = {metric.name: metric.label for metric in METRICS}


def _family(client: Any, metric: Metric, labels: tuple[str, ...], registry: Any) -> Any:
    names = labels if metric.label is None else (*labels, metric.label)
    options: dict[str, Any] = {"labelnames": names}
    if registry is not None:
        options["registry"] = registry
    if metric.kind == "counter":
        return client.Counter(metric.name, metric.text, **options)
    if metric.kind == "gauge":
        # As SGLang's: of several writers with equal labels (a restarted process), the newest.
        return client.Gauge(metric.name, metric.text, multiprocess_mode="mostrecent", **options)
    return client.Histogram(metric.name, metric.text, buckets=BOUNDS_S[metric.name], **options)
