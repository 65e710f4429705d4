"""Writes the step trace (schema: :mod:`controllers.step_trace`) off the hot path.

The scheduler hands over one record per step and goes on; a thread turns records into JSON
lines. The hand-over is bounded: when the disk is slower than the engine, or full, lines
are dropped and counted, and the scheduler never waits. No prompt or output text is
recorded.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
from pathlib import Path
from typing import IO, NamedTuple

from controllers.step_trace import Admission, Header, Step

logger = logging.getLogger(__name__)

PENDING_LINES = 8192
"""Records held while the disk catches up: minutes of decoding at usual step times."""

_CLOSE_TIMEOUT_S = 5.0


class StepRecord(NamedTuple):
    """One line, in the order of :class:`controllers.step_trace.Step`."""

    step: int
    t_ms: float
    kind: str
    duration_ms: float | None
    batch: int
    prefill_tokens: int
    kv_tokens: int
    queue: int
    load_tokens: int
    window_tokens: float | None
    sigma: float | None
    itl_ms: float | None
    sample_step: int | None
    admitted: int
    forced: int
    closed: str
    admissions: tuple[AdmissionRecord, ...] = ()
    finished: tuple[tuple[int, int], ...] = ()
    would_admit: int | None = None

    def line(self) -> str:
        """JSON, one line, without the newline."""
        fields = self._asdict()
        fields["admissions"] = [admission._asdict() for admission in self.admissions]
        return json.dumps(fields, separators=(",", ":"), allow_nan=False)


class AdmissionRecord(NamedTuple):
    """One admission, in the order of :class:`controllers.step_trace.Admission`."""

    rid: str
    reason: str
    prompt_tokens: int
    expected_tokens: int
    load_before_tokens: int
    kv_free: float | None
    kv_threshold: float | None
    waited_steps: int


assert StepRecord._fields == tuple(Step.model_fields)
assert AdmissionRecord._fields == tuple(Admission.model_fields)


class TraceWriter:
    """Bounded hand-over to a writing thread; see the module's text for its promises."""

    def __init__(self, path: Path, header: Header) -> None:
        """Open ``path`` for writing.

        Raises:
            OSError: the file cannot be created.
        """
        self.path = path
        self.written = 0
        self.dropped = 0
        self._pending: queue.Queue[StepRecord | None] = queue.Queue(PENDING_LINES)
        self._warned = False
        file = path.open("w", encoding="utf-8")
        file.write(header.model_dump_json(by_alias=True) + "\n")
        file.flush()
        self._thread = threading.Thread(
            target=self._run, args=(file,), name="twp-trace", daemon=True
        )
        self._thread.start()

    def put(self, record: StepRecord) -> None:
        """Hand over one step; never blocks."""
        try:
            self._pending.put_nowait(record)
        except queue.Full:
            self._drop("the disk is slower than the engine")

    def close(self) -> None:
        """Write what is pending, for a bounded time, and stop."""
        with contextlib.suppress(queue.Full):
            self._pending.put(None, timeout=_CLOSE_TIMEOUT_S)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self, file: IO[str]) -> None:
        with contextlib.suppress(OSError), file:
            while True:
                record = self._pending.get()
                if record is None:
                    return
                try:
                    file.write(record.line() + "\n")
                    if self._pending.empty():
                        # A reader that follows the file sees whole lines up to now.
                        file.flush()
                    self.written += 1
                except (OSError, ValueError) as error:
                    self._drop(str(error))

    def _drop(self, reason: str) -> None:
        self.dropped += 1
        if not self._warned:
            self._warned = True
            logger.warning(
                "TWP trace %s: dropping lines (%s); the count is in trace_dropped of "
                "/server_info, serving goes on",
                self.path,
                reason,
            )


def free_path(directory: Path, stem: str) -> Path:
    """First of ``stem.jsonl``, ``stem-1.jsonl``, ... that does not exist: an earlier run's
    trace is never overwritten."""
    path = directory / f"{stem}.jsonl"
    number = 0
    while path.exists():
        number += 1
        path = directory / f"{stem}-{number}.jsonl"
    return path
