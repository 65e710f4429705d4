"""First come, first served: arrival order, no bound but the engine's memory (Table I)."""

from __future__ import annotations

from twp_sglang.scheduling.decision import Decision
from twp_sglang.scheduling.policies.base import GRANTS_PER_PASS, Policy
from twp_sglang.scheduling.ranking import first_come
from twp_sglang.scheduling.sample import PassView


class Fcfs(Policy):
    """Admits in arrival order."""

    name = "fcfs"

    def decide(self, view: PassView) -> Decision:
        """Everybody, oldest first."""
        return self.admit_all(view, first_come(self.queue, GRANTS_PER_PASS))
