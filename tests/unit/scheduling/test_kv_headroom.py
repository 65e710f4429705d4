"""delta_kv: tightens at once while memory depletes, relaxes slowly."""

from __future__ import annotations

import pytest

from twp_sglang.scheduling.kv_headroom import RATE_WEIGHT, KvHeadroom


def headroom() -> KvHeadroom:
    return KvHeadroom(low=0.05, high=0.30, horizon_steps=32, relax=0.05)


def test_it_rests_at_its_lower_bound_while_memory_is_stable() -> None:
    guard = headroom()
    for _ in range(50):
        assert guard.observe(600, 1000) == 0.05


def test_the_first_pass_has_no_rate() -> None:
    assert headroom().observe(10, 1000) == 0.05


def test_depletion_tightens_at_once() -> None:
    guard = headroom()
    guard.observe(1000, 1000)
    # d = 0.02, rho = 0.02/8 = 0.0025, delta = 0.05 + 32 * 0.0025
    assert guard.observe(980, 1000) == pytest.approx(0.13)
    # d = 0.02, rho = 0.0025 + (0.02 - 0.0025)/8 = 0.0046875
    assert guard.observe(960, 1000) == pytest.approx(0.05 + 32 * 0.0046875)
    assert RATE_WEIGHT == 0.125


def test_it_never_exceeds_its_upper_bound() -> None:
    guard = headroom()
    guard.observe(1000, 1000)
    for free in range(900, 0, -100):
        assert guard.observe(free, 1000) <= 0.30
    assert guard.threshold == 0.30


def test_it_relaxes_by_a_share_of_the_way_per_step() -> None:
    guard = headroom()
    guard.observe(1000, 1000)
    guard.observe(980, 1000)
    # rho = 0.0025 * 7/8 = 0.0021875, wanted 0.12; from 0.13 a twentieth of the way
    assert guard.observe(980, 1000) == pytest.approx(0.13 + 0.05 * (0.12 - 0.13))


def test_memory_coming_back_is_no_reason_to_go_below_the_lower_bound() -> None:
    guard = headroom()
    guard.observe(100, 1000)
    for free in range(200, 1000, 100):
        assert guard.observe(free, 1000) == 0.05


def test_after_a_burst_it_comes_back_to_its_lower_bound() -> None:
    guard = headroom()
    guard.observe(1000, 1000)
    for free in range(900, 400, -100):
        guard.observe(free, 1000)
    for _ in range(400):
        guard.observe(500, 1000)
    assert guard.threshold == pytest.approx(0.05, abs=1e-4)


def test_a_pool_of_unknown_size_changes_nothing() -> None:
    guard = headroom()
    assert guard.observe(0, 0) == 0.05
