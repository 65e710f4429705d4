"""Granted requests come to the front; nobody is lost and the rest keeps its order."""

from __future__ import annotations

import random

import pytest

from patches.offering import Offering


class Req:
    """A waiting request with its arrival number."""

    def __init__(self, seq: int) -> None:
        self.seq = seq

    def __repr__(self) -> str:
        return f"#{self.seq}"


def offering() -> Offering:
    return Offering(lambda req: req.seq)


def seqs(queue: list[Req]) -> list[int]:
    return [req.seq for req in queue]


def test_the_chosen_go_first_in_their_order() -> None:
    queue = [Req(i) for i in range(6)]
    offering().put_first(queue, [queue[4], queue[1]])
    assert seqs(queue) == [4, 1, 0, 2, 3, 5]


def test_nothing_chosen_leaves_the_queue() -> None:
    queue = [Req(i) for i in range(3)]
    offering().put_first(queue, [])
    assert seqs(queue) == [0, 1, 2]


def test_who_was_not_taken_goes_back_to_its_place() -> None:
    queue = [Req(i) for i in range(6)]
    order = offering()
    order.put_first(queue, [queue[4], queue[1], queue[3]])
    queue.pop(0)  # the engine took the first and no more
    queue.append(Req(6))
    order.put_first(queue, [])
    assert seqs(queue) == [0, 1, 2, 3, 5, 6]


def test_who_was_not_taken_may_be_chosen_again() -> None:
    queue = [Req(i) for i in range(6)]
    order = offering()
    order.put_first(queue, [queue[4], queue[1], queue[3]])
    queue.pop(0)
    order.put_first(queue, [queue[1], queue[4]])
    assert seqs(queue) == [3, 5, 0, 1, 2]


def test_a_queue_in_another_order_is_walked() -> None:
    queue = [Req(i) for i in (5, 0, 3, 1, 4, 2)]
    offering().put_first(queue, [queue[3], queue[5]])
    assert seqs(queue) == [1, 2, 5, 0, 3, 4]


def test_the_queue_object_stays_the_same() -> None:
    queue = [Req(i) for i in range(4)]
    held = queue
    offering().put_first(queue, [queue[3]])
    assert held is queue
    assert seqs(held) == [3, 0, 1, 2]


def test_a_stranger_is_refused_and_nobody_is_lost() -> None:
    queue = [Req(i) for i in range(4)]
    order = offering()
    order.put_first(queue, [queue[2]])
    with pytest.raises(ValueError, match="does not wait"):
        order.put_first(queue, [queue[0], Req(9)])
    assert seqs(queue) == [2, 0, 1, 3]
    with pytest.raises(ValueError, match="twice"):
        order.put_first(queue, [queue[1], queue[1]])
    assert seqs(queue) == [2, 0, 1, 3]
    # What the failed attempts left is understood by the next one.
    order.put_first(queue, [])
    assert seqs(queue) == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(40))
def test_any_course_of_events_against_plain_lists(seed: int) -> None:
    rng = random.Random(seed)
    order = offering()
    queue: list[Req] = []
    joined = 0
    for _ in range(60):
        for _ in range(rng.randrange(5)):
            queue.append(Req(joined))
            joined += 1
        for req in [req for req in queue if rng.random() < 0.05]:
            queue.remove(req)
        chosen = rng.sample(queue, min(len(queue), rng.randrange(6)))
        order.put_first(queue, chosen)
        # The rest in order of arrival, as SGLang's own queue would be.
        assert queue[: len(chosen)] == chosen
        rest = seqs(queue[len(chosen) :])
        assert rest == sorted(rest)
        taken = rng.randint(0, len(chosen))
        queue = [req for req in queue if req not in chosen[:taken]]
