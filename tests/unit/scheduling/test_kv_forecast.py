"""The predicted peak against a step-by-step replay of the same assumption."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from twp_sglang.scheduling.kv_forecast import KvForecast

ROWS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), max_size=12)


def replayed(rows: list[tuple[int, int]]) -> int:
    """Most tokens held at once when all decode together and each ends when it should."""
    return max(
        sum(held + step for held, left in rows if left >= step)
        for step in range(max((left for _, left in rows), default=0) + 1)
    )


def forecast(rows: list[tuple[int, int]], capacity: int, margin: float = 0.0) -> KvForecast:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return KvForecast(columns[:, 0], columns[:, 1], int(columns[:, 0].sum()), capacity, margin)


@given(ROWS)
def test_the_peak_is_that_of_the_replay(rows: list[tuple[int, int]]) -> None:
    assert forecast(rows, 10**6).peak == replayed(rows)


@given(ROWS, st.lists(st.tuples(st.integers(1, 400), st.integers(0, 60)), max_size=6))
def test_who_fits_is_who_keeps_the_replayed_peak_within_the_limit(
    rows: list[tuple[int, int]], coming: list[tuple[int, int]]
) -> None:
    capacity = 1500
    pool = forecast(rows, capacity)
    inside = list(rows)
    for prompt, left in coming:
        fits = replayed([*inside, (prompt, left)]) <= capacity
        assert pool.fits(prompt, left) == fits
        if fits:
            pool.join(prompt, left)
            inside.append((prompt, left))
        assert pool.peak >= replayed(inside), "a bound at every moment"


def test_by_hand() -> None:
    # 100 held with 50 to come, 200 with 10: 300 + 2 * 10 before the second ends.
    pool = forecast([(100, 50), (200, 10)], 1000, margin=0.04)
    assert pool.peak == 320
    # A third of 600 and 5: 900 + 3 * 5 at its end; 960 is the limit.
    assert pool.fits(600, 5)
    assert pool.fits(640, 6)
    assert not pool.fits(640, 7)


def test_a_shared_prefix_is_given_back_in_parts_and_the_rest_belongs_to_nobody() -> None:
    held, left = np.array([500, 500]), np.array([10, 10])
    assert KvForecast(held, left, 600, 2000, 0.0).peak == 600 + 20
    assert KvForecast(held, left, 1100, 2000, 0.0).peak == 1100 + 20


def test_an_empty_pool() -> None:
    none = np.zeros(0, dtype=np.int64)
    pool = KvForecast(none, none, 0, 100, 0.1)
    assert pool.peak == 0
    assert pool.fits(80, 10)
    assert not pool.fits(80, 11)
