"""The newest measured steps, summarised: what the engine does now, for people who watch.

Decides nothing. Medians and sums over steps, because one step says little and a mean is
ruled by the longest.
"""

from __future__ import annotations

from collections import deque
from math import inf
from statistics import median
from typing import NamedTuple

from twp_sglang.scheduling.sample import StepSample

KEPT_STEPS = 256
"""Seconds of decoding: longer than between two looks at a page, short enough to be "now"."""


class StepsSummary(NamedTuple):
    """Steps of one span; numbers are None where no step of their kind was measured."""

    steps: int
    newest_step: int | None
    step_ms: float | None
    """Median duration, ms."""
    step_ms_max: float | None
    predicted_ms: float | None
    """Median of what the policy's model said of the same steps before it learned from them."""
    error: float | None
    """Median of predicted / measured - 1."""
    output_tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    batch: int | None
    """Rows of the newest step."""
    prefill_tokens_max: int | None
    """Largest chunk of prompt tokens in one step."""


class _Measured(NamedTuple):
    sample: StepSample
    duration_ms: float
    predicted_ms: float | None


class RecentSteps:
    """Keeps :data:`KEPT_STEPS` steps whose duration means something."""

    def __init__(self) -> None:
        self._steps: deque[_Measured] = deque(maxlen=KEPT_STEPS)

    def add(self, sample: StepSample, predicted_ms: float | None) -> None:
        """Take one step; those without a duration are left out."""
        duration = sample.duration_ms
        if duration is not None and 0.0 < duration < inf:
            self._steps.append(_Measured(sample, duration, predicted_ms))

    def summary(self, after_step: int = -1) -> StepsSummary:
        """Over the kept steps with a number above ``after_step``."""
        kept = [item for item in self._steps if item.sample.step > after_step]
        if not kept:
            return StepsSummary(0, None, None, None, None, None, None, None, None, None)
        seconds = sum(item.duration_ms for item in kept) / 1e3
        newest = kept[-1].sample
        said = [(item.predicted_ms, item.duration_ms) for item in kept if item.predicted_ms]
        return StepsSummary(
            steps=len(kept),
            newest_step=newest.step,
            step_ms=median(item.duration_ms for item in kept),
            step_ms_max=max(item.duration_ms for item in kept),
            predicted_ms=median(p for p, _ in said) if said else None,
            error=median(p / d - 1.0 for p, d in said) if said else None,
            output_tokens_per_s=sum(item.sample.batch for item in kept) / seconds,
            prompt_tokens_per_s=sum(item.sample.prefill_tokens for item in kept) / seconds,
            batch=newest.batch,
            prefill_tokens_max=max(item.sample.prefill_tokens for item in kept),
        )
