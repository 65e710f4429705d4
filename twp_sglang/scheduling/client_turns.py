"""Whose turn it is: virtual token counters of the clients (VTC, Sheng et al., OSDI 2024).

Each client has a counter of the service it got,

    counter = INPUT_WEIGHT * prompt tokens + OUTPUT_WEIGHT * produced tokens

and of requests that are equal otherwise, that of the client with the smallest counter goes
first. A client that comes back from having nothing to do is lifted to the smallest counter
among those who wait (or that of the client that left last), so that nobody saves up turns.
Two clients who always have somebody waiting then differ by at most twice
max(INPUT_WEIGHT * longest prompt, OUTPUT_WEIGHT * tokens that the batch can hold), and by
what the batch produces between two looks at it.

Requests that name no client are one client together; with a single client the order is the
one there would be without this.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

import numpy as np

from twp_sglang.scheduling.active_rows import ActiveRows, Tokens
from twp_sglang.scheduling.request import RequestInfo

INPUT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0
"""The paper's weights, from the prices that providers ask."""

MAX_CLIENTS = 1024
"""Counters kept of clients that have nobody waiting; the one that came longest ago makes way
and starts from the lift when it returns."""

LOOK_EVERY_PASSES = 8
"""How often running requests are charged for: what they produce meanwhile is little beside what
a batch holds, and looking in every pass would be felt."""

_NEVER = 2**62

_SPARE = 64
"""Outdated entries that a heap may hold beyond as many as there are valid ones."""


