"""What a scheduler process measures for people who watch it. Decides nothing."""

from __future__ import annotations

from typing import Any

from patches.sglang_0_5 import engine_view
from twp_sglang.scheduling.policies import Policy
from twp_sglang.scheduling.recent_steps import RecentSteps
from twp_sglang.scheduling.sample import StepSample
from twp_sglang.scheduling.waiting_time import WaitingTime


class Watching:
    """The newest steps beside their prediction, and how fast waiting prompts are served."""

    def __init__(self) -> None:
        self.recent = RecentSteps()
        self.waiting_time = WaitingTime()

    def take(self, sample: StepSample, policy: Policy) -> None:
        """A step was measured. Call it before ``policy`` learns from the step, or that would
        predict what it was told."""
        self.recent.add(sample, policy.predicted_ms(sample))
        self.waiting_time.observe(sample, policy.queue)

    def state(self, policy: Policy, scheduler: Any, capacity_tokens: int) -> dict[str, Any]:
        """Memory and prompt rate; JSON types only."""
        return {
            "kv_free": engine_view.kv_free_tokens(scheduler) / max(1, capacity_tokens),
            "kv_threshold": policy.kv_threshold,
            "kv_capacity_tokens": capacity_tokens,
            "prompt_tokens_per_s": self.waiting_time.prompt_tokens_per_s,
        }
