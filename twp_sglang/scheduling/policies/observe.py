"""Shadow mode: the engine decides as stock, twp only says what it would have done."""

from __future__ import annotations

from typing import Any

from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.policies.twp import Twp
from twp_sglang.scheduling.request import RequestInfo


class Observe(Twp):
    """TWP's measurement and decisions without their enforcement."""

    name = "observe"
    enforces = False

    def __init__(self, config: TwpConfig) -> None:
        super().__init__(config)
        self.would_admit_total = 0

    def taken(self, request: RequestInfo, *, agreed: bool = False) -> None:
        """Counts those of the engine's own admissions that twp would have granted too."""
        super().taken(request, agreed=agreed)
        self.would_admit_total += agreed

    def snapshot(self) -> dict[str, Any]:
        """Adds how many of the admissions the watched policy would have made too."""
        return {**super().snapshot(), "would_admit": self.would_admit_total}
