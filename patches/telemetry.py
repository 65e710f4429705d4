"""What one scheduler process tells the metrics: steps as they end, a reading now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from patches.metrics.exporter import Exporter
from patches.reach_watch import ReachWatch
from patches.recording import Recording
from patches.retraction_gaps import RetractionGaps
from patches.step_meter import sample_of
from twp_sglang.scheduling.load import ActiveLoad
from twp_sglang.scheduling.policies import Policy
from twp_sglang.trace import StepRecord

logger = logging.getLogger(__name__)


class Telemetry:
    """Follows retracted requests, and feeds the exporter where there is one.

    Args:
        policy: that decides.
        recording: of this process; counts answers where there is an exporter.
        exporter: None where SGLang exports no metrics.
        clock: seconds.
    """

    def __init__(
        self,
        policy: Policy,
        recording: Recording,
        exporter: Exporter | None,
        clock: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._recording = recording
        self._exporter = exporter
        recording.counts_answers = exporter is not None
        self.gaps = RetractionGaps(clock)
        self._reach = ReachWatch(policy, clock)
        self._newest: StepRecord | None = None

    def failed(self, fallbacks: int) -> None:
        """Stock scheduling took over: no pass will come to export anything else."""
        self._export(lambda: {"deciding": False, "fallbacks": fallbacks})

    def completed(self, record: StepRecord | None, reqs: list[Any]) -> None:
        """The result of a step of ``reqs`` was processed; ``record`` where its launch was
        seen."""
        exporter = self._exporter
        for gap_s in self.gaps.completed(reqs):
            if exporter is not None:
                exporter.retraction_gap(gap_s)
        if exporter is None or record is None or record.duration_ms is None:
            return
        self._newest = record
        exporter.step(record.kind, record.duration_ms * 1e-3, record.batch)

    def pass_ended(self, load: ActiveLoad, chunk_tokens: int | None, fallbacks: int) -> None:
        """Export if it is time. Called in passes without a batch too, so that an engine gone
        idle does not show its last busy moment for ever."""
        self._reach.look()
        if self._exporter is not None and self._exporter.due():
            self._export(lambda: self._reading(load, chunk_tokens, fallbacks))

    def _export(self, reading: Callable[[], dict[str, Any]]) -> None:
        if self._exporter is None:
            return
        try:
            self._exporter.export(reading())
        except Exception:
            # A fault while telling must not end the steering.
            logger.exception("TWP cannot export its metrics and stops doing so")
            self._exporter = None

    def _reading(
        self, load: ActiveLoad, chunk_tokens: int | None, fallbacks: int
    ) -> dict[str, Any]:
        policy, record = self._policy, self._newest
        state = policy.snapshot()
        gains = {part: state.get(f"gain_{part}") for part in ("decode", "prefill")}
        reading = {
            **state,
            "load_tokens": load.load_tokens,
            "batch": load.batch,
            "policy_info": {policy.name: 1},
            "deciding": policy.enforces,
            "fallbacks": fallbacks,
            "queue_prompt_tokens": policy.queue.prompt_tokens,
            "queue_cached_tokens": policy.queue.cached_tokens,
            "kv_threshold": policy.kv_threshold,
            "chunk_tokens": chunk_tokens,
            "gains": {part: gain for part, gain in gains.items() if gain is not None} or None,
            "retraction_gap_max_ms": self.gaps.longest_ms,
            **self._recording.state(),
        }
        if record is not None:
            reading["step_ms"] = record.duration_ms
            reading["step_predicted_ms"] = policy.predicted_ms(sample_of(record))
        return reading
