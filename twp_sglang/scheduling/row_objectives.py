"""Inter-token objectives of single requests, and the one that a step is planned by.

A step is one length for everybody in it, so it is planned by the tightest objective among the
active requests, each its own or the configured one. A newcomer must keep theirs and be able to
keep its own: while the batch is too large for it, it waits at the head and the batch drains.
It does so until its first token is due, by its own TTFT objective or the configured one,
whichever is tighter; from then on it enters as one without an objective of its own. An objective
that a step of a single row does not keep is not planned for at all.

Whoever holds up others for its own objective spends time that all such requests share: it fills
as fast as it is spent, up to the configured TTFT objective. So the gate is held for that long at
a stretch and half of the time at most, however many of them come.
"""

from __future__ import annotations

from collections.abc import Callable

from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import PassView
from twp_sglang.scheduling.step_model import OnlineStepModel


class RowObjectives:
    """Costs nothing until a request with an objective of its own has come."""

    def __init__(self, model: OnlineStepModel) -> None:
        self._model = model
        self.seen = False
        """Whether anybody has one of its own."""
        self._spent_ms = 0.0
        self._holding = False
        self._may_hold = True
        self._seen_at_ms = 0.0
        self._given_up: set[int] = set()

    def enqueued(self, request: RequestInfo) -> None:
        """A request joined the queue."""
        self.seen = self.seen or request.itl_slo_ms is not None

    def begin(self, now_ms: float, longest_ms: float) -> None:
        """Begin a pass.

        Args:
            now_ms: the time.
            longest_ms: newcomers may hold the gate for so long at a stretch at most.
        """
        passed_ms = max(0.0, now_ms - self._seen_at_ms)
        self._seen_at_ms = now_ms
        self._spent_ms += passed_ms if self._holding else -passed_ms
        self._spent_ms = max(0.0, self._spent_ms)
        self._may_hold = self._spent_ms < longest_ms
        self._holding = False
        self._given_up.clear()

    def goal(
        self,
        tightest_ms: float | None,
        request: RequestInfo,
        configured_ms: float,
        admits: Callable[[float | None], bool] | None,
        *,
        due: bool,
    ) -> float | None:
        """Objective that the step must keep with ``request`` in it, ms; None is the configured
        one. A request that would shut the gate by its own alone holds it, or gives its own up
        where no time is left for that.

        Args:
            tightest_ms: of those in it.
            request: that would join.
            configured_ms: for requests without one.
            admits: whether the step with one more row keeps an objective; None where the engine
                is idle and takes whoever comes.
            due: its first token is due: its own is given up.
        """
        if not self.seen:
            return None
        goal = self.with_newcomer(tightest_ms, request, configured_ms, due=due)
        if request.itl_slo_ms is None or due or request.retracted or admits is None:
            return goal
        without = self.with_newcomer(tightest_ms, request, configured_ms, due=True)
        if admits(goal) or not admits(without):
            return goal
        if self._may_hold:
            self._holding = True
            return goal
        self._given_up.add(request.seq)
        return without

    def gives_up(self, request: RequestInfo) -> bool:
        """Whether in this pass it can enter only as one without an objective of its own."""
        return request.seq in self._given_up

    def tightest(self, view: PassView, configured_ms: float) -> float | None:
        """Objective by which the present step is planned, ms; None is the configured one."""
        if not self.seen:
            return None
        # A row without a known request has no objective of its own.
        own = (
            configured_ms if info is None else self.of(info, configured_ms)
            for info in view.rows().requests
        )
        return min(own, default=None)

    def of(self, request: RequestInfo, configured_ms: float) -> float:
        """What is planned for one request, ms."""
        own = request.itl_slo_ms
        return own if own is not None and self._model.holds_alone(own) else configured_ms

    def with_newcomer(
        self, tightest_ms: float | None, request: RequestInfo, configured_ms: float, *, due: bool
    ) -> float:
        """Objective that the step must keep with ``request`` in it.

        Args:
            tightest_ms: of those in it.
            request: that would join.
            configured_ms: for requests without one.
            due: its first token is due, its own ITL objective is given up.
        """
        own = configured_ms if due else self.of(request, configured_ms)
        return own if tightest_ms is None else min(own, tightest_ms)
