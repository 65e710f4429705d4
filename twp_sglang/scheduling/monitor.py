"""The monitor: from measured steps to the slowdown sigma (section IV-B).

    l_hat <- l_hat + beta (l - l_hat),   sigma = l_hat / l_min

What a prompt chunk costs is kept apart from what decoding costs. A decode-only step
updates l_hat as it is. A mixed step, whose duration holds both, teaches the cost of a
prompt token while a recent decode-only step says what decoding costs; only when decode
steps have stayed away for a while is the chunk's known cost taken off and the rest counted
as decode time. So prefill alone never closes the window.
"""

from __future__ import annotations

from math import inf

from twp_sglang.scheduling.baseline import Baseline
from twp_sglang.scheduling.sample import StepSample

STALE_AFTER_STEPS = 16
"""Counted steps without a decode-only one after which mixed steps feed the filter: about
as long as the filter's own memory."""


class Monitor:
    """Filtered inter-token latency, baseline and slowdown."""

    def __init__(self, beta: float, b0: int, l_min_ms: float | None, warmup_steps: int) -> None:
        self._beta = beta
        self._warmup = warmup_steps
        self._since_decode = 0
        self.baseline = Baseline(b0, l_min_ms)
        self.itl_ms: float | None = None
        self.step_ms: float | None = None
        """Duration of the newest counted step, unfiltered."""
        self.prefill_ms_per_token: float | None = None
        self.newest_step: int | None = None
        self.counted = 0
        self.ignored = 0

    def reconfigure(self, beta: float, b0: int, l_min_ms: float | None) -> None:
        """Take other settings; the filtered latency stays."""
        self._beta = beta
        self.baseline.reconfigure(b0, l_min_ms)

    @property
    def sigma(self) -> float:
        """Slowdown; 1 while the latency or its baseline is unknown, so that the law rests."""
        l_min = self.baseline.l_min_ms
        if self.itl_ms is None or l_min is None:
            return 1.0
        return self.itl_ms / l_min

    def observe(self, sample: StepSample) -> bool:
        """Take one step; say whether it moved the filtered latency."""
        self.newest_step = sample.step
        duration = sample.duration_ms
        # Not finite would stay in the filter for good.
        if duration is None or not 0.0 < duration < inf:
            self.ignored += 1
            return False
        if self._warmup > 0:
            self._warmup -= 1
            self.ignored += 1
            return False
        self.counted += 1
        self.step_ms = duration
        if sample.kind == "decode":
            self._since_decode = 0
            self.baseline.observe(duration, sample.batch)
            self._filter(duration)
            return True
        self._since_decode += 1
        # Before the first decode-only step a given baseline stands for its time, or an
        # engine whose every step is mixed would never be measured.
        decode_ms = self.baseline.l_min_ms if self.itl_ms is None else self.itl_ms
        if sample.kind == "prefill" or sample.prefill_tokens <= 0 or decode_ms is None:
            return False
        if self._since_decode <= STALE_AFTER_STEPS:
            cost = max(0.0, duration - decode_ms) / sample.prefill_tokens
            known = self.prefill_ms_per_token
            self.prefill_ms_per_token = (
                cost if known is None else known + self._beta * (cost - known)
            )
            return False
        chunk_ms = (self.prefill_ms_per_token or 0.0) * sample.prefill_tokens
        self._filter(max(0.0, duration - chunk_ms))
        return True

    def _filter(self, duration_ms: float) -> None:
        self.itl_ms = (
            duration_ms
            if self.itl_ms is None
            else self.itl_ms + self._beta * (duration_ms - self.itl_ms)
        )
