"""Who of a long line would be late, by vector operations: the walk of :mod:`feasibility` to the
last request, at the cost of a few passes over numpy columns and of a few more per late one.

The columns are kept from pass to pass. Who joins is filed when somebody asks, who leaves stays as
an empty row until such rows are as many as the others. The turns of the clients are not kept:
each request's place follows from its client's counter and the prompts before it in its client's
line, and the lines of the clients, each sorted, are merged by a sort that takes sorted runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twp_sglang.scheduling.client_turns import INPUT_WEIGHT, ClientTurns
from twp_sglang.scheduling.explanation import prompt_to_serve
from twp_sglang.scheduling.request import RequestInfo

MOST_LATE = 256
"""Late ones found by vector operations: as many cost about what a walk does."""

_FIRST_ROWS = 1024
_MOST_ONE_BY_ONE = 64
"""Newcomers whose places are looked for one by one; where more come, all are sorted."""
_SPARE_SHARE = 16
"""One in so many of those in order may have left: to look over them costs about what dropping
them does."""
_MOST_CLIENTS = 2**16
_MOST_SORTED_BY = 2**62

Key = tuple[int, float, int]
"""Place in line: priority (smaller goes first), due date, arrival number."""

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]


class _Columns(NamedTuple):
    """One row per request; a row whose request has left is never late and in nobody's way."""

    rank: _Ints
    """First of its key."""
    due_key: _Floats
    seq: _Ints
    due_ms: _Floats
    service: _Ints
    """What its prompt adds to its client's counter."""
    to_serve: _Ints
    client: NDArray[np.uint16]
    makes_way: NDArray[np.bool_]
    """Whether it may be sent to the late line."""
    waits: NDArray[np.bool_]


class _Line(NamedTuple):
    """Those in line in two orders."""

    rows: NDArray[np.intp]
    """One client after another, by their keys."""
    begins: _Ints
    """Where in these each client begins, and the end."""
    turn: NDArray[np.intp]
    """Places in these, as they are served."""


