"""Rank 0's samples and its time on their way to all ranks.

What rank 0 sends rides on SGLang's request broadcast. It sends a sample again until it has
come back to itself, and numbers tell the repeats, so that a broadcast that SGLang held back
loses nothing.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from twp_sglang.scheduling.sample import StepSample

TIME_EVERY_MS = 10.0
"""How often rank 0 tells the time while it has no samples to send: an idle engine must know
when the next request came, and a fraction of a step is near enough."""


class Envelope(NamedTuple):
    """Rank 0's samples on their way to all ranks, with the number of the newest."""

    samples: tuple[StepSample, ...]
    number: int
    now_ms: float = 0.0
    """Rank 0's clock, where the policy reads the time."""


class SampleRelay:
    """Both ends on one rank: what it made, and what was delivered to it.

    Args:
        tells_time: whether envelopes carry the time, with or without samples.
    """

    def __init__(self, tells_time: bool) -> None:
        self._tells_time = tells_time
        self._outbox: deque[StepSample] = deque()
        self._made = 0
        self._told_ms = -TIME_EVERY_MS
        self.delivered = 0
        """Number of the newest sample that came."""
        self.now_ms = 0.0
        """Rank 0's clock as of the newest envelope, equal on all ranks."""

    def made(self, sample: StepSample, *, leads: bool) -> None:
        """A step was measured here; only the samples of the rank that ``leads`` travel, and
        the others must not hoard theirs."""
        self._made += 1
        self._outbox.append(sample)
        if not leads:
            self._outbox.clear()

    def pack(self, now_ms: float) -> Envelope | None:
        """What to send now, if anything."""
        if not self._tells_time:
            return Envelope(tuple(self._outbox), self._made) if self._outbox else None
        if not self._outbox and now_ms - self._told_ms < TIME_EVERY_MS:
            return None
        self._told_ms = now_ms
        return Envelope(tuple(self._outbox), self._made, now_ms)

    def unpack(self, envelope: Envelope) -> list[StepSample]:
        """The samples in ``envelope`` that had not come before, oldest first."""
        self.now_ms = max(self.now_ms, envelope.now_ms)
        first = envelope.number - len(envelope.samples)
        new = list(envelope.samples[max(0, self.delivered - first) :])
        self.delivered = max(self.delivered, envelope.number)
        while self._outbox and self._made - len(self._outbox) < self.delivered:
            self._outbox.popleft()
        return new
