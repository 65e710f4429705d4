"""The running batch in aggregate: who decodes, what it holds, when whose turn ends.

In a decode step every running request makes one token, so nothing has to be done per
request: a request that joins before decode launch j and has n tokens to come takes part in
launches j .. j+n-1. Sums (rows, context, token load) move by a constant per launch, and
what changes them is filed under the launch at which it does.

Two counts of launches matter. ``launched`` is what the scheduler has sent off; memory
and batch follow it. ``settled`` is what it has seen the results of; the token load K and
finished requests follow that. Under overlap the second lags the first by one.
"""

from __future__ import annotations

import heapq

from twp_sglang.simulator.live_request import LiveRequest


class Rows:
    """Running requests of one engine."""

    def __init__(self, page_size: int, clip_tokens: int) -> None:
        self._page = page_size
        self._clip = clip_tokens
        self.running: dict[LiveRequest, None] = {}
        self.launched = 0
        self.settled = 0
        self.context_tokens = 0
        """KV of the running requests, launches included."""
        self.load_tokens = 0
        """K over all admitted requests, by the outputs known."""
        self.shrinking = 0
        """Requests whose remaining output falls below the clip: K falls by one for each."""
        self._ends: dict[int, list[LiveRequest]] = {}
        self._shrink_change: dict[int, int] = {}
        self._marks: list[int] = []
        # How many rows fill a page at a launch, by launch modulo page size.
        self._residues = [0] * page_size

    # ------------------------------------------------------------------ membership

    def admit(self, request: LiveRequest, expected_tokens: int) -> None:
        """``request`` counts into the load from its admission on."""
        self.load_tokens += expected_tokens

    def first_token(self, request: LiveRequest) -> None:
        """Its prefill gave the first token of this stay."""
        if request.max_new_tokens - request.produced <= self._clip:
            self.load_tokens -= 1
        request.produced += 1

    def join(self, request: LiveRequest) -> None:
        """Its prompt is computed: it decodes from the next launch on."""
        first = self.launched
        end = first + request.output_tokens - request.before_stay - 1
        request.first, request.end = first, end
        self.running[request] = None
        self.context_tokens += request.fill_tokens
        self._residues[(first - request.fill_tokens) % self._page] += 1
        self._ends.setdefault(end, []).append(request)
        heapq.heappush(self._marks, end)
        # Remaining output above the clip is counted as the clip and does not fall yet.
        above = request.max_new_tokens - request.before_stay - 1 - self._clip
        start = first + max(0, above)
        request.shrinks_from = start
        if start < end:
            self._shrink(start, 1)
            self._shrink(end, -1)
            heapq.heappush(self._marks, start)

    def leave(self, request: LiveRequest, remaining_tokens: int) -> int:
        """Take ``request`` out, finished or not; the KV tokens it held.

        ``remaining_tokens`` is its share of the load.
        """
        kv_tokens = self.kv_tokens(request)
        del self.running[request]
        self.context_tokens -= kv_tokens
        self.load_tokens -= remaining_tokens
        self._residues[(request.first - request.fill_tokens) % self._page] -= 1
        bucket = self._ends.get(request.end)
        if bucket is not None:
            bucket.remove(request)
            if not bucket:
                del self._ends[request.end]
        start, end = request.shrinks_from, request.end
        if start < end and end >= self.settled:
            self._shrink(end, 1)
            if start < self.settled:
                self.shrinking -= 1
            else:
                self._shrink(start, -1)
        return kv_tokens

    def _shrink(self, launch: int, change: int) -> None:
        total = self._shrink_change.get(launch, 0) + change
        if total:
            self._shrink_change[launch] = total
        else:
            self._shrink_change.pop(launch, None)

    # ----------------------------------------------------------------------- a step

    def sitting_out(self) -> list[LiveRequest]:
        """Running requests whose last token is on its way, foreseen by their length."""
        bucket = self._ends.get(self.launched)
        return [request for request in bucket if request.by_length] if bucket else []

    def tokens_needed(self, sitting_out: list[LiveRequest]) -> int:
        """KV tokens, in whole pages, that the next launch takes."""
        if self._page == 1:
            return len(self.running) - len(sitting_out)
        # A row takes a page when what it holds fills its pages: fill + launches = 0 mod page.
        launch = self.launched % self._page
        rows = self._residues[launch]
        for request in sitting_out:
            rows -= (request.first - request.fill_tokens) % self._page == launch
        return rows * self._page

    def launch(self, riding: int) -> None:
        """Send off a decode step with ``riding`` rows."""
        self.launched += 1
        self.context_tokens += riding

    def settle(self) -> list[LiveRequest]:
        """The result of the oldest launch is known; the requests that it finished."""
        launch = self.settled
        change = self._shrink_change.pop(launch, None)
        if change is not None:
            self.shrinking += change
        self.load_tokens -= self.shrinking
        self.settled = launch + 1
        return list(self._ends.get(launch + 1, ()))

    # ---------------------------------------------------------------------- queries

    def kv_tokens(self, request: LiveRequest) -> int:
        """KV tokens that a running request holds."""
        last = request.end if request.by_length else request.end + 1
        return request.fill_tokens + max(0, min(self.launched, last) - request.first)

    def produced(self, request: LiveRequest) -> int:
        """Output tokens of a running request, as far as known."""
        if request.first_token_ms is None:
            return request.produced
        launches = min(self.settled, request.end) - request.first
        return request.before_stay + 1 + max(0, launches)

    def quiet_launches(self) -> int:
        """How many launches may follow before anybody joins the ended or the load changes
        its slope; possibly negative."""
        marks, floor = self._marks, self.settled
        while marks and marks[0] < floor:
            heapq.heappop(marks)
        return (marks[0] - 1 - self.launched) if marks else 1 << 30
