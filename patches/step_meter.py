"""Step times: what was launched, when its result came, and which spans mean a step time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from twp_sglang.scheduling.sample import StepSample
from twp_sglang.trace import StepRecord


class _Launched(NamedTuple):
    """A step between its launch and its result."""

    record: StepRecord
    counts: bool
    """Whether the span to its completion is a step time (no idle gap before it)."""


class StepMeter:
    """Times steps by the completion of their results (Definition 1 of the paper).

    Args:
        clock: this process's clock, seconds.
        overlapped: whether the engine launches a step before the result of the one before
            is processed.
    """

    def __init__(self, clock: Callable[[], float], overlapped: bool) -> None:
        self._clock = clock
        self._overlapped = overlapped
        self._launched: deque[_Launched] = deque()
        self._idle_since_launch = True
        self._last_done_s: float | None = None
        self.last_pass_empty = True
        """Whether the newest pass formed no batch."""

    def idle(self) -> None:
        """A pass formed no batch."""
        self.last_pass_empty = True
        self._idle_since_launch = True

    def launched(self, record: StepRecord) -> None:
        """A pass formed a batch, described by ``record``."""
        self.last_pass_empty = False
        self._launched.append(_Launched(record, not self._idle_since_launch))
        self._idle_since_launch = False

    def completed(self) -> StepRecord | None:
        """The result of the oldest launched step was processed: its record with its time, or
        None when it was launched before anybody looked."""
        now = self._clock()
        last, self._last_done_s = self._last_done_s, now
        if not self._launched:
            return None
        record, counts = self._launched.popleft()
        # A step whose result comes while nothing follows it drains the pipeline: under
        # overlap its span is that of the bookkeeping alone.
        if counts and last is not None and not (self._overlapped and self.last_pass_empty):
            record = record._replace(duration_ms=round((now - last) * 1e3, 4))
        return record


def sample_of(record: StepRecord) -> StepSample:
    """What the policy learns of a completed step."""
    return StepSample(
        record.step,
        record.kind,  # type: ignore[arg-type]  # BatchFacts names the same kinds
        record.duration_ms,
        record.batch,
        record.prefill_tokens,
        record.kv_tokens,
    )
