"""l_min, learned from decode steps of half to whole saturation batch."""

from __future__ import annotations

import pytest

from twp_sglang.scheduling.baseline import RISE, WINDOW_STEPS, Baseline


def feed(baseline: Baseline, duration_ms: float, batch: int = 8, steps: int = WINDOW_STEPS) -> None:
    for _ in range(steps):
        baseline.observe(duration_ms, batch)


def test_a_given_baseline_is_never_changed() -> None:
    baseline = Baseline(8, 20.0)
    feed(baseline, 5.0, steps=10 * WINDOW_STEPS)
    assert baseline.l_min_ms == 20.0


def test_it_is_unknown_until_a_window_of_steps_is_full() -> None:
    baseline = Baseline(8, None)
    feed(baseline, 30.0, steps=WINDOW_STEPS - 1)
    assert baseline.l_min_ms is None
    baseline.observe(30.0, 8)
    assert baseline.l_min_ms == 30.0


def test_the_median_ignores_a_stray_step() -> None:
    baseline = Baseline(8, None)
    feed(baseline, 30.0, steps=WINDOW_STEPS - 2)
    baseline.observe(1.0, 8)
    baseline.observe(5000.0, 8)
    assert baseline.l_min_ms == 30.0


@pytest.mark.parametrize(("batch", "counts"), [(3, False), (4, True), (8, True), (9, False)])
def test_only_batches_from_half_to_whole_b0_count(batch: int, counts: bool) -> None:
    baseline = Baseline(8, None)
    feed(baseline, 30.0, batch=batch)
    assert (baseline.l_min_ms is not None) == counts


def test_a_saturation_batch_of_one_can_be_learned() -> None:
    baseline = Baseline(1, None)
    feed(baseline, 30.0, batch=1)
    assert baseline.l_min_ms == 30.0


def test_faster_is_believed_at_once_and_slower_by_and_by() -> None:
    baseline = Baseline(8, None)
    feed(baseline, 30.0)
    feed(baseline, 20.0)
    assert baseline.l_min_ms == 20.0
    feed(baseline, 40.0)
    assert baseline.l_min_ms == pytest.approx(20.0 + RISE * 20.0)


def test_says_where_the_baseline_comes_from() -> None:
    assert Baseline(8, 20.0).source == "given"
    learning = Baseline(8, None)
    assert learning.source == "learning"
    for _ in range(WINDOW_STEPS):
        learning.observe(10.0, 8)
    assert learning.source == "learned"
