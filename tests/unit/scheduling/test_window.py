"""H: equations (3) and (4) by hand, and the H0 that follows the requests."""

from __future__ import annotations

import pytest
from scheduling_builders import config

from controllers.laws.base import LawSample
from twp_sglang.scheduling.laws import clamps_of
from twp_sglang.scheduling.window import LENGTH_WEIGHT, REBUILD_RATIO, Window


def law_sample(sigma: float, queue: int, load_tokens: int = 400) -> LawSample:
    return LawSample(sigma, 40.0, 40.0, queue, load_tokens, 8)


def test_it_starts_at_h0() -> None:
    assert Window(config(h0_tokens=400.0)).tokens == 400.0


def test_it_starts_inside_the_clamps() -> None:
    assert Window(config(h0_tokens=400.0, h_max_tokens=300.0)).tokens == 300.0


def test_equations_three_and_four() -> None:
    window = Window(config(h0_tokens=400.0, gamma=0.15, queue_ref=16.0))
    # H* = 400 (1 + 8/16) / 2 = 300;  H = 400 + 0.15 (300 - 400) = 385
    assert window.step(law_sample(sigma=2.0, queue=8)) == pytest.approx(385.0)
    # H* = 400 (1 + 1) / 1 = 800;  H = 385 + 0.15 (800 - 385) = 447.25
    assert window.step(law_sample(sigma=1.0, queue=40)) == pytest.approx(447.25)
    # H* = 400 (1 + 0) / 0.5, the floor of sigma;  H = 447.25 + 0.15 (800 - 447.25)
    assert window.step(law_sample(sigma=0.25, queue=0)) == pytest.approx(500.1625)
    assert window.tokens == pytest.approx(500.1625)


def test_the_clamps_hold() -> None:
    window = Window(config(h0_tokens=400.0, gamma=1.0, h_min_tokens=350.0, h_max_tokens=500.0))
    assert window.step(law_sample(sigma=9.0, queue=0)) == 350.0
    assert window.step(law_sample(sigma=0.5, queue=99)) == 500.0


def test_the_unset_clamps_are_a_quarter_and_twice_h0() -> None:
    window = Window(config(h0_tokens=400.0, gamma=1.0))
    assert window.step(law_sample(sigma=9.0, queue=0)) == 100.0
    assert window.step(law_sample(sigma=0.5, queue=99)) == 800.0


def test_a_given_h0_does_not_follow_the_requests() -> None:
    window = Window(config(h0_tokens=400.0))
    for _ in range(1000):
        window.arrived(4096)
    assert window.h0_tokens == 400.0


def test_an_automatic_h0_starts_at_the_papers_and_goes_to_b0_times_the_mean_length() -> None:
    window = Window(config(b0=8))
    assert window.h0_tokens == 400.0
    for _ in range(2000):
        window.arrived(100)
    # The mean is 100 by now; H0 follows in steps of up to 5 %.
    assert 800.0 / REBUILD_RATIO <= window.h0_tokens <= 800.0


def test_an_automatic_h0_takes_no_notice_of_one_odd_request() -> None:
    window = Window(config(b0=8))
    window.arrived(200)
    # 50 + (200 - 50)/64 = 52.3: less than 5 % away.
    assert 50.0 + LENGTH_WEIGHT * 150.0 < 50.0 * REBUILD_RATIO
    assert window.h0_tokens == 400.0


def test_the_window_keeps_its_place_while_h0_moves_under_it() -> None:
    window = Window(config(b0=8))
    for _ in range(40):
        window.arrived(100)
    assert window.h0_tokens > 400.0
    assert window.tokens == 400.0


def test_the_clamps_of_a_new_h0_hold_before_the_next_step_is_measured() -> None:
    window = Window(config(b0=8))
    for _ in range(500):
        window.arrived(4000)
    for _ in range(50):
        window.step(law_sample(sigma=1.0, queue=99))
    assert window.tokens > 30_000.0
    for _ in range(500):
        window.arrived(10)
    low, high = clamps_of(window.law)
    assert high < 400.0
    assert window.tokens == high
    assert low <= window.step(law_sample(sigma=1.0, queue=99)) <= high


def test_requests_without_output_leave_a_window_that_can_open() -> None:
    window = Window(config(b0=8))
    for _ in range(5000):
        window.arrived(0)
    assert window.h0_tokens >= 8.0 / REBUILD_RATIO
