"""Inter-token objectives of single requests, and the one that a step is planned by.

A step is one length for everybody in it, so it is planned by the tightest objective among the
active requests, each its own or the configured one. A newcomer must keep theirs and be able to
keep its own: while the batch is too large for it, it waits at the head and the batch drains.
It does so until its first token is due; from then on it enters as one without an objective of
its own. An objective that a step of a single row does not keep is not planned for at all.
"""

from __future__ import annotations

from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import PassView
from twp_sglang.scheduling.step_model import OnlineStepModel


class RowObjectives:
    """Costs nothing until a request with an objective of its own has come."""

    def __init__(self, model: OnlineStepModel) -> None:
        self._model = model
        self.seen = False
        """Whether anybody has one of its own."""

    def enqueued(self, request: RequestInfo) -> None:
        """A request joined the queue."""
        self.seen = self.seen or request.itl_slo_ms is not None

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
            due: its first token is due: its own is given up.
        """
        own = configured_ms if due else self.of(request, configured_ms)
        return own if tightest_ms is None else min(own, tightest_ms)
