"""The ITL filter: what counts, what is kept apart, and the slowdown."""

from __future__ import annotations

import math

import pytest
from scheduling_builders import sample

from twp_sglang.scheduling.monitor import STALE_AFTER_STEPS, Monitor


def monitor(beta: float = 0.25, l_min_ms: float | None = 20.0, warmup_steps: int = 0) -> Monitor:
    return Monitor(beta, 8, l_min_ms, warmup_steps)


def test_the_filter_starts_at_the_first_step_and_weighs_the_newest_with_beta() -> None:
    watch = monitor(beta=0.25)
    assert watch.observe(sample(40.0))
    assert watch.itl_ms == 40.0
    assert watch.observe(sample(60.0))
    # 40 + 0.25 (60 - 40)
    assert watch.itl_ms == 45.0
    watch.observe(sample(25.0))
    # 45 + 0.25 (25 - 45)
    assert watch.itl_ms == 40.0


def test_sigma_is_filtered_latency_over_the_baseline() -> None:
    watch = monitor(l_min_ms=20.0)
    watch.observe(sample(40.0))
    watch.observe(sample(60.0))
    assert watch.sigma == 45.0 / 20.0


def test_sigma_is_one_until_latency_and_baseline_are_known() -> None:
    assert monitor().sigma == 1.0
    unknown_baseline = monitor(l_min_ms=None)
    unknown_baseline.observe(sample(40.0))
    assert unknown_baseline.sigma == 1.0


def test_sigma_may_fall_below_one() -> None:
    watch = monitor(l_min_ms=20.0)
    watch.observe(sample(10.0))
    assert watch.sigma == 0.5


@pytest.mark.parametrize("duration", [None, 0.0, -3.0, math.nan, math.inf])
def test_a_step_without_a_meaningful_time_does_not_count(duration: float | None) -> None:
    watch = monitor()
    watch.observe(sample(40.0))
    assert not watch.observe(sample(duration, step=2))
    assert watch.itl_ms == 40.0
    assert (watch.counted, watch.ignored) == (1, 1)
    assert watch.newest_step == 2


def test_warm_up_steps_do_not_count() -> None:
    watch = monitor(warmup_steps=2)
    assert not watch.observe(sample(900.0))
    # A step without a time is no warm-up: it tells nothing about the caches.
    assert not watch.observe(sample(None))
    assert not watch.observe(sample(700.0))
    assert watch.observe(sample(40.0))
    assert watch.itl_ms == 40.0
    assert (watch.counted, watch.ignored) == (1, 3)


def test_a_prefill_step_never_moves_the_latency() -> None:
    watch = monitor()
    watch.observe(sample(40.0))
    for step in range(3 * STALE_AFTER_STEPS):
        assert not watch.observe(
            sample(400.0, step=step, kind="prefill", batch=0, prefill_tokens=512)
        )
    assert watch.itl_ms == 40.0
    assert watch.sigma == 2.0


def test_a_mixed_step_teaches_the_cost_of_a_prompt_token_and_leaves_the_latency() -> None:
    watch = monitor(beta=0.25)
    watch.observe(sample(40.0))
    assert not watch.observe(sample(104.0, kind="mixed", prefill_tokens=64))
    # (104 - 40) / 64
    assert watch.prefill_ms_per_token == 1.0
    assert watch.itl_ms == 40.0
    watch.observe(sample(168.0, kind="mixed", prefill_tokens=64))
    # 1 + 0.25 (2 - 1)
    assert watch.prefill_ms_per_token == 1.25


def test_a_mixed_step_shorter_than_decoding_costs_nothing_rather_than_less() -> None:
    watch = monitor()
    watch.observe(sample(40.0))
    watch.observe(sample(30.0, kind="mixed", prefill_tokens=64))
    assert watch.prefill_ms_per_token == 0.0


def test_without_decode_steps_for_long_the_rest_of_a_mixed_step_counts() -> None:
    watch = monitor(beta=0.25)
    watch.observe(sample(40.0))
    for _ in range(STALE_AFTER_STEPS):
        assert not watch.observe(sample(104.0, kind="mixed", prefill_tokens=64))
    # Decoding itself became slower: 64 tokens at 1 ms leave 80 ms of decoding.
    assert watch.observe(sample(144.0, kind="mixed", prefill_tokens=64))
    # 40 + 0.25 (80 - 40)
    assert watch.itl_ms == 50.0
    # A decode step closes the gap again.
    watch.observe(sample(50.0))
    assert not watch.observe(sample(114.0, kind="mixed", prefill_tokens=64))


def test_prefill_alone_cannot_close_the_window() -> None:
    watch = monitor()
    watch.observe(sample(40.0))
    for _ in range(10 * STALE_AFTER_STEPS):
        watch.observe(sample(104.0, kind="mixed", prefill_tokens=64))
    assert watch.itl_ms == pytest.approx(40.0)


def test_the_newest_step_time_is_kept_unfiltered() -> None:
    watch = monitor()
    watch.observe(sample(40.0))
    watch.observe(sample(104.0, kind="mixed", prefill_tokens=64))
    assert watch.step_ms == 104.0


def test_an_engine_whose_every_step_is_mixed_is_measured_against_a_given_baseline() -> None:
    watch = monitor(beta=0.5, l_min_ms=20.0)
    for step in range(STALE_AFTER_STEPS):
        # 20 ms of decoding and 0.1 ms for each of 100 prompt tokens: teaches the chunk's cost.
        assert not watch.observe(sample(30.0, step=step, kind="mixed", prefill_tokens=100))
    assert watch.prefill_ms_per_token == pytest.approx(0.1)
    assert watch.observe(sample(50.0, step=99, kind="mixed", prefill_tokens=100))
    assert watch.itl_ms == pytest.approx(40.0)
    assert watch.sigma == pytest.approx(2.0)


def test_without_a_baseline_mixed_steps_alone_say_nothing() -> None:
    watch = monitor(l_min_ms=None)
    for step in range(3 * STALE_AFTER_STEPS):
        assert not watch.observe(sample(30.0, step=step, kind="mixed", prefill_tokens=100))
    assert watch.sigma == 1.0
