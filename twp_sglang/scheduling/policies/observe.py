"""Shadow mode: the engine decides as stock, twp only says what it would have done.

Every admission of the engine is held against the watched policy's own decisions:

- *agreed*: it would have granted the request in that very pass;
- *earlier*: it had granted it in a pass before, and the engine took its time;
- *held*: it had not granted it yet, so the request would have waited longer.

Under twp the engine's state would have been another, so the counts say how often the two
differ and which way, not how long anybody would have waited.
"""

from __future__ import annotations

from typing import Any

from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.decision import Decision
from twp_sglang.scheduling.load import ActiveLoad
from twp_sglang.scheduling.policies.twp import Twp
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import PassView


class Observe(Twp):
    """TWP's measurement and decisions without their enforcement."""

    name = "observe"
    enforces = False

    def __init__(self, config: TwpConfig) -> None:
        super().__init__(config)
        self.overload = None
        self.agreed_total = 0
        self.earlier_total = 0
        self.held_total = 0
        self._granted_now: tuple[RequestInfo, ...] = ()
        # Granted in an earlier pass and not taken by the engine since.
        self._granted: set[int] = set()

    def decide(self, view: PassView) -> Decision:
        """Twp's decision; remembered until the end of the pass."""
        decision = super().decide(view)
        self._granted_now = tuple(grant.request for grant in decision.grants)
        return decision

    def taken(self, request: RequestInfo, *, agreed: bool = False) -> None:
        """Counts which of the three an admission of the engine is."""
        super().taken(request, agreed=agreed)
        # A request granted long ago would be running: that it is granted again says nothing.
        if request.seq in self._granted:
            self._granted.discard(request.seq)
            self.earlier_total += 1
        elif agreed:
            self.agreed_total += 1
        else:
            self.held_total += 1

    def withdraw(self, request: RequestInfo) -> None:
        """Left unserved."""
        super().withdraw(request)
        self._granted.discard(request.seq)

    def end_pass(
        self, kv_free_tokens: int, kv_capacity_tokens: int, load: ActiveLoad | None
    ) -> None:
        """Grants that the engine left waiting count as earlier from here on."""
        super().end_pass(kv_free_tokens, kv_capacity_tokens, load)
        for request in self._granted_now:
            if request in self.queue:
                self._granted.add(request.seq)
        self._granted_now = ()

    def snapshot(self) -> dict[str, Any]:
        """Adds how the engine's admissions compare with those of the watched policy."""
        return {
            **super().snapshot(),
            "would_admit": self.agreed_total + self.earlier_total,
            "shadow": {
                "agreed": self.agreed_total,
                "would_have_held": self.held_total,
                "would_have_admitted_earlier": self.earlier_total,
            },
        }
