"""A line in which clients take turns by their counters (:mod:`client_turns`).

The heads of the clients are kept in a heap from pass to pass, so that whoever takes a few from
the front pays for those few and not for all clients that wait.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace

from twp_sglang.scheduling.client_turns import INPUT_WEIGHT, ClientTurns
from twp_sglang.scheduling.request import RequestInfo

_SPARE = 64
"""Outdated heads that may be kept beyond as many as there are clients."""

_Key = tuple[float, ...]
_Head = tuple[float, float, _Key, str]
"""First of a client in line: priority, counter, key, client."""


class TurnLine:
    """A line in which clients take turns; those of one client keep the order of their keys.

    Args:
        turns: the counters; None makes everybody one client.
    """

    def __init__(self, turns: ClientTurns | None) -> None:
        self._turns = turns
        self._clients: dict[str, list[tuple[_Key, RequestInfo]]] = {}
        # Heap of a head for each client. A counter only grows while its client waits, so that
        # an outdated head is never behind the present one: it is put right when it comes up.
        self._heads: list[_Head] = []
        self._valid: dict[str, _Head] = {}

    def add(self, key: _Key, request: RequestInfo) -> None:
        """Stand in line by ``key``, which begins with the priority (smaller goes first) and
        ends with the arrival number."""
        client = self._client(request)
        line = self._clients.setdefault(client, [])
        insort(line, (key, request), key=_key_of)
        if self._turns is not None and line[0][1] is request:
            self._valid[client] = head = self._head(client)
            heappush(self._heads, head)
            if len(self._heads) > 2 * len(self._clients) + _SPARE:
                self._heads = list(self._valid.values())
                heapify(self._heads)

    def discard(self, key: _Key, request: RequestInfo) -> None:
        """Leave the line; unknown requests are ignored."""
        client = self._client(request)
        line = self._clients.get(client, [])
        place = bisect_left(line, key, key=_key_of)
        if place < len(line) and line[place][1] is request:
            del line[place]
            if not line:
                del self._clients[client]
                self._valid.pop(client, None)

    def in_turn(self) -> Iterator[RequestInfo]:
        """Everybody: by priority, then by turns, then by key. Changes nothing; the turn after
        a request counts its prompt as served. It is to be used up before the line changes.

        Costs what is taken from it, not what there is.
        """
        if self._turns is None or len(self._clients) == 1:
            for line in self._clients.values():
                yield from (request for _, request in line)
            return
        self._settle()
        heap = self._heads
        # The heap is read from its root on; -1 marks what is no entry of it. Keys end with the
        # arrival number: clients of equal rank are told apart before their names.
        ahead: list[tuple[_Head, int, int]] = [(heap[0], 0, 0)] if heap else []
        while ahead:
            head, place, spot = heappop(ahead)
            _, counter, _, client = head
            if spot >= 0:
                for child in range(2 * spot + 1, min(2 * spot + 3, len(heap))):
                    heappush(ahead, (heap[child], 0, child))
                if self._valid.get(client) is not head:
                    continue
                now = self._head(client)
                if now != head:
                    heappush(ahead, (now, 0, -1))
                    continue
            line = self._clients[client]
            request = line[place][1]
            yield request
            place += 1
            if place < len(line):
                key = line[place][0]
                counter += INPUT_WEIGHT * request.prompt_tokens
                heappush(ahead, ((key[0], counter, key, client), place, -1))

    def _settle(self) -> None:
        """Put the root of the heap right."""
        heap = self._heads
        while heap:
            head = heap[0]
            client = head[3]
            if self._valid.get(client) is not head:
                heappop(heap)
                continue
            now = self._head(client)
            if now == head:
                return
            self._valid[client] = now
            heapreplace(heap, now)

    def _head(self, client: str) -> _Head:
        assert self._turns is not None
        key = self._clients[client][0][0]
        return (key[0], self._turns.counter(client), key, client)

    def _client(self, request: RequestInfo) -> str:
        return "" if self._turns is None else request.client


def _key_of(entry: tuple[_Key, RequestInfo]) -> _Key:
    return entry[0]
