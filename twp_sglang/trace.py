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
import os
import queue
import threading
from io import FileIO
from pathlib import Path
from typing import NamedTuple

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
    cached_tokens: int = 0


assert StepRecord._fields == tuple(Step.model_fields)
assert AdmissionRecord._fields == tuple(Admission.model_fields)


class TraceWriter:
    """Bounded hand-over to a writing thread; see the module's text for its promises."""

    def __init__(self, path: Path, header: Header) -> None:
        """Open ``path`` for writing.

        Raises:
            OSError: the file cannot be created, or not even the header fits.
        """
        self.path = path
        self.written = 0
        # One counter per thread: adding is not atomic.
        self._dropped_handing_over = 0
        self._dropped_writing = 0
        self._pending: queue.Queue[StepRecord | None] = queue.Queue(PENDING_LINES)
        self._warned = False
        # Unbuffered, so that a line counts as written when it is, and not when it reached
        # a buffer that a full disk will never take.
        file = path.open("wb", buffering=0)
        try:
            _write_line(file, header.model_dump_json(by_alias=True))
        except OSError:
            file.close()
            raise
        self._thread = threading.Thread(
            target=self._run, args=(file,), name="twp-trace", daemon=True
        )
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that did not reach the file."""
        return self._dropped_handing_over + self._dropped_writing

    def put(self, record: StepRecord) -> None:
        """Hand over one step; never blocks."""
        try:
            self._pending.put_nowait(record)
        except queue.Full:
            self._dropped_handing_over += 1
            self._warn("the disk is slower than the engine")

    def end(self) -> None:
        """Take no more: the thread writes what is pending and ends. Does not wait; what a full
        hand-over cannot be told of is told by :meth:`close`."""
        with contextlib.suppress(queue.Full):
            self._pending.put_nowait(None)

    def close(self) -> None:
        """Write what is pending, for a bounded time, and stop."""
        with contextlib.suppress(queue.Full):
            self._pending.put(None, timeout=_CLOSE_TIMEOUT_S)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self, file: FileIO) -> None:
        with file:
            while True:
                record = self._pending.get()
                if record is None:
                    return
                try:
                    _write_line(file, record.line())
                    self.written += 1
                except (OSError, ValueError, TypeError) as error:
                    # Of the last two, a number that JSON cannot hold: that line is lost,
                    # the thread and the lines after it are not.
                    self._dropped_writing += 1
                    self._warn(str(error))

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "TWP trace %s: dropping lines (%s); the count is in trace_dropped of "
                "/server_info, serving goes on",
                self.path,
                reason,
            )


def _write_line(file: FileIO, text: str) -> None:
    """All of the line or none of it.

    Raises:
        OSError: it does not fit.
    """
    line = text.encode() + b"\n"
    done = 0
    try:
        while done < len(line):
            done += file.write(line[done:]) or 0
    except OSError:
        if done:
            # A torn line in the middle would make the whole file unreadable.
            with contextlib.suppress(OSError):
                file.truncate(file.seek(-done, os.SEEK_CUR))
        raise


def free_path(directory: Path, stem: str) -> Path:
    """Create the first of ``stem.jsonl``, ``stem-1.jsonl``, ... that does not exist, so
    that no trace is overwritten, be it of an earlier server or of one started just now.

    Raises:
        OSError: the directory cannot be written.
    """
    number = 0
    while True:
        path = directory / (f"{stem}-{number}.jsonl" if number else f"{stem}.jsonl")
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return path
