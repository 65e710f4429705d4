"""The measuring: rounds of held batches and prefill probes in shuffled order."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

from twp_sglang.benchmarking.server_probe import flush_cache
from twp_sglang.calibration.errors import CalibrationError
from twp_sglang.calibration.load import Client, Held, Timed, check
from twp_sglang.calibration.plan import DecodeTask, Plan, PrefillTask, Task, longest_output
from twp_sglang.calibration.progress import SweepProgress
from twp_sglang.calibration.samples import (
    DecodePoint,
    DecodeSteps,
    PrefillProbe,
    median,
)
from twp_sglang.calibration.server import requests_in, wait_idle
from twp_sglang.calibration.settings import CalibrationSettings
from twp_sglang.calibration.sources import StepSource

_IDLE_LIMIT_S = 10.0
_MIN_STEPS = 8
_RAMP_MARGIN = 1.3
_RAMP_SPARE = 4
_TRIES = 2
_ELSEWHERE = "; stop it, or go on beside it with --allow-busy"


@dataclass
class Findings:
    """What has been measured so far; stays whole when the sweep is interrupted."""

    points: list[DecodePoint] = field(default_factory=list)
    probes: list[PrefillProbe] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = False

    def note(self, text: str) -> None:
        """Add ``text`` once."""
        if text not in self.notes:
            self.notes.append(text)


class Sweep:
    """One run through the plan. ``findings`` is filled as it goes."""

    def __init__(
        self,
        client: Client,
        settings: CalibrationSettings,
        plan: Plan,
        source: StepSource,
        progress: SweepProgress,
        findings: Findings,
    ) -> None:
        self._client = client
        self._settings = settings
        self._plan = plan
        self._source = source
        self._progress = progress
        self.findings = findings
        self._ramp_per_request: float | None = None
        self._cost_s: dict[Task, float] = {}

    async def run(self) -> None:
        """Measure until every round is done or the budget is spent.

        Raises:
            CalibrationError: the server fails or somebody else uses it; what was measured
                by then is in ``findings``.
        """
        start_s = time.monotonic()
        await self._warm_up()
        for round_ in range(self._settings.rounds):
            await self._quiet()
            flushed = await flush_cache(
                self._client.session, self._client.server.url, self._client.server.headers
            )
            if flushed != "flushed":
                self.findings.note(f"prefix cache not flushed ({flushed}); every prompt is new")
            for task in self._plan.shuffled(round_, self._settings.seed):
                began_s = time.monotonic()
                expected_s = self._cost_s.get(task, 0.0)
                if began_s - start_s + expected_s > self._settings.budget_s:
                    self.findings.note(
                        f"the time of --budget-s {self._settings.budget_s:g} ran out in round "
                        f"{round_ + 1} of {self._settings.rounds}"
                    )
                    return
                await self._visit(task, round_)
                self._cost_s[task] = time.monotonic() - began_s
        self.findings.complete = True

    async def _visit(self, task: Task, round_: int) -> None:
        if isinstance(task, DecodeTask):
            self._progress.now(f"batch {task.batch}, context {task.context_tokens}")
            steps = await self._decode(task)
            if steps is None:
                self._progress.done(f"batch {task.batch}: no steps")
                return
            point = DecodePoint(task.batch, task.context_tokens, round_, steps)
            self.findings.points.append(point)
            self._progress.done(f"batch {task.batch}: {median(steps.step_ms):.2f} ms per step")
        else:
            self._progress.now(f"prefill of {task.tokens} tokens")
            probe = await self._prefill(task)
            if probe is None:
                self.findings.note(
                    f"a prefill of {task.tokens} tokens could not be told from the decode steps"
                )
                self._progress.done(f"prefill of {task.tokens}: not told apart")
                return
            self.findings.probes.append(replace(probe, round=round_))
            self._progress.done(f"prefill of {task.tokens}: {probe.prefill_ms:.1f} ms")

    async def _warm_up(self) -> None:
        """The largest and the smallest batch once: allocators, kernels and graphs settle, and
        the ramp becomes known. Every error of the set-up shows here first."""
        self._progress.now("warm-up")
        tasks = [task for task in self._plan.tasks if isinstance(task, DecodeTask)]
        for task in (max(tasks), min(tasks)):
            await self._decode(task)

    async def _decode(self, task: DecodeTask) -> DecodeSteps | None:
        wanted = self._settings.steps
        output = self._output_tokens(task.batch, task.context_tokens)
        steps = None
        for _ in range(_TRIES):
            await self._quiet()
            self._source.mark()
            held = Held(self._client, task.batch, task.context_tokens, output)
            try:
                await self._nobody_else(held, task.batch)
                done = await held.finish()
            finally:
                held.cancel()
            steps = await self._source.decode(
                done, task.context_tokens, self._settings.settle_steps
            )
            self._learn_ramp(steps.ramp_steps, task.batch)
            if steps.step_ms.size >= min(wanted, max(_MIN_STEPS, wanted // 2)):
                break
            # The first had nearly finished when the last joined: hold all for longer.
            output += wanted + steps.ramp_steps
        if steps is None or steps.step_ms.size < _MIN_STEPS:
            self.findings.note(
                f"batch {task.batch} could not be held for {_MIN_STEPS} steps: does the server "
                "run so many at once?"
            )
            return None
        return DecodeSteps(steps.step_ms[:wanted], steps.kv_tokens[:wanted], steps.ramp_steps)

    async def _prefill(self, task: PrefillTask) -> PrefillProbe | None:
        settings, chunk = self._settings, self._client.server.chunk_tokens
        chunks = math.ceil(task.tokens / chunk) if chunk else 1
        output = self._output_tokens(task.decoding, task.context_tokens) + settings.steps + chunks
        for _ in range(_TRIES):
            await self._quiet()
            self._source.mark()
            done, timed = await self._probe(task, output)
            found = await self._source.prefill(done, timed, chunk, settings.settle_steps)
            if found is not None:
                return found
            # The decoding ones had finished before the prompt came through.
            output += 2 * settings.steps
        return None

    async def _probe(self, task: PrefillTask, output: int) -> tuple[list[Timed], Timed]:
        """Send the prompt once the decoding requests have settled and been timed a while."""
        before = self._settings.settle_steps + self._settings.steps // 2
        held = Held(self._client, task.decoding, task.context_tokens, output)
        probe = None
        try:
            await held.steps_together(before)
            probe = self._client.start(task.tokens, 1)
            timed = await probe
            done = await held.finish()
            check([timed.record])
        finally:
            held.cancel()
            if probe is not None:
                probe.cancel()
        return done, timed

    def _output_tokens(self, batch: int, context: int) -> int:
        if self._ramp_per_request is None:
            return longest_output(self._settings, self._client.server, batch, context)
        ramp = math.ceil(_RAMP_MARGIN * self._ramp_per_request * batch) + _RAMP_SPARE
        return self._settings.steps + self._settings.settle_steps + ramp

    def _learn_ramp(self, ramp_steps: int, batch: int) -> None:
        self._ramp_per_request = max(self._ramp_per_request or 0.0, ramp_steps / batch)

    async def _quiet(self) -> None:
        if self._settings.allow_busy:
            return
        server = self._client.server
        idle = await wait_idle(self._client.session, server, _IDLE_LIMIT_S)
        if idle is None:
            self.findings.note(
                "the server does not tell its load: that nobody else used it is an assumption"
            )
        elif not idle:
            raise CalibrationError(f"somebody else's requests run on {server.url}{_ELSEWHERE}")

    async def _nobody_else(self, held: Held, batch: int) -> None:
        await held.steps_together(self._settings.settle_steps)
        if self._settings.allow_busy:
            return
        inside = await requests_in(self._client.session, self._client.server)
        if inside is not None and inside > batch:
            raise CalibrationError(
                f"the server holds {inside} requests where {batch} were sent: somebody else uses "
                f"{self._client.server.url}{_ELSEWHERE}"
            )
