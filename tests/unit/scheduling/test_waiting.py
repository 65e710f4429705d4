"""The queue as arrays: joins, leaves, and what it knows without being searched."""

from __future__ import annotations

import numpy as np
import pytest
from scheduling_builders import request

from twp_sglang.scheduling.waiting import WaitingQueue


def test_it_is_empty_at_first() -> None:
    queue = WaitingQueue()
    assert len(queue) == 0
    assert queue.oldest() is None
    assert queue.shortest_expected() is None
    assert list(queue) == []


def test_the_columns_hold_what_was_told() -> None:
    queue = WaitingQueue()
    queue.add(request(7, arrival_pass=3, prompt_tokens=30, expected_tokens=10, priority=2))
    columns = queue.columns()
    assert columns.alive.tolist() == [True]
    assert columns.seq.tolist() == [7]
    assert columns.arrival.tolist() == [3.0]
    assert columns.prompt.tolist() == [30.0]
    assert columns.expected.tolist() == [10.0]
    assert columns.inverse_size.tolist() == [1.0 / 40.0]
    assert columns.priority.tolist() == [2]


def test_a_request_of_no_size_does_not_divide_by_zero() -> None:
    queue = WaitingQueue()
    queue.add(request(1, prompt_tokens=0, expected_tokens=0))
    assert queue.columns().inverse_size.tolist() == [1.0]


def test_retracted_requests_stand_apart_in_their_order() -> None:
    queue = WaitingQueue()
    first, second, fresh = request(1, retracted=True), request(2, retracted=True), request(3)
    for one in (fresh, first, second):
        queue.add(one)
    assert list(queue.retracted) == [first, second]
    assert (len(queue), queue.fresh) == (3, 1)
    assert list(queue) == [first, second, fresh]
    queue.discard(first)
    assert list(queue.retracted) == [second]


def test_the_oldest_and_the_shortest_follow_those_who_leave() -> None:
    queue = WaitingQueue()
    requests = [request(i, expected_tokens=length) for i, length in enumerate((30, 10, 20))]
    for one in requests:
        queue.add(one)
    assert queue.oldest() is requests[0]
    assert queue.shortest_expected() == 10
    queue.discard(requests[1])
    assert queue.shortest_expected() == 20
    queue.discard(requests[0])
    assert queue.oldest() is requests[2]


def test_discarding_twice_or_a_stranger_changes_nothing() -> None:
    queue = WaitingQueue()
    here, stranger = request(1), request(2)
    queue.add(here)
    queue.discard(stranger)
    assert len(queue) == 1
    queue.discard(here)
    queue.discard(here)
    assert len(queue) == 0
    queue.discard(request(3, retracted=True))
    assert len(queue) == 0


def test_a_request_of_another_queue_is_a_stranger() -> None:
    mine, other = WaitingQueue(), WaitingQueue()
    here, there = request(1), request(2)
    mine.add(here)
    other.add(there)
    mine.discard(there)
    assert list(mine) == [here]


@pytest.mark.parametrize("retracted", [False, True])
def test_joining_twice_is_refused(retracted: bool) -> None:
    queue = WaitingQueue()
    one = request(1, retracted=retracted)
    queue.add(one)
    with pytest.raises(ValueError, match="waits already"):
        queue.add(one)
    assert len(queue) == 1


def test_who_left_may_join_again() -> None:
    queue = WaitingQueue()
    one = request(1)
    queue.add(one)
    queue.discard(one)
    queue.add(one)
    assert list(queue) == [one]
    assert queue.oldest() is one


def test_mixed_priorities_are_forgotten_when_the_queue_empties() -> None:
    queue = WaitingQueue()
    low, high = request(1, priority=0), request(2, priority=5)
    queue.add(low)
    assert not queue.mixed_priorities
    queue.add(high)
    assert queue.mixed_priorities
    queue.discard(low)
    queue.discard(high)
    queue.add(request(3))
    assert not queue.mixed_priorities


def test_rows_are_reused_so_that_a_long_life_does_not_grow_the_arrays() -> None:
    queue = WaitingQueue()
    live: list = []
    for seq in range(20_000):
        one = request(seq, arrival_pass=seq, expected_tokens=seq % 7)
        queue.add(one)
        live.append(one)
        if len(live) > 50:
            queue.discard(live.pop(seq % 50))
    columns = queue.columns()
    assert columns.alive.size <= 512
    assert int(columns.alive.sum()) == len(queue) == len(live)
    assert sorted(columns.seq[columns.alive].tolist()) == sorted(one.seq for one in live)
    assert queue.oldest() is min(live, key=lambda one: one.seq)
    assert queue.shortest_expected() == min(one.expected_tokens for one in live)
    assert set(queue) == set(live)


def test_a_burst_that_leaves_again_gives_its_rows_back() -> None:
    queue = WaitingQueue()
    burst = [request(seq) for seq in range(5000)]
    for one in burst:
        queue.add(one)
    for one in burst[:-10]:
        queue.discard(one)
    assert queue.columns().alive.size < 1300
    assert list(queue) == burst[-10:]


def test_rows_lead_back_to_their_requests() -> None:
    queue = WaitingQueue()
    requests = [request(seq) for seq in range(4)]
    for one in requests:
        queue.add(one)
    assert queue.pick(np.array([2, 0])) == [requests[2], requests[0]]
    assert queue.pick(np.array([], dtype=np.intp)) == []


def test_the_prompt_tokens_of_those_who_wait_are_kept() -> None:
    queue = WaitingQueue()
    members = [request(seq, prompt_tokens=seq) for seq in range(1, 400)]
    for one in members:
        queue.add(one)
    back = request(1000, prompt_tokens=7, retracted=True)
    queue.add(back)
    assert queue.prompt_tokens == sum(range(1, 400)) + 7
    for one in members[:350]:
        queue.discard(one)
        queue.discard(one)
    queue.discard(back)
    queue.discard(back)
    assert queue.prompt_tokens == sum(range(351, 400))
    for one in members:
        queue.discard(one)
    assert queue.prompt_tokens == 0
