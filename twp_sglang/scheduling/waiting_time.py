"""How long a waiting request will still wait, from what is measured.

    expected wait = prompt tokens to serve up to and with its own / measured prompt rate

The rate is that of steps which left somebody waiting (:mod:`prefill_rate`), shut gates
included, so it holds whatever shuts them: as long as the traffic stays what it was in the
last ten seconds or so. Where the prefix cache holds most of the prompts ahead there is little left
to serve by, and rows or memory are what they wait for: then nothing is foretold.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from twp_sglang.scheduling.prefill_rate import PrefillRate
from twp_sglang.scheduling.sample import StepSample
from twp_sglang.scheduling.waiting import WaitingQueue

MOSTLY_CACHED = 0.5
"""Least part of the prompt tokens ahead that is to be computed, if their rate is to tell a time."""


class ExpectedWait(NamedTuple):
    """An expectation, or None, and how it comes about."""

    seconds: float | None
    how: str


class WaitingTime:
    """Measures the prompt rate of any policy and makes expectations of it."""

    def __init__(self) -> None:
        self._rate = PrefillRate()

    def observe(self, sample: StepSample, queue: WaitingQueue) -> None:
        """Take one measured step; ``queue`` as it stands when the sample arrives."""
        duration = sample.duration_ms
        if duration is None or not 0.0 < duration < inf:
            return
        oldest = queue.oldest()
        if oldest is not None and oldest.arrival_pass < sample.step:
            self._rate.observe(duration, sample.prefill_tokens)

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """The measured rate; None where nobody has waited long enough to measure one."""
        rate = self._rate.measured_tokens_per_ms()
        return None if rate is None else rate * 1e3

    def until_served(self, prompt_tokens: int, with_cached_tokens: int = 0) -> ExpectedWait:
        """Expected time until ``prompt_tokens`` are served, the last of them included.

        Args:
            prompt_tokens: to be computed.
            with_cached_tokens: the same and those that the prefix cache holds.
        """
        if prompt_tokens < MOSTLY_CACHED * with_cached_tokens:
            return ExpectedWait(
                None,
                f"not foretold: the prefix cache holds all but {prompt_tokens:,} of the "
                f"{with_cached_tokens:,} prompt tokens up to the end of its own, so that rows or "
                "memory decide",
            )
        rate = self.prompt_tokens_per_s
        if rate is None:
            return ExpectedWait(
                None, "not known yet: no prompt was served while somebody waited in the last steps"
            )
        return ExpectedWait(
            prompt_tokens / rate,
            f"{prompt_tokens:,} prompt tokens are to be served up to the end of its own, at "
            f"{rate:,.0f} per second as measured while somebody waited in the last 10 s or so",
        )
