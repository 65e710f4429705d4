"""DynamicBatch: cap the batch while ITL is above a static target (Table I).

While the filtered ITL exceeds the target the batch may not grow: nobody but retracted
requests enters until enough have left. An idle engine takes its head and nobody else, so
that what one request costs is measured before more follow. No feedback at token level.
"""

from __future__ import annotations

from typing import Any

from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.decision import NOBODY_WAITS, Decision
from twp_sglang.scheduling.monitor import Monitor
from twp_sglang.scheduling.policies.base import GRANTS_PER_PASS, Policy, Signals
from twp_sglang.scheduling.ranking import first_come
from twp_sglang.scheduling.sample import PassView, StepSample


class DynamicBatch(Policy):
    """First come, first served with a batch cap while ITL is above target."""

    name = "dynamic-batch"

    def __init__(self, config: TwpConfig) -> None:
        super().__init__()
        self._target_ms = config.itl_target_ms
        self.monitor = Monitor(config.beta, config.b0, config.l_min_ms, config.warmup_steps)

    def reconfigure(self, config: TwpConfig) -> None:
        """Another target and filter; the latency stays."""
        self._target_ms = config.itl_target_ms
        self.monitor.reconfigure(config.beta, config.b0, config.l_min_ms)

    def observe(self, sample: StepSample) -> None:
        """Feeds the ITL filter."""
        self.monitor.observe(sample)

    def decide(self, view: PassView) -> Decision:
        """Everybody in arrival order below the target; above it only retracted requests,
        and the head of an idle engine."""
        if not len(self.queue):
            return NOBODY_WAITS
        itl = self.monitor.itl_ms
        if itl is not None and itl > self._target_ms:
            idle = view.batch == 0 and not self.queue.retracted
            head = first_come(self.queue, 1) if idle else ()
            grants = self.admit_all(view, head).grants
            return Decision(grants, "target" if len(grants) < len(self.queue) else "")
        return self.admit_all(view, first_come(self.queue, GRANTS_PER_PASS))

    def signals(self) -> Signals:
        """Filtered latency and slowdown; there is no window."""
        return Signals(None, self.monitor.sigma, self.monitor.itl_ms)

    def snapshot(self) -> dict[str, Any]:
        """Adds the latency and its target."""
        return {
            **super().snapshot(),
            "itl_ms": self.monitor.itl_ms,
            "itl_target_ms": self._target_ms,
            "sigma": self.monitor.sigma,
            "l_min_ms": self.monitor.baseline.l_min_ms,
        }
