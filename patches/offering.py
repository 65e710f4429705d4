"""Puts the granted requests at the front of SGLang's waiting queue.

SGLang offers waiting requests to the prefill batch from the front. The others keep their
places: fallback and SGLang's own policies find the queue as they would have left it.

Finding a request by walking the queue would cost milliseconds with 100,000 waiting. The
queue is nearly always in order of arrival, apart from what was put in front in the pass
before and not taken; so that is put back, and places are found by bisection. Where
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

        Everything that can go wrong does so before the queue is touched: losing a place in
        it would lose somebody's request.

        Raises:
            ValueError: one of ``chosen`` does not wait here, or is named twice.
        """
        if not chosen and not self._front:
            return
        count = self._count_left(waiting_queue)
        left = waiting_queue[:count]
        wanted = {id(req) for req in chosen}
        ahead = {id(req) for req in left}
        if len(wanted) != len(chosen):
            raise ValueError("a granted request was named twice")
        rows = self._rows(waiting_queue, [req for req in chosen if id(req) not in ahead], count)
        moves: list[tuple[int, int, Any]] = [(row, _OUT, None) for row in rows]
        moves += [
            (self._place(waiting_queue, req, count), self._arrival_of(req), req)
            for req in left
            if id(req) not in wanted
        ]
        # One by one from behind: moving pointers is cheap, while a rebuilt list would touch
        # every request that waits.
        for row, arrival, req in sorted(moves, key=lambda move: move[:2], reverse=True):
            if arrival == _OUT:
                del waiting_queue[row]
            else:
                waiting_queue.insert(row, req)
        waiting_queue[:count] = chosen
        self._front = chosen

    def _count_left(self, waiting_queue: list[Any]) -> int:
        """How many of those put in front by the last pass the engine left there."""
        last = {id(req) for req in self._front}
        count = 0
        while count < len(waiting_queue) and id(waiting_queue[count]) in last:
            count += 1
        return count

    def _rows(self, waiting_queue: list[Any], chosen: list[Any], start: int) -> list[int]:
        rows = []
        for req in chosen:
            row = self._place(waiting_queue, req, start)
            if row == len(waiting_queue) or waiting_queue[row] is not req:
                return _walk(waiting_queue, chosen)
            rows.append(row)
        return rows

    def _place(self, waiting_queue: list[Any], req: Any, start: int) -> int:
        """Where ``req`` stands, or would, in what follows ``start``."""
        return bisect_left(waiting_queue, self._arrival_of(req), start, key=self._arrival_of)


_OUT = 1 << 62
"""Marks a request that leaves its row; above every arrival number, so that it leaves before
another is put back into that row."""


def _walk(waiting_queue: list[Any], chosen: list[Any]) -> list[int]:
    wanted = {id(req) for req in chosen}
    rows = [row for row, req in enumerate(waiting_queue) if id(req) in wanted]
    if len(rows) != len(chosen):
        raise ValueError("a granted request does not wait")
    return rows
