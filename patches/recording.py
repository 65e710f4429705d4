"""The step trace of one scheduler process: opened by the rank that leads, written behind it."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from controllers.step_trace import Header
from patches.arrivals import info_of
from patches.sglang_0_5 import engine_view
from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.lengths_online import FinishedAnswer
from twp_sglang.scheduling.policies import Policy
from twp_sglang.trace import StepRecord, TraceWriter, free_path

logger = logging.getLogger(__name__)

FINISHED_ATTRIBUTE = "_twp_finished"
"""Marks a request whose end was told: under overlap it appears in one more batch."""


class Recording:
    """Finished requests and step records on their way to the trace and the policy."""

    def __init__(self, trace_dir: Path | None, dp_rank: int | None, header: Header) -> None:
        self._trace_dir = trace_dir
        self._stem = "steps" if dp_rank is None else f"steps-dp{dp_rank}"
        self._header = header
        self._trace: TraceWriter | None = None
        self._finished: list[tuple[int, int]] = []
        self.counts_answers = False
        """Whether somebody asks how long answers became against what was expected."""

    def restart(self, config: TwpConfig) -> None:
        """Steps from here on are decided by ``config``: they go into a file of their own, with
        it in the header."""
        self._header = self._header.model_copy(
            update={"config": config.model_dump(mode="json"), "created_unix_s": time.time()}
        )
        if self._trace is not None:
            # Not awaited: the writer's thread ends when it has written what is pending.
            self._trace.end()
            self._trace = None
            self.open()

    def open(self) -> None:
        """Create the file, if one was asked for. A file that cannot be written is said and
        does not end the serving."""
        if self._trace_dir is None:
            return
        try:
            path = free_path(self._trace_dir, self._stem)
            self._trace = TraceWriter(path, self._header)
            logger.info("TWP writes its step trace to %s", path)
        except OSError as error:
            logger.error("TWP cannot write its step trace (%s); serving goes on without", error)

    def completed(self, record: StepRecord, batch: Any, policy: Policy) -> None:
        """A step is over: tell its finished requests, write its line."""
        if self._trace is None and not policy.reads_lengths and not self.counts_answers:
            return
        for req in batch.reqs:
            if req.finished() and not getattr(req, FINISHED_ATTRIBUTE, False):
                setattr(req, FINISHED_ATTRIBUTE, True)
                if policy.reads_lengths:
                    policy.finished(_answer(req))
                if self.counts_answers:
                    _count_answer(req, policy)
                if self._trace is not None:
                    self._finished.append((len(req.origin_input_ids), len(req.output_ids)))
        if self._trace is not None:
            if self._finished:
                record = record._replace(finished=tuple(self._finished))
                self._finished = []
            self._trace.put(record)

    def close(self) -> None:
        """Write what is pending and close the file."""
        if self._trace is not None:
            self._trace.close()

    def state(self) -> dict[str, Any]:
        """The trace's part of /server_info."""
        trace = self._trace
        return {
            "trace": None if trace is None else str(trace.path),
            "trace_written": 0 if trace is None else trace.written,
            "trace_dropped": 0 if trace is None else trace.dropped,
        }


def _count_answer(req: Any, policy: Policy) -> None:
    info = info_of(req)
    produced = len(req.output_ids)
    if info is None or not produced:
        return
    # A retracted request's expectation is of what was left then.
    before = info.prompt_tokens - len(req.origin_input_ids)
    policy.tally.answered(before + info.expected_tokens, produced)


def _answer(req: Any) -> FinishedAnswer:
    prompt, max_new, produced = engine_view.request_numbers(req)
    info = info_of(req)
    client = "" if info is None else info.client
    aborted = engine_view.was_aborted(req)
    return FinishedAnswer(prompt, produced, max_new, client, info, aborted)
