"""Who can still have a first token in time: Moore-Hodgson on one queue, and a late queue.

With one server and due dates in order of arrival, serving in that order and dropping the
longest job so far whenever one would be late leaves the fewest late jobs (Moore, Management
Science 15(1), 1968). Here the server is the prompt stream, a job is a prompt and its due
date is arrival + TTFT objective. Who is dropped is not refused: it waits in the late line,
which is served in order of arrival when nobody else waits and, once a request has waited
for ``aging``, before all others, whatever their priority, on a bounded share of the prompt
tokens. So neither a prompt length nor a priority starves, and no backlog of late ones takes the
machine from those who can be served in time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from heapq import heappop, heappush, merge
from itertools import chain
from math import inf

from twp_sglang.scheduling.client_turns import ClientTurns
from twp_sglang.scheduling.explanation import prompt_to_serve
from twp_sglang.scheduling.line_columns import Key, LineColumns
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.turn_line import TurnLine

CREDIT_MAX_TOKENS = 8192.0
"""Most prompt tokens that aged requests may have saved up: one whole chunk of a stock
engine, so that a quiet spell does not buy a burst of long prompts."""

COLUMNS_FROM = 256
"""Requests from which on vector operations find the late ones sooner than a walk does."""

_Age = tuple[float, int]


def _key(request: RequestInfo) -> tuple[int, int]:
    """Larger priority first, then arrival."""
    return (-request.priority, request.seq)


def _age(request: RequestInfo) -> _Age:
    return (request.arrival_ms, request.seq)


class TtftLines:
    """Fresh and late requests. :meth:`order` changes nothing; :meth:`commit` moves those
    that the last order found late.

    Args:
        ttft_slo_ms: objective.
        late_after_ms: waiting time from which a late request may go first.
        late_share: share of the prompt tokens that may be spent on going first.
        turns: counters by which clients take turns among equals; None knows no clients.
    """

    def __init__(
        self,
        ttft_slo_ms: float,
        late_after_ms: float,
        late_share: float,
        turns: ClientTurns | None = None,
    ) -> None:
        self._slo_ms = ttft_slo_ms
        self.aging_ms = late_after_ms
        self._share = late_share
        self._fresh: dict[int, RequestInfo] = {}
        self._fresh_tokens = 0
        self._turns = turns
        self._priorities: set[int] = set()
        self._fresh_seats = TurnLine(turns)
        self._late_seats = TurnLine(turns)
        self._columns: LineColumns | None = None
        """The fresh ones, from when a long line was first asked for late ones."""
        self._plain = True
        """Whether arrival is the order of due dates: nobody has an objective of its own."""
        # Oldest first, whatever the priority.
        self._late: list[tuple[_Age, RequestInfo]] = []
        self._late_priorities: Counter[int] = Counter()
        self._late_tokens = 0
        self._found_late: list[RequestInfo] = []
        self.credit_tokens = 0.0

    def reconfigure(self, ttft_slo_ms: float, late_after_ms: float, late_share: float) -> None:
        """Other settings; who is late stays late, and so does the credit."""
        self.objective_changed(ttft_slo_ms)
        self.aging_ms = late_after_ms
        self._share = late_share

    def objective_changed(self, ttft_slo_ms: float) -> None:
        """From now on another objective; who is late stays late."""
        if ttft_slo_ms == self._slo_ms:
            return
        self._slo_ms = ttft_slo_ms
        self._fresh_seats = TurnLine(self._turns)
        self._columns = None
        for request in self._fresh.values():
            self._fresh_seats.add(self._due(request), request)

    @property
    def fresh(self) -> int:
        """Requests not in the late line."""
        return len(self._fresh)

    @property
    def fresh_tokens(self) -> int:
        """Their prompt tokens."""
        return self._fresh_tokens

    @property
    def late(self) -> int:
        """Requests in the late line."""
        return len(self._late)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens to serve of everybody in the lines."""
        return self._fresh_tokens + self._late_tokens

    def add(self, request: RequestInfo) -> None:
        """A request arrives."""
        self._fresh[request.seq] = request
        self._fresh_tokens += prompt_to_serve(request)
        due = self._due(request)
        self._fresh_seats.add(due, request)
        if self._columns is not None:
            self._columns.add(due, self._due_ms(request), request)
        self._priorities.add(request.priority)
        if request.ttft_slo_ms is not None or request.preemptions:
            self._plain = False

    def discard(self, request: RequestInfo) -> None:
        """A request left, admitted or not; unknown ones are ignored."""
        if self._fresh.pop(request.seq, None) is not None:
            self._no_longer_fresh(request)
            if not self._fresh:
                self._plain = True
                if not self._late:
                    self._priorities.clear()
            return
        place = self._place(request)
        if place is not None:
            del self._late[place]
            self._late_tokens -= prompt_to_serve(request)
            self._late_priorities[request.priority] -= 1
            if not self._late_priorities[request.priority]:
                del self._late_priorities[request.priority]
            self._late_seats.discard(_key(request), request)
            if not self._fresh and not self._late:
                self._priorities.clear()

    def recounted(self, request: RequestInfo, change_tokens: int) -> None:
        """A request has so many prompt tokens more to serve than when it was last told of;
        unknown ones are ignored."""
        if request.seq in self._fresh:
            self._fresh_tokens += change_tokens
            if self._columns is not None:
                self._columns.recount(request)
        elif self.is_late(request):
            self._late_tokens += change_tokens

    def is_late(self, request: RequestInfo) -> bool:
        """Whether it stands in the late line."""
        return self._place(request) is not None

    def goes_first(self, request: RequestInfo, now_ms: float) -> bool:
        """Whether for its age it takes the turn of a fresh request, or of a late one of higher
        priority."""
        if now_ms - request.arrival_ms < self.aging_ms or not self.is_late(request):
            return False
        return bool(self._fresh) or max(self._late_priorities) > request.priority

    def spent(self, prompt_tokens: int, *, aged: bool) -> None:
        """Account an admission: each earns credit for aged requests, theirs cost it."""
        self.credit_tokens += self._share * prompt_tokens
        if aged:
            self.credit_tokens -= prompt_tokens
        self.credit_tokens = min(self.credit_tokens, CREDIT_MAX_TOKENS)

    def order(self, start_ms: float, now_ms: float, tokens_per_ms: float) -> Iterator[RequestInfo]:
        """Everybody in the order to serve: aged ones as far as credit goes, then by priority,
        and of each priority those who can keep the objective before late ones.

        Args:
            start_ms: when the next prompt can begin, step and prompts under way included.
            now_ms: the time.
            tokens_per_ms: rate at which prompts are served, above 0.
        """
        aged = self._aged(now_ms)
        fresh = self._feasible(start_ms, tokens_per_ms)
        first = {request.seq for request in aged}
        rest = (request for request in self._late_seats.in_turn() if request.seq not in first)
        # Those found late in this very pass come last: they join the line at its end.
        found = list(self._found_late)
        if len(self._priorities) > 1:
            return chain(aged, merge(fresh, rest, found, key=lambda request: -request.priority))
        return chain(aged, fresh, rest, found)

    def foremost(self) -> RequestInfo | None:
        """The first of the highest priority; fresh before late."""
        first = (next(line.in_turn(), None) for line in (self._fresh_seats, self._late_seats))
        return max(
            (request for request in first if request is not None),
            key=lambda request: request.priority,
            default=None,
        )

    def commit(self) -> None:
        """Those found late by the last order join the late line for good."""
        for request in self._found_late:
            if self._fresh.pop(request.seq, None) is not None:
                self._no_longer_fresh(request)
                insort(self._late, (_age(request), request), key=lambda entry: entry[0])
                self._late_priorities[request.priority] += 1
                self._late_tokens += prompt_to_serve(request)
                self._late_seats.add(_key(request), request)
        self._found_late = []

    def _no_longer_fresh(self, request: RequestInfo) -> None:
        self._fresh_tokens -= prompt_to_serve(request)
        self._fresh_seats.discard(self._due(request), request)
        if not self._fresh:
            self._columns = None
        elif self._columns is not None:
            self._columns.discard(request)

    def _aged(self, now_ms: float) -> list[RequestInfo]:
        """The oldest late ones, of any priority: on this share nobody starves behind another."""
        found: list[RequestInfo] = []
        credit = self.credit_tokens
        for _, request in self._late:
            if credit <= 0 or now_ms - request.arrival_ms < self.aging_ms:
                break
            found.append(request)
            credit -= prompt_to_serve(request)
        return found

    def _feasible(self, start_ms: float, tokens_per_ms: float) -> Iterator[RequestInfo]:
        self._found_late = []
        if not self._fresh:
            return iter(())
        line = self._fresh_seats.in_turn()
        if self._plain and len(self._priorities) <= 1:
            oldest = next(iter(self._fresh.values()))
            if start_ms + self._fresh_tokens / tokens_per_ms <= self._due_ms(oldest):
                return line
        found = self._found_in_columns(start_ms, tokens_per_ms)
        if found is None:
            return self._walk(list(line), start_ms, tokens_per_ms)
        self._found_late = sorted(found, key=_key)
        dropped = {request.seq for request in found}
        return (request for request in line if request.seq not in dropped)

    def _found_in_columns(self, start_ms: float, tokens_per_ms: float) -> list[RequestInfo] | None:
        """What :meth:`_walk` would find; None where it has to walk."""
        if len(self._fresh) < COLUMNS_FROM:
            return None
        if self._columns is None:
            members = (
                (self._due(request), self._due_ms(request), request)
                for request in self._fresh.values()
            )
            self._columns = LineColumns(self._turns, members)
        return self._columns.found_late(start_ms, tokens_per_ms)

    def _walk(
        self, line: list[RequestInfo], start_ms: float, tokens_per_ms: float
    ) -> Iterator[RequestInfo]:
        tokens = 0
        # Each client makes way for itself: with turns, one that sends too much does not push
        # another one's requests into the late line.
        # And no request makes way for one of lower priority.
        longest: dict[tuple[int, str], list[tuple[int, int, RequestInfo]]] = {}
        dropped: set[int] = set()
        for request in line:
            prompt = prompt_to_serve(request)
            tokens += prompt
            client = "" if self._turns is None else request.client
            own = longest.setdefault((request.priority, client), [])
            if not request.preemptions:
                heappush(own, (-prompt, request.seq, request))
            if start_ms + tokens / tokens_per_ms > self._due_ms(request):
                # Of equally long ones the oldest: the count is the same, and those who stay
                # have the most time left instead of being served at the very deadline.
                size, _, worst = heappop(own)
                tokens += size
                dropped.add(worst.seq)
                self._found_late.append(worst)
        self._found_late.sort(key=_key)
        return (request for request in line if request.seq not in dropped)

    def _due_ms(self, request: RequestInfo) -> float:
        """When its first token is due; one that was preempted has had it."""
        if request.preemptions:
            return inf
        return request.arrival_ms + (request.ttft_slo_ms or self._slo_ms)

    def _due(self, request: RequestInfo) -> Key:
        """Larger priority first, then those that were preempted, what is due first, arrival."""
        due_ms = -inf if request.preemptions else self._due_ms(request)
        return (-request.priority, due_ms, request.seq)

    def _place(self, request: RequestInfo) -> int | None:
        place = bisect_left(self._late, _age(request), key=lambda entry: entry[0])
        if place < len(self._late) and self._late[place][1] is request:
            return place
        return None
