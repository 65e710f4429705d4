"""Says in the log when policy slo's ITL objective goes out of reach, and when it is back.

An objective shorter than a step of one request is met by no schedule: the policy then plans
longer steps, and whoever stated it should hear of that without looking at a state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from twp_sglang.scheduling.policies import Policy

logger = logging.getLogger(__name__)

EVERY_S = 1.0
"""Least time between two looks: a state costs some ten microseconds, and a person needs no faster
word."""


class ReachWatch:
    """Looks at one policy's state now and then.

    Args:
        policy: that decides; only slo has an objective to lose.
        clock: seconds.
    """

    def __init__(self, policy: Policy, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._next_s = 0.0
        self._reachable = True
        self._looks = policy.name == "slo"

    def look(self) -> None:
        """Log a change since the last look, if it is time for one. Raises nothing."""
        if not self._looks:
            return
        now = self._clock()
        if now < self._next_s:
            return
        self._next_s = now + EVERY_S
        try:
            self._told()
        except Exception:
            # A fault while telling must not end the steering.
            logger.exception("TWP cannot look after its ITL objective and stops doing so")
            self._looks = False

    def _told(self) -> None:
        state = self._policy.snapshot()
        reachable = bool(state["itl_slo_reachable"])
        if reachable == self._reachable:
            return
        self._reachable = reachable
        if reachable:
            logger.info("TWP: the ITL objective of %g ms is in reach again", state["itl_slo_ms"])
            return
        logger.warning(
            "TWP cannot keep the ITL objective of %g ms: by its step model even one request takes "
            "longer. Steps of up to %.0f ms are planned instead; state a longer objective, or "
            "calibrate if the machine is faster than that",
            state["itl_slo_ms"],
            state["itl_step_goal_ms"] * state["theta"],
        )
