"""The order of admission: the three terms by hand, and top-k against a full sort."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from scheduling_builders import request

from twp_sglang.scheduling.ranking import Ranking, first_come, shortest_prompt_first
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.waiting import WaitingQueue

T_MAX = 200
W1, W2, W3 = 0.6, 0.3, 0.1


def queue_of(requests: Sequence[RequestInfo]) -> WaitingQueue:
    queue = WaitingQueue()
    for one in requests:
        queue.add(one)
    return queue


def order(
    requests: Sequence[RequestInfo],
    *,
    pass_index: int = 0,
    mean_remaining: float = 20.0,
    weights: tuple[float, float, float] = (W1, W2, W3),
    k: int = 64,
) -> list[int]:
    ranking = Ranking(*weights, T_MAX)
    return [one.seq for one in ranking.top(queue_of(requests), pass_index, mean_remaining, k)]


def test_nobody_waits() -> None:
    assert order([]) == []
    assert order([request(1)], k=0) == []


def test_equal_requests_go_by_arrival_number_whatever_their_row() -> None:
    assert order([request(2), request(0), request(1)]) == [0, 1, 2]


def test_balance_prefers_the_length_of_the_active_batch() -> None:
    near, short, long = (
        request(2, expected_tokens=20),
        request(1, expected_tokens=5),
        request(0, expected_tokens=200),
    )
    assert order([long, short, near], mean_remaining=20.0) == [2, 1, 0]


@pytest.mark.parametrize(("waited", "first"), [(63, 0), (64, 1)])
def test_equation_five_against_waiting_time(waited: int, first: int) -> None:
    # r = 20. L = 20: T = 1. L = 41: T = exp(-21/21) = 0.36788.
    # 0.3 (1 - 0.36788) = 0.18964 is what 63.2 passes of 0.6/200 each make up for.
    fit = request(0, expected_tokens=20, arrival_pass=1000)
    misfit = request(1, expected_tokens=41, arrival_pass=1000 - waited)
    ranked = order([fit, misfit], pass_index=1000, weights=(W1, W2, 1e-9))
    assert ranked[0] == first


def test_balance_with_an_idle_engine_prefers_short_output() -> None:
    # r = 0: T = exp(-L)
    ranked = order(
        [request(0, expected_tokens=3), request(1, expected_tokens=1)], mean_remaining=0.0
    )
    assert ranked == [1, 0]


@pytest.mark.parametrize(("small_wait", "first"), [(25, 1), (26, 0)])
def test_fairness_weighs_waiting_by_job_size(small_wait: int, first: int) -> None:
    # Equal lengths, so equal balance. x = wait/size: the small job (100) against the large
    # one (400) that waited 100 passes, x = 0.25, x/(1 + x) = 0.2. Starvation counts as
    # little as it may, so the orders cross at wait/100 = 0.25.
    small = request(0, prompt_tokens=80, expected_tokens=20, arrival_pass=1000 - small_wait)
    large = request(1, prompt_tokens=380, expected_tokens=20, arrival_pass=900)
    ranked = order([small, large], pass_index=1000, weights=(1e-12, 1e-13, 1e-6))
    assert ranked[0] == first


def test_starvation_is_proportional_to_waiting() -> None:
    requests = [request(i, arrival_pass=100 - 10 * i) for i in range(5)]
    assert order(requests, pass_index=100) == [4, 3, 2, 1, 0]


def test_starved_requests_go_first_oldest_first() -> None:
    early = {"arrival_pass": 5, "expected_tokens": 4000}
    late = {"arrival_pass": 10, "expected_tokens": 4000}
    perfect = {"arrival_pass": 11, "expected_tokens": 20}

    def at(pass_index: int) -> list[int]:
        requests = [request(2, **perfect), request(1, **late), request(0, **early)]
        return order(requests, pass_index=pass_index)

    # At pass 210 they have waited 205, 200 and 199 passes; T_max is 200.
    assert at(210) == [0, 1, 2]
    # One pass earlier only the first is starved, and the better fit goes before the second.
    assert at(209) == [0, 2, 1]


def test_priority_comes_before_score_and_after_starvation() -> None:
    starved = request(0, arrival_pass=0, priority=0)
    high = request(1, arrival_pass=199, priority=9, expected_tokens=4000)
    good = request(2, arrival_pass=100, priority=0)
    assert order([good, high, starved], pass_index=200) == [0, 1, 2]


def reference(requests: Sequence[RequestInfo], pass_index: int, mean_remaining: float) -> list[int]:
    """The module's formula, one request at a time and fully sorted."""

    def key(one: RequestInfo) -> tuple:
        wait = pass_index - one.arrival_pass
        if wait >= T_MAX:
            return (0, 0, 0.0, one.seq)
        x = wait / max(1, one.prompt_tokens + one.expected_tokens)
        score = (
            W1 * min(1.0, wait / T_MAX)
            + W2 * math.exp(-abs(one.expected_tokens - mean_remaining) / (mean_remaining + 1))
            + W3 * x / (1 + x)
        )
        return (1, -one.priority, round(-score, 12), one.seq)

    return [one.seq for one in sorted(requests, key=key)]


