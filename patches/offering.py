"""Puts the granted requests at the front of SGLang's waiting queue.

SGLang offers waiting requests to the prefill batch from the front. The others keep their
places: fallback and SGLang's own policies find the queue as they would have left it.

Finding a request by walking the queue would cost milliseconds with 100,000 waiting. The
queue is nearly always in order of arrival, apart from what was put in front in the pass
before and not taken; so that is put back first, and places are found by bisection. Where
SGLang sorts its queue by something else, bisection misses, which is noticed, and the walk
is taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any


class Offering:
    """Remembers what stands in front out of its place."""

    def __init__(self, arrival_of: Callable[[Any], int]) -> None:
        self._arrival_of = arrival_of
        self._front: list[Any] = []

    def put_first(self, waiting_queue: list[Any], chosen: list[Any]) -> None:
        """Reorder in place: ``chosen`` first, the rest in their order.

        Whatever goes wrong, the queue is left as it was: losing a place in it would lose
        somebody's request.

        Raises:
            ValueError: one of ``chosen`` does not wait here.
        """
        if not chosen and not self._front:
            return
        before, front = waiting_queue.copy(), self._front
        try:
            self._put_first(waiting_queue, chosen)
        except Exception:
            waiting_queue[:] = before
            self._front = front
            raise

    def _put_first(self, waiting_queue: list[Any], chosen: list[Any]) -> None:
        left = self._take_left(waiting_queue)
        wanted = {id(req) for req in chosen}
        in_hand = set()
        for req in left:
            if id(req) in wanted:
                in_hand.add(id(req))
            else:
                waiting_queue.insert(self._place(waiting_queue, req), req)
        rows = self._rows(waiting_queue, [req for req in chosen if id(req) not in in_hand])
        # One by one from behind: moving pointers is cheap, while a rebuilt list would touch
        # every request that waits.
        for row in sorted(rows, reverse=True):
            del waiting_queue[row]
        waiting_queue[:0] = chosen
        self._front = chosen

    def _take_left(self, waiting_queue: list[Any]) -> list[Any]:
        """Cut off those at the front that the last pass put there and the engine left."""
        last = {id(req) for req in self._front}
        self._front = []
        count = 0
        while count < len(waiting_queue) and id(waiting_queue[count]) in last:
            count += 1
        left = waiting_queue[:count]
        del waiting_queue[:count]
        return left

    def _rows(self, waiting_queue: list[Any], chosen: list[Any]) -> list[int]:
        rows = []
        for req in chosen:
            row = self._place(waiting_queue, req)
            if row == len(waiting_queue) or waiting_queue[row] is not req:
                return _walk(waiting_queue, chosen)
            rows.append(row)
        if len(set(rows)) != len(rows):
            raise ValueError("a granted request was named twice")
        return rows

    def _place(self, waiting_queue: list[Any], req: Any) -> int:
        return bisect_left(waiting_queue, self._arrival_of(req), key=self._arrival_of)


def _walk(waiting_queue: list[Any], chosen: list[Any]) -> list[int]:
    wanted = {id(req) for req in chosen}
    rows = [row for row, req in enumerate(waiting_queue) if id(req) in wanted]
    if len(rows) != len(chosen):
        raise ValueError("a granted request does not wait")
    return rows
