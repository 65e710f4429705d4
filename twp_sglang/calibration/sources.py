"""Step times from the scheduler's own trace, or from the streams as the client sees them.

The trace knows every step's kind, batch and duration. The streams know only when tokens
came: with the batch held by the client, each step brings one token to every stream, so the
k-th token after the last request joined belongs to the same step on all of them, and the
median over the streams shakes off the jitter of single connections.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

import numpy as np
from pydantic import ValidationError

from controllers.step_trace import Step
from twp_sglang.calibration.errors import CalibrationError
from twp_sglang.calibration.load import Timed
from twp_sglang.calibration.samples import DecodeSteps, FloatArray, PrefillProbe

_QUIET_S = 0.05
_TRACE_LIMIT_S = 5.0
_MIN_BASE_STEPS = 3
_PAD_STEPS: Final = 1
"""Steps beside the prefill that are counted with it: under overlapped scheduling a step's
cost can be booked on its neighbour."""

SourceName = Literal["trace", "stream"]


class StepSource(Protocol):
    """Where step times come from."""

    name: SourceName

    def mark(self) -> None:
        """A point begins: forget what came before."""

    async def decode(self, done: Sequence[Timed], context: int, settle: int) -> DecodeSteps:
        """Steps in which all of ``done`` decoded and nothing else happened."""

    async def prefill(
        self, done: Sequence[Timed], probe: Timed, chunk: int | None, settle: int
    ) -> PrefillProbe | None:
        """What ``probe`` took from ``done``; None if the span cannot be told apart."""


class StreamSource:
    """Times of tokens at the client."""

    name: SourceName = "stream"

    def __init__(self, stream_interval: int = 1) -> None:
        self._stride = stream_interval

    def mark(self) -> None:
        """Nothing to forget."""

    async def decode(self, done: Sequence[Timed], context: int, settle: int) -> DecodeSteps:
        """See :class:`StepSource`."""
        times = together(done)[settle :: self._stride]
        ramp = max(int(np.sum(item.token_s <= _last_joined(done))) for item in done)
        if times.size < 2:
            return DecodeSteps(np.empty(0), np.empty(0), ramp)
        made = sum(np.searchsorted(item.token_s, times[:-1], side="right") for item in done)
        return DecodeSteps(
            np.diff(times) * 1e3 / self._stride,
            np.asarray(made, dtype=np.float64) + len(done) * context,
            ramp,
        )

    async def prefill(
        self, done: Sequence[Timed], probe: Timed, chunk: int | None, settle: int
    ) -> PrefillProbe | None:
        """See :class:`StepSource`."""
        times = together(done)[settle :: self._stride]
        gaps = np.diff(times) * 1e3
        touched = np.flatnonzero((times[1:] > probe.sent_s) & (times[:-1] < probe.token_s[0]))
        if touched.size == 0:
            return None
        first, last = touched[0], min(touched[-1] + _PAD_STEPS, gaps.size - 1)
        beside = np.concatenate([gaps[:first], gaps[last + 1 :]])
        if beside.size < _MIN_BASE_STEPS:
            return None
        inside = gaps[first : last + 1]
        tokens = probe.record.planned_input_tokens or 0
        return PrefillProbe(
            tokens=tokens,
            chunks=math.ceil(tokens / chunk) if chunk else 1,
            prefill_ms=float(inside.sum() - inside.size * np.median(beside)),
            decoding=len(done),
        )


def _last_joined(done: Sequence[Timed]) -> float:
    return max(float(item.token_s[0]) for item in done)


def together(done: Sequence[Timed]) -> FloatArray:
    """When each step ended in which all decoded, seconds, shape (steps,)."""
    start = _last_joined(done)
    end = min(float(item.token_s[-1]) for item in done)
    rows = [item.token_s[(item.token_s > start) & (item.token_s <= end)] for item in done]
    count = min(row.size for row in rows)
    if count == 0:
        return np.empty(0)
    return np.asarray(np.median([row[:count] for row in rows], axis=0), dtype=np.float64)


class TraceSource:
    """The server's step trace, followed as it grows."""

    name: SourceName = "trace"

    def __init__(self, path: Path) -> None:
        """Follow ``path`` from its present end.

        Raises:
            OSError: it cannot be read.
        """
        self.path = path
        self._file = path.open("rb")
        self._file.seek(0, 2)
        self._torn = b""

    def mark(self) -> None:
        """See :class:`StepSource`."""
        self._file.seek(0, 2)
        self._torn = b""

    def close(self) -> None:
        """Stop following."""
        self._file.close()

    async def _steps(self, finished: int) -> list[Step]:
        """Steps since the mark, once ``finished`` requests are reported over in them."""
        steps: list[Step] = []
        end_s = time.monotonic() + _TRACE_LIMIT_S
        while time.monotonic() < end_s:
            lines = (self._torn + self._file.read()).split(b"\n")
            self._torn = lines.pop()
            try:
                steps += [Step.model_validate_json(line) for line in lines if line.strip()]
            except ValidationError as error:
                first = error.errors()[0]
                raise CalibrationError(
                    f"the trace {self.path} holds a line that is no step ({first['msg']}); "
                    "use --source stream"
                ) from None
            if sum(len(step.finished) for step in steps) >= finished:
                return steps
            await asyncio.sleep(_QUIET_S)
        raise CalibrationError(
            f"the trace {self.path} does not report the requests that ended (lines dropped, or "
            "another server's trace); use --source stream"
        )

    async def decode(self, done: Sequence[Timed], context: int, settle: int) -> DecodeSteps:
        """See :class:`StepSource`."""
        steps = await self._steps(len(done))
        full = [step for step in steps if _plain(step, len(done))]
        ramp = sum(step.kind in ("decode", "mixed") and step.batch < len(done) for step in steps)
        kept = [step for step in full[settle:] if step.duration_ms is not None]
        return DecodeSteps(
            np.array([step.duration_ms for step in kept], dtype=np.float64),
            np.array([step.kv_tokens for step in kept], dtype=np.float64),
            ramp,
        )

    async def prefill(
        self, done: Sequence[Timed], probe: Timed, chunk: int | None, settle: int
    ) -> PrefillProbe | None:
        """See :class:`StepSource`."""
        steps = await self._steps(len(done) + 1)
        plain = [place for place, step in enumerate(steps) if _plain(step, len(done))]
        if not plain:
            return None
        chunks = [p for p in range(plain[0], len(steps)) if steps[p].prefill_tokens > 0]
        if not chunks:
            return None
        first, last = chunks[0] - _PAD_STEPS, chunks[-1] + _PAD_STEPS
        base = [
            duration
            for p in plain[settle:]
            if not first <= p <= last and (duration := steps[p].duration_ms) is not None
        ]
        span = steps[first : last + 1]
        times = [step.duration_ms for step in span if step.duration_ms is not None]
        if len(base) < _MIN_BASE_STEPS or len(times) < len(span):
            return None
        decodes = sum(step.kind in ("decode", "mixed") for step in span)
        return PrefillProbe(
            # As asked for: by chance a first token or two can come from the prefix cache.
            tokens=probe.record.planned_input_tokens or 0,
            chunks=len(chunks),
            prefill_ms=float(sum(times) - decodes * np.median(base)),
            decoding=len(done),
        )


def _plain(step: Step, batch: int) -> bool:
    return step.kind == "decode" and step.batch == batch and step.prefill_tokens == 0
