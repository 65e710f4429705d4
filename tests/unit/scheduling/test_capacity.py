"""Requests larger than the pool, to the token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twp_sglang.scheduling.capacity import never_fits


def test_the_reason_says_what_to_change() -> None:
    reason = never_fits(9000, 2000, 10_000)
    assert reason is not None
    assert "11000 KV tokens" in reason
    assert "at most 998 new tokens" in reason
    assert never_fits(9000, 998, 10_000) is None
    assert never_fits(9000, 999, 10_000) is not None


def test_a_prompt_larger_than_the_pool_says_so() -> None:
    reason = never_fits(10_000, 1, 10_000)
    assert reason is not None
    assert "shorten the prompt" in reason


@given(
    prompt=st.integers(1, 5000),
    limit=st.integers(0, 5000),
    capacity=st.integers(1, 8000),
    page=st.sampled_from([1, 16, 64]),
)
def test_what_it_lets_through_leaves_room_for_a_page(
    prompt: int, limit: int, capacity: int, page: int
) -> None:
    fits = never_fits(prompt, limit, capacity, page) is None
    assert fits == (prompt + limit + page < capacity)
