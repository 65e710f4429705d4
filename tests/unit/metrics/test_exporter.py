"""The exporter on a real prometheus_client registry: units, labels, rates, histograms."""

from __future__ import annotations

from typing import Any

import pytest

prometheus_client = pytest.importorskip("prometheus_client")

from patches.metrics.batched_histogram import BatchedHistogram  # noqa: E402
from patches.metrics.definitions import BOUNDS_S, METRICS  # noqa: E402
from patches.metrics.exporter import EVERY_S, Exporter  # noqa: E402


class Desk:
    """An exporter with a registry and a clock of its own."""

    def __init__(self, **labels: str) -> None:
        self.now_s = 0.0
        self.registry = prometheus_client.CollectorRegistry()
        self.exporter = Exporter(
            labels or {"model_name": "m"}, lambda: self.now_s, registry=self.registry
        )

    def value(self, name: str, **labels: str) -> Any:
        return self.registry.get_sample_value(name, {"model_name": "m", **labels})


def test_every_metric_is_registered_under_a_conventional_name() -> None:
    desk = Desk()
    exposed = {family.name: family.type for family in desk.registry.collect()}
    assert exposed == {metric.name: metric.kind for metric in METRICS}
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("twp_")
        assert not metric.name.endswith("_total"), "the client library adds it"
        assert "_ms" not in metric.name, "base units are seconds"
        assert metric.text


def test_milliseconds_become_seconds_and_unknown_values_stay_out() -> None:
    desk = Desk()
    desk.exporter.export({"itl_slo_ms": 50.0, "window_tokens": None, "deciding": True})
    assert desk.value("twp_itl_objective_seconds") == pytest.approx(0.05)
    assert desk.value("twp_deciding") == 1.0
    assert desk.value("twp_window_tokens") is None


def test_counters_follow_totals_by_reason_and_never_fall() -> None:
    desk = Desk()
    desk.exporter.export({"admissions": {"window": 3}, "fallbacks": 0})
    desk.exporter.export({"admissions": {"window": 5, "forced": 1}, "fallbacks": 0})
    desk.exporter.export({"admissions": {"window": 5, "forced": 1}, "fallbacks": 1})
    assert desk.value("twp_admissions_total", reason="window") == 5
    assert desk.value("twp_admissions_total", reason="forced") == 1
    assert desk.value("twp_fallbacks_total") == 1


def test_steps_count_once_and_gaps_once_per_row() -> None:
    desk = Desk()
    desk.exporter.step("decode", 0.012, 4)
    desk.exporter.step("mixed", 0.030, 2)
    desk.exporter.step("prefill", 0.5, 0)
    desk.exporter.export({})
    assert desk.value("twp_step_seconds_count", kind="decode") == 1
    assert desk.value("twp_step_seconds_count", kind="prefill") == 1
    assert desk.value("twp_scheduler_itl_seconds_count") == 6
    assert desk.value("twp_scheduler_itl_seconds_sum") == pytest.approx(4 * 0.012 + 2 * 0.030)
    assert desk.value("twp_scheduler_itl_seconds_bucket", le="0.015") == 4
    assert desk.value("twp_scheduler_itl_seconds_bucket", le="0.03") == 6
    desk.exporter.export({})
    assert desk.value("twp_scheduler_itl_seconds_count") == 6, "flushed once"


def test_a_bound_belongs_to_its_bucket_and_the_last_bucket_is_open() -> None:
    histogram = BatchedHistogram((0.1, 1.0))
    family = prometheus_client.Histogram(
        "h", "h", buckets=(0.1, 1.0), registry=prometheus_client.CollectorRegistry()
    )
    stock = prometheus_client.Histogram(
        "s", "s", buckets=(0.1, 1.0), registry=prometheus_client.CollectorRegistry()
    )
    for value in (0.1, 0.10001, 1.0, 7.0):
        histogram.observe(value)
        stock.observe(value)
    histogram.flush(family)
    ours = [(s.name[1:], s.labels, s.value) for s in family.collect()[0].samples]
    theirs = [(s.name[1:], s.labels, s.value) for s in stock.collect()[0].samples]
    assert [one for one in ours if one[0] != "_created"] == [
        one for one in theirs if one[0] != "_created"
    ]
    assert histogram.empty


def test_exports_are_spaced() -> None:
    desk = Desk()
    asked = []
    for _ in range(1000):
        asked.append(desk.exporter.due())
        desk.now_s += 0.001
    assert asked[0]
    assert sum(asked) <= 1.0 / EVERY_S + 1


def test_labels_of_the_server_are_on_every_metric() -> None:
    desk = Desk(model_name="m", dp_rank="1", team="x")
    desk.exporter.export({"queue": 2, "holds": {"kv": 1}})
    assert desk.value("twp_queue_requests", dp_rank="1", team="x") == 2
    assert desk.value("twp_held_steps_total", dp_rank="1", team="x", reason="kv") == 1


def test_bounds_ascend() -> None:
    for bounds in BOUNDS_S.values():
        assert list(bounds) == sorted(set(bounds))