class ClientTurns:
    """The counters. Clients with somebody waiting are always known.

    An arrival and a departure cost O(log clients), averaged over all of them.
    """

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        self._arrivals = 0
        self._last_arrival: dict[str, int] = {}
        # (counter, number, client) of those who wait: the counter of when it was written, which
        # the present one is never below; the number says which entry of a client is valid.
        self._smallest: list[tuple[float, int, str]] = []
        self._entry: dict[str, int] = {}
        # (last arrival, client) of those who do not wait.
        self._idle: list[tuple[int, str]] = []
        self._inside: set[int] = set()
        self._left_last = 0.0
        self._ledger: _Ledger | None = None
        self._looked_at = -LOOK_EVERY_PASSES

    def counter(self, client: str) -> float:
        """Service of ``client`` so far, weighted tokens."""
        return self._counters.get(client, 0.0)

    def arrived(self, request: RequestInfo) -> None:
        """A request joined the queue."""
        client = request.client
        self._inside.add(request.seq)
        self._arrivals += 1
        self._last_arrival[client] = self._arrivals
        if client in self._waiting:
            self._waiting[client] += 1
        else:
            counter = max(self._counters.get(client, 0.0), self._lift())
            self._counters[client] = counter
            self._waiting[client] = 1
            self._entry[client] = self._arrivals
            heappush(self._smallest, (counter, self._arrivals, client))
        if len(self._counters) > MAX_CLIENTS:
            self._forget_one()

    def left(self, request: RequestInfo) -> None:
        """A request left the queue, served or not; unknown ones are ignored."""
        if request.seq not in self._inside:
            return
        self._inside.remove(request.seq)
        client = request.client
        self._waiting[client] -= 1
        if not self._waiting[client]:
            del self._waiting[client], self._entry[client]
            self._left_last = self._counters[client]
            heappush(self._idle, (self._last_arrival[client], client))
            self._compact()

    def _lift(self) -> float:
        """The smallest counter among those who wait, or that of the client that left last."""
        heap = self._smallest
        while heap:
            counter, number, client = heap[0]
            if self._entry.get(client) != number:
                heappop(heap)
            elif self._counters[client] != counter:
                heapreplace(heap, (self._counters[client], number, client))
            else:
                return counter
        return self._left_last

    def _forget_one(self) -> None:
        """Of those who do not wait, the one that came longest ago makes way."""
        while self._idle:
            arrival, client = heappop(self._idle)
            if self._is_idle(arrival, client):
                del self._counters[client], self._last_arrival[client]
                return

    def _is_idle(self, arrival: int, client: str) -> bool:
        return client not in self._waiting and self._last_arrival.get(client) == arrival

    def _compact(self) -> None:
        """Drop outdated entries where they are most of a heap."""
        if len(self._smallest) > 2 * len(self._waiting) + _SPARE:
            self._smallest = [
                entry for entry in self._smallest if self._entry.get(entry[2]) == entry[1]
            ]
            heapify(self._smallest)
        idle = len(self._counters) - len(self._waiting)
        if len(self._idle) > 2 * idle + _SPARE:
            self._idle = [entry for entry in self._idle if self._is_idle(*entry)]
            heapify(self._idle)

    def served_prompt(self, request: RequestInfo) -> None:
        """Its prompt was admitted, for the first time."""
        self._charge(request.client, INPUT_WEIGHT * request.prompt_tokens)

    def look_due(self, pass_index: int) -> bool:
        """Whether it is time for :meth:`served_rows`: then in this pass, and only where turns
        mean something."""
        if len(self._counters) <= 1 or pass_index - self._looked_at < LOOK_EVERY_PASSES:
            return False
        self._looked_at = pass_index
        return True

    def served_rows(self, rows: ActiveRows) -> None:
        """Charge what the active requests have produced since they were last looked at; a
        second look at the same rows charges nothing."""
        ledger = self._ledger
        if ledger is None or rows.requests is not ledger.requests:
            self._close_ledger()
            ledger = self._ledger = _Ledger(rows.requests)
        for client, tokens in ledger.new_tokens(rows.produced_tokens):
            self._charge(client, OUTPUT_WEIGHT * tokens)

    def served_output(self, request: RequestInfo, produced_tokens: int) -> None:
        """``request`` ended with so many tokens in all."""
        self._close_ledger()
        new = produced_tokens - request.charged_tokens
        if new > 0:
            request.charged_tokens = produced_tokens
            self._charge(request.client, OUTPUT_WEIGHT * new)

    def _close_ledger(self) -> None:
        if self._ledger is not None:
            self._ledger.write_back()
            self._ledger = None

    def _charge(self, client: str, service: float) -> None:
        # A client that made way is lifted when it returns; until then nothing is kept of it.
        if client in self._counters:
            self._counters[client] += service

    def snapshot(self) -> dict[str, Any]:
        """JSON types only: the spread among those who wait tells whether turns work."""
        waiting = [self._counters[name] for name in self._waiting]
        return {
            "clients": len(self._counters),
            "clients_waiting": len(waiting),
            "client_service_spread": max(waiting) - min(waiting) if waiting else 0.0,
        }


class _Ledger:
    """What the active requests have been charged for, while they stay the same."""

    def __init__(self, requests: Sequence[RequestInfo | None]) -> None:
        self.requests = requests
        self._clients: dict[str, int] = {}
        places = [
            self._clients.setdefault("" if request is None else request.client, len(self._clients))
            for request in requests
        ]
        self._places = np.array(places, dtype=np.intp)
        # Whoever was not seen to arrive is never charged for.
        charged = (_NEVER if request is None else request.charged_tokens for request in requests)
        self._charged = np.fromiter(charged, dtype=np.int64, count=len(requests))

    def new_tokens(self, produced: Tokens) -> list[tuple[str, float]]:
        """Tokens produced and not charged for yet, by client; they are charged from now on."""
        new = np.maximum(produced - self._charged, 0)
        if not new.any():
            return []
        self._charged += new
        sums = np.bincount(self._places, weights=new, minlength=len(self._clients)).tolist()
        return [(client, sums[place]) for client, place in self._clients.items()]

    def write_back(self) -> None:
        """Let each request know what it was charged for."""
        for request, charged in zip(self.requests, self._charged.tolist(), strict=True):
            if request is not None:
                request.charged_tokens = charged