@pytest.mark.parametrize("size", [1, 5, 64, 65, 300, 2047, 2048, 5000])
@pytest.mark.parametrize("priorities", [1, 3])
@pytest.mark.parametrize("oldest_wait", [150, 260])
def test_top_k_is_the_head_of_a_full_sort(size: int, priorities: int, oldest_wait: int) -> None:
    rng = random.Random(size * 10 + priorities)
    requests = [
        request(
            seq,
            arrival_pass=1000 - oldest_wait + seq * oldest_wait // size,
            prompt_tokens=rng.randint(0, 500),
            expected_tokens=rng.randint(0, 500),
            priority=rng.randrange(priorities),
        )
        for seq in range(size)
    ]
    queue = queue_of(requests)
    gone = set(rng.sample(range(size), size // 4))
    for seq in gone:
        queue.discard(requests[seq])
    left = [one for one in requests if one.seq not in gone]
    for k in (1, 7, 64):
        ranked = Ranking(W1, W2, W3, T_MAX).top(queue, 1000, 123.0, k)
        assert [one.seq for one in ranked] == reference(left, 1000, 123.0)[:k]


@pytest.mark.parametrize("size", [3, 70, 3000])
def test_top_k_of_equal_requests_is_by_arrival(size: int) -> None:
    rng = random.Random(size)
    requests = [request(seq) for seq in range(size)]
    rng.shuffle(requests)
    assert order(requests, pass_index=50, k=64) == list(range(min(64, size)))


def test_ranking_twice_says_the_same_and_leaves_the_queue() -> None:
    rng = random.Random(5)
    queue = queue_of([request(i, expected_tokens=rng.randint(1, 900)) for i in range(3000)])
    ranking = Ranking(W1, W2, W3, T_MAX)
    before = [column.copy() for column in queue.columns()]
    first = ranking.top(queue, 50, 100.0, 64)
    assert ranking.top(queue, 50, 100.0, 64) == first
    for column, copy in zip(queue.columns(), before, strict=True):
        assert column.tolist() == copy.tolist()


def test_first_come_is_by_priority_then_arrival() -> None:
    requests = [request(i, priority=i % 2, arrival_pass=0) for i in range(6)]
    random.Random(1).shuffle(requests)
    assert [one.seq for one in first_come(queue_of(requests), 4)] == [1, 3, 5, 0]
    plain = [request(i) for i in range(3000)]
    random.Random(1).shuffle(plain)
    assert [one.seq for one in first_come(queue_of(plain), 3)] == [0, 1, 2]


def test_shortest_prompt_first_by_priority_then_prompt_then_arrival() -> None:
    lengths = [30, 10, 20, 10]
    requests = [request(i, prompt_tokens=length) for i, length in enumerate(lengths)]
    assert [one.seq for one in shortest_prompt_first(queue_of(requests), 9)] == [1, 3, 2, 0]
    urgent = request(9, prompt_tokens=5000, priority=1)
    queue = queue_of([urgent, *(request(i, prompt_tokens=n) for i, n in enumerate(lengths))])
    assert [one.seq for one in shortest_prompt_first(queue, 2)] == [9, 1]
