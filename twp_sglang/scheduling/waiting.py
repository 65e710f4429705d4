"""The waiting queue as arrays, kept up to date as requests come and go.

Ranking 100,000 requests has to be a handful of vector operations, so their attributes
live in numpy columns. A request keeps its row until it leaves; rows of those that left
are dropped when they outnumber the rest.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twp_sglang.scheduling.request import RequestInfo

_FIRST_ROWS = 256

_Line = list[tuple[int, int, RequestInfo]]
"""A heap by (what is looked for, arrival number). Those who leave stay in it until they
come to its head, or until the rows are packed anew."""


class Columns(NamedTuple):
    """Attributes of the fresh requests, one row each; rows not ``alive`` mean nothing.

    Views into the queue's own arrays, valid until it changes.
    """

    alive: NDArray[np.bool_]
    seq: NDArray[np.int64]
    arrival: NDArray[np.float64]
    prompt: NDArray[np.float64]
    cached: NDArray[np.float64]
    """Tokens of the prompt that need not be computed."""
    expected: NDArray[np.float64]
    inverse_size: NDArray[np.float64]
    """1 / (prompt + expected output), the sum at least 1 token."""
    priority: NDArray[np.int64]


class WaitingQueue:
    """Requests waiting for admission; retracted ones in a line of their own."""

    def __init__(self) -> None:
        self._rows: list[RequestInfo | None] = []
        self._columns = _allocate(_FIRST_ROWS)
        self._live = 0
        self._by_arrival: _Line = []
        self._by_length: _Line = []
        self._retracted: deque[RequestInfo] = deque()
        self._priorities_seen: set[int] = set()
        self.prompt_tokens = 0
        """Prompt tokens of all that wait, retracted ones included."""
        self.cached_tokens = 0
        """Those of them that the engine's prefix cache holds."""

    def __len__(self) -> int:
        return self._live + len(self._retracted)

    def __iter__(self) -> Iterator[RequestInfo]:
        yield from self._retracted
        yield from (request for request in self._rows if request is not None)

    def __contains__(self, request: object) -> bool:
        """Whether ``request`` waits here."""
        if not isinstance(request, RequestInfo):
            return False
        if request.retracted:
            return request in self._retracted
        row = request.slot
        return 0 <= row < len(self._rows) and self._rows[row] is request

    @property
    def fresh(self) -> int:
        """Waiting requests that have not run before."""
        return self._live

    def fresh_requests(self) -> list[RequestInfo]:
        """Those that have not run before, in no particular order."""
        return [request for request in self._rows if request is not None]

    @property
    def retracted(self) -> deque[RequestInfo]:
        """Requests that lost their memory, in the order in which they lost it."""
        return self._retracted

    @property
    def mixed_priorities(self) -> bool:
        """Whether requests of different priority have waited here."""
        return len(self._priorities_seen) > 1

    @property
    def tokens_to_serve(self) -> int:
        """Prompt tokens of all that wait and that the engine has to compute."""
        return self.prompt_tokens - self.cached_tokens

    def tokens_to_serve_at(self, priority: int) -> int:
        """Prompt tokens to compute of those whose turn comes before a newcomer of ``priority``:
        retracted ones, and those of its priority and above."""
        if not self.mixed_priorities and priority <= min(self._priorities_seen, default=priority):
            return self.tokens_to_serve
        used = len(self._rows)
        columns = self._columns
        before = columns.alive[:used] & (columns.priority[:used] >= priority)
        fresh = int((columns.prompt[:used] - columns.cached[:used])[before].sum())
        return fresh + sum(one.prompt_tokens - one.cached_tokens for one in self._retracted)

    def add(self, request: RequestInfo) -> None:
        """Let ``request`` join.

        Raises:
            ValueError: it waits here already.
        """
        if request.slot >= 0 or (request.retracted and request in self._retracted):
            raise ValueError(f"{request!r} waits already: a request joins once")
        self.prompt_tokens += request.prompt_tokens
        self.cached_tokens += request.cached_tokens
        if request.retracted:
            self._retracted.append(request)
            return
        if len(self._rows) == len(self._columns.seq):
            self._repack()
        row = len(self._rows)
        request.slot = row
        self._rows.append(request)
        columns = self._columns
        columns.alive[row] = True
        columns.seq[row] = request.seq
        columns.arrival[row] = request.arrival_pass
        columns.prompt[row] = request.prompt_tokens
        columns.cached[row] = request.cached_tokens
        columns.expected[row] = request.expected_tokens
        columns.inverse_size[row] = 1.0 / max(1, request.prompt_tokens + request.expected_tokens)
        columns.priority[row] = request.priority
        self._priorities_seen.add(request.priority)
        self._live += 1
        heapq.heappush(self._by_arrival, (request.arrival_pass, request.seq, request))
        heapq.heappush(self._by_length, (request.expected_tokens, request.seq, request))

    def recount(self, request: RequestInfo, cached_tokens: int) -> None:
        """From now on so many tokens of the prompt of ``request`` need not be computed, whether
        it waits here or not."""
        if request in self:
            self.cached_tokens += cached_tokens - request.cached_tokens
            if request.slot >= 0:
                self._columns.cached[request.slot] = cached_tokens
        request.cached_tokens = cached_tokens

    def discard(self, request: RequestInfo) -> None:
        """Take ``request`` out: admitted or gone. Unknown requests are ignored."""
        if request.retracted:
            if request in self._retracted:
                self._retracted.remove(request)
                self.prompt_tokens -= request.prompt_tokens
                self.cached_tokens -= request.cached_tokens
            return
        if request not in self:
            return
        row = request.slot
        self._rows[row] = None
        self._columns.alive[row] = False
        request.slot = -1
        self._live -= 1
        self.prompt_tokens -= request.prompt_tokens
        self.cached_tokens -= request.cached_tokens
        if not self._live:
            self._priorities_seen.clear()
            self._by_length.clear()
            self._by_arrival.clear()
            self._rows.clear()
        elif len(self._rows) > _FIRST_ROWS and self._live < len(self._rows) // 4:
            self._repack()

    def oldest(self) -> RequestInfo | None:
        """The fresh request that has waited longest."""
        _drop_departed(self._by_arrival)
        return self._by_arrival[0][2] if self._by_arrival else None

    def shortest_expected(self) -> int | None:
        """Smallest expected output among fresh requests, in tokens."""
        _drop_departed(self._by_length)
        return self._by_length[0][0] if self._by_length else None

    def columns(self) -> Columns:
        """Attributes of the fresh requests."""
        used = len(self._rows)
        return Columns._make(column[:used] for column in self._columns)

    def outside(self, rows: NDArray[np.int64]) -> list[RequestInfo]:
        """The fresh requests that stand in none of ``rows``, in the order of theirs."""
        left = self._columns.alive[: len(self._rows)].copy()
        left[rows] = False
        return self.pick(np.flatnonzero(left))

    def pick(self, rows: NDArray[np.intp]) -> list[RequestInfo]:
        """The requests in ``rows``, in that order; the rows must be alive."""
        line = self._rows
        return [line[row] for row in rows.tolist()]

    def _repack(self) -> None:
        """Drop the rows of those who left; make room for as many again as are left."""
        kept = np.flatnonzero(self._columns.alive[: len(self._rows)])
        old = self._columns
        self._columns = _allocate(max(_FIRST_ROWS, 2 * kept.size))
        for target, source in zip(self._columns, old, strict=True):
            target[: kept.size] = source[kept]
        requests = self.pick(kept)
        for row, request in enumerate(requests):
            request.slot = row
        self._rows = [*requests]
        # The lazily cleaned lines may hold many that left.
        for line in (self._by_arrival, self._by_length):
            line[:] = [entry for entry in line if entry[2].slot >= 0]
            heapq.heapify(line)


def _drop_departed(line: _Line) -> None:
    """Bring a request that still waits to the head of a heap."""
    while line and line[0][2].slot < 0:
        heapq.heappop(line)


def _allocate(rows: int) -> Columns:
    return Columns(
        alive=np.zeros(rows, dtype=np.bool_),
        seq=np.zeros(rows, dtype=np.int64),
        arrival=np.zeros(rows),
        prompt=np.zeros(rows),
        cached=np.zeros(rows),
        expected=np.zeros(rows),
        inverse_size=np.ones(rows),
        priority=np.zeros(rows, dtype=np.int64),
    )
