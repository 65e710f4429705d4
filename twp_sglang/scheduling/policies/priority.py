"""Priority: shortest prompt first, no bound but the engine's memory (Table I).

It starves long prompts under load; that is the baseline's known weakness, kept.
"""

from __future__ import annotations

from twp_sglang.scheduling.decision import Decision
from twp_sglang.scheduling.policies.base import GRANTS_PER_PASS, Policy
from twp_sglang.scheduling.ranking import shortest_prompt_first
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import PassView


class ShortestPromptFirst(Policy):
    """Admits the shortest prompt first."""

    name = "priority"

    def decide(self, view: PassView) -> Decision:
        """Everybody, shortest prompt first."""
        return self.admit_all(view, shortest_prompt_first(self.queue, GRANTS_PER_PASS))

    def waiting_order(self, view: PassView) -> list[RequestInfo]:
        """Shortest prompt first."""
        return [*self.queue.retracted, *shortest_prompt_first(self.queue, self.queue.fresh)]