class LineColumns:
    """A line in the order of :class:`~twp_sglang.scheduling.turn_line.TurnLine`.

    Args:
        turns: counters by which clients take turns; None makes everybody one client.
        members: key, due date in ms and request of everybody in line.
    """

    def __init__(
        self, turns: ClientTurns | None, members: Iterable[tuple[Key, float, RequestInfo]]
    ) -> None:
        self._turns = turns
        self._columns = _allocate(_FIRST_ROWS)
        self._used = 0
        self._left = self._left_in_order = 0
        self._order: NDArray[np.intp] = np.empty(0, dtype=np.intp)
        """Rows by key, with those that left."""
        self._requests: list[RequestInfo | None] = []
        self._row: dict[int, int] = {}
        self._codes: dict[str, int] = {}
        self._joining: dict[int, tuple[Key, float, RequestInfo]] = {}
        for key, due_ms, request in members:
            self.add(key, due_ms, request)

    def add(self, key: Key, due_ms: float, request: RequestInfo) -> None:
        """A request joins."""
        self._joining[request.seq] = (key, due_ms, request)

    def discard(self, request: RequestInfo) -> None:
        """A request left; unknown ones are ignored."""
        if self._joining.pop(request.seq, None) is not None:
            return
        row = self._row.pop(request.seq, None)
        if row is None:
            return
        columns = self._columns
        columns.service[row] = columns.to_serve[row] = 0
        columns.due_ms[row] = inf
        columns.makes_way[row] = columns.waits[row] = False
        self._requests[row] = None
        self._left += 1
        self._left_in_order += 1

    def recount(self, request: RequestInfo) -> None:
        """Another part of its prompt is to be served than when it joined."""
        row = self._row.get(request.seq)
        if row is not None:
            self._columns.to_serve[row] = prompt_to_serve(request)

    def found_late(self, start_ms: float, tokens_per_ms: float) -> list[RequestInfo] | None:
        """Those that the walk would send to the late line, in the order in which it would.

        Args:
            start_ms: when the first prompt can begin.
            tokens_per_ms: rate at which prompts are served, above 0.

        Returns:
            None where they are too many for this to be the quicker way, or where clients or
            counters are beyond what the columns can hold.
        """
        self._file()
        if not len(self._order):
            return []
        line = self._in_turn()
        if line is None:
            return None
        columns = self._columns
        served = line.rows[line.turn]
        tokens = np.cumsum(columns.to_serve[served])
        due_ms = columns.due_ms[served]
        # Whoever leaves makes the others earlier: only these can be late in the walk.
        late = np.flatnonzero(start_ms + tokens / tokens_per_ms > due_ms)
        if not late.size:
            return []
        longest = _Longest(columns, line)
        found: list[RequestInfo] = []
        freed = 0
        for place, before, due in zip(
            line.turn[late].tolist(), tokens[late].tolist(), due_ms[late].tolist(), strict=True
        ):
            if start_ms + (before - freed) / tokens_per_ms <= due:
                continue
            if len(found) == MOST_LATE:
                return None
            row = longest.take(place)
            request = self._requests[row]
            assert request is not None, "who left makes no way"
            found.append(request)
            freed += int(columns.to_serve[row])
        return found

    def _in_turn(self) -> _Line | None:
        """The line as it is served; None where that cannot be computed."""
        order = self._order
        if self._turns is None or len(self._codes) <= 1:
            return _Line(order, np.array([0, len(order)]), np.arange(len(order)))
        if len(self._codes) > _MOST_CLIENTS:
            return None
        columns = self._columns
        # This type has a sort in linear time.
        client = columns.client[order]
        places = np.argsort(client, kind="stable")
        rows = order[places]
        clients = np.arange(len(self._codes), dtype=np.uint16)
        begins = np.append(client[places].searchsorted(clients), len(rows))
        counts = begins[1:] - begins[:-1]
        service = columns.service[rows]
        before = np.cumsum(service) - service
        # Counters are sums of whole weights and lengths.
        counters = np.array([self._turns.counter(name) for name in self._codes], dtype=np.int64)
        first = np.append(before, 0)[begins[:-1]]
        turn = before + np.repeat(counters - counters.min() - first, counts)
        # By priority, then by turn, then by key.
        lowest = int(columns.rank[order[0]])
        ranks, turns = int(columns.rank[order[-1]]) - lowest + 1, int(turn.max()) + 1
        if ranks * turns * len(order) >= _MOST_SORTED_BY:
            return None
        by = ((columns.rank[rows] - lowest) * turns + turn) * len(order) + places
        return _Line(rows, begins, np.argsort(by, kind="stable"))

    def _file(self) -> None:
        """Give rows to those who joined, and pack the rows where most are empty."""
        joining = sorted(self._joining.values(), key=itemgetter(0))
        self._joining.clear()
        if self._used + len(joining) > len(self._columns.seq) or self._left > len(self._row):
            self._pack(len(joining))
        elif self._left_in_order > len(self._order) // _SPARE_SHARE:
            self._order = self._order[self._columns.waits[self._order]]
            self._left_in_order = 0
        if not joining:
            return
        columns = self._columns
        new = slice(self._used, self._used + len(joining))
        requests = [request for _, _, request in joining]
        self._used += len(joining)
        self._requests += requests
        self._row.update(
            zip((one.seq for one in requests), range(new.start, new.stop), strict=True)
        )
        columns.rank[new] = [key[0] for key, _, _ in joining]
        columns.due_key[new] = [key[1] for key, _, _ in joining]
        columns.seq[new] = [key[2] for key, _, _ in joining]
        columns.due_ms[new] = [due_ms for _, due_ms, _ in joining]
        columns.service[new] = [int(INPUT_WEIGHT * one.prompt_tokens) for one in requests]
        columns.to_serve[new] = [prompt_to_serve(one) for one in requests]
        columns.client[new] = [self._code(one) for one in requests]
        columns.makes_way[new] = [not one.preemptions for one in requests]
        columns.waits[new] = True
        rows = np.arange(new.start, new.stop)
        if len(joining) <= _MOST_ONE_BY_ONE:
            places = [bisect_left(self._order, key, key=self._key) for key, _, _ in joining]
            self._order = np.insert(self._order, places, rows)
        else:
            both = np.concatenate([self._order, rows])
            keys = (columns.seq[both], columns.due_key[both], columns.rank[both])
            self._order = both[np.lexsort(keys)]

    def _key(self, row: int) -> Key:
        columns = self._columns
        return columns.rank.item(row), columns.due_key.item(row), columns.seq.item(row)

    def _pack(self, more: int) -> None:
        """Only the rows of those in line, in the order of their keys, and room for as many."""
        order = self._order[self._columns.waits[self._order]]
        kept = len(order)
        packed = _allocate(max(_FIRST_ROWS, 2 * (kept + more)))
        pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]] = zip(packed, self._columns, strict=True)
        for new, old in pairs:
            new[:kept] = old[order]
        self._columns = packed
        self._requests = [self._requests[row] for row in order.tolist()]
        self._row = {int(seq): row for row, seq in enumerate(self._columns.seq[:kept])}
        self._order = np.arange(kept)
        self._used = kept
        self._left = self._left_in_order = 0
        self._codes = {}
        for row, request in enumerate(self._requests):
            assert request is not None
            self._columns.client[row] = self._code(request)

    def _code(self, request: RequestInfo) -> int:
        """Number of its client; meaningless where there are more than can be told apart."""
        client = "" if self._turns is None else request.client
        return self._codes.setdefault(client, len(self._codes)) % _MOST_CLIENTS


class _Longest:
    """Who makes way: of those of the same priority and client up to a place in line the longest
    prompt, of equally long ones the oldest request."""

    def __init__(self, columns: _Columns, line: _Line) -> None:
        self._columns = columns
        self._line = line
        # By where they begin: what those of a priority and client make way by, in their order.
        self._groups: dict[int, _Ints] = {}

    def take(self, place: int) -> int:
        """Row of the one that makes way for what stands at ``place`` of the line's rows; it is
        not found again."""
        columns, rows = self._columns, self._line.rows
        row = rows[place]
        client = int(columns.client[row])
        begin, end = self._line.begins[client : client + 2].tolist()
        ranks = columns.rank[rows[begin:end]]
        first = begin + int(ranks.searchsorted(columns.rank[row]))
        if first not in self._groups:
            last = begin + int(ranks.searchsorted(columns.rank[row], side="right"))
            group = rows[first:last]
            seq = columns.seq[group]
            longest = (columns.to_serve[group] + 1) * (int(seq.max()) + 1) - seq
            self._groups[first] = np.where(columns.makes_way[group], longest, -1)
        by = self._groups[first]
        chosen = int(by[: place + 1 - first].argmax())
        by[chosen] = -1
        return int(rows[first + chosen])


def _allocate(rows: int) -> _Columns:
    return _Columns(
        rank=np.empty(rows, dtype=np.int64),
        due_key=np.empty(rows),
        seq=np.empty(rows, dtype=np.int64),
        due_ms=np.empty(rows),
        service=np.empty(rows, dtype=np.int64),
        to_serve=np.empty(rows, dtype=np.int64),
        client=np.empty(rows, dtype=np.uint16),
        makes_way=np.empty(rows, dtype=np.bool_),
        waits=np.empty(rows, dtype=np.bool_),
    )
