"""One simulated engine: SGLang's scheduler loop on a clock of its own.

A pass takes in the requests that have arrived, forms a batch and launches it. Under overlap
it then waits for the result of the step before, so the next pass sees everything but the
step now running; without overlap it waits for its own. Time passes in steps only: the
scheduler's own work is taken to cost nothing, or to be hidden behind the step.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable

from twp_sglang.scheduling.capacity import never_fits
from twp_sglang.scheduling.policies.base import Policy
from twp_sglang.simulator import decode_run
from twp_sglang.simulator.batching import Batch, Batcher
from twp_sglang.simulator.kv_pool import KvPool
from twp_sglang.simulator.live_request import LiveRequest, Segment
from twp_sglang.simulator.policy_driver import Launched, PolicyDriver, StepSink
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.step_models import StepTimer

STALLED_PASSES = 10_000
"""Passes in which an idle engine with waiting requests admits nobody before the run is
called stalled: far beyond any forced-admission limit in use."""


class SimulationStalled(RuntimeError):
    """Requests are left and nothing runs: a policy lets nobody in, for instance."""


class Engine:
    """See the module's text. Times are milliseconds on the simulation's clock."""

    def __init__(
        self,
        settings: EngineSettings,
        timer: StepTimer,
        policy: Policy | None,
        sink: StepSink | None = None,
        *,
        leap: bool = True,
        start_ms: float = 0.0,
        on_left: Callable[[LiveRequest], None] | None = None,
    ) -> None:
        """An idle engine.

        Args:
            settings: its set-up.
            timer: how long its steps take.
            policy: who decides admissions; None is stock SGLang.
            sink: takes a record of each step.
            leap: compute runs of like decode steps together; off, every step is taken by
                itself, with the same result.
            start_ms: when it is ready to serve (a container that had to load).
            on_left: called with each request that completed, was refused or failed.
        """
        self.settings = settings
        self.timer = timer
        self.now_ms = start_ms
        self.driver = PolicyDriver(policy, sink)
        self.pool = KvPool(
            settings.kv_tokens, settings.page_size, prefix_cache=settings.prefix_cache
        )
        self.batcher = Batcher(settings, self.pool, self.driver)
        self.inbox: deque[LiveRequest] = deque()
        self.decode_done_ms = array("d")
        """Completion time of every decode launch."""
        self.gpu_free_ms = start_ms
        self.steps = 0
        self.in_flight: Launched | None = None
        """The launched step whose result the scheduler has not seen."""
        self._leap = leap and sink is None
        self._on_left = on_left
        self._stalled = 0

    # ------------------------------------------------------------------- requests

    def submit(self, request: LiveRequest) -> None:
        """``request`` arrives at ``request.arrival_ms``; call in order of arrival."""
        self.inbox.append(request)

    @property
    def outstanding_tokens(self) -> int:
        """Prompt and output tokens that the engine still owes, arrived or on the way."""
        batcher = self.batcher
        coming = sum(r.spec.input_tokens + r.max_new_tokens for r in self.inbox)
        owed = batcher.chunked.owed_tokens if batcher.chunked is not None else 0
        return self.driver.queued_tokens + coming + owed + batcher.rows.load_tokens

    @property
    def unfinished(self) -> int:
        """Requests in the engine or on the way to it."""
        return len(self.inbox) + self.driver.waiting + self.batcher.active

    def _arrive(self, request: LiveRequest) -> None:
        settings = self.settings
        reason = never_fits(
            request.spec.input_tokens,
            request.max_new_tokens,
            self.pool.capacity_tokens,
            self.pool.page_size,
        )
        if reason is not None:
            self._refuse(request, reason)
            return
        limit = settings.max_queued_requests
        # One with output already comes from another engine: it was let in there.
        began = request.produced > 0
        if limit is not None and self.driver.waiting >= limit and not began:
            self._refuse(request, f"queue full ({limit} waiting)")
            return
        chunked = self.batcher.chunked
        owed = chunked.owed_tokens if chunked is not None else 0
        refusal = self.driver.enqueue(
            request,
            retracted=began,
            owed_prompt_tokens=owed,
            cached_tokens=self.pool.hit(request)[0],
        )
        if refusal is not None:
            self._refuse(request, refusal.reason)

    def _refuse(self, request: LiveRequest, reason: str) -> None:
        request.status = "refused"
        request.reason = reason
        self._left(request)

    def _left(self, request: LiveRequest) -> None:
        if self._on_left is not None:
            self._on_left(request)

    def hand_over(self) -> None:
        """Finish the step under way and let go of every request, each with the output it
        has; their KV stays behind. The engine serves nobody afterwards."""
        before, self.in_flight = self.in_flight, None
        if before is not None:
            self._complete(before)
        self.batcher.evict_all()
        self.inbox.clear()

    # ----------------------------------------------------------------------- time

    def run(self, until_ms: float = math.inf) -> None:
        """Serve until ``until_ms``, or until nothing is left to do.

        Passes that would start at ``until_ms`` or later are left for the next call.

        Raises:
            SimulationStalled: the policy admits nobody to an empty engine.
        """
        while self.now_ms < until_ms:
            if self._leap:
                decode_run.run(self, until_ms)
                if self.now_ms >= until_ms:
                    return
            if not self._pass():
                if self.driver.waiting or self.batcher.active:
                    self._count_stall()
                elif self.inbox:
                    self.now_ms = max(self.now_ms, self.inbox[0].arrival_ms)
                else:
                    return

    def _count_stall(self) -> None:
        self._stalled += 1
        if self._stalled >= STALLED_PASSES:
            name = "stock" if self.driver.policy is None else self.driver.policy.name
            raise SimulationStalled(
                f"policy {name}: {self.unfinished} requests left and no step in {STALLED_PASSES} "
                "passes of an idle engine: the run would never end"
            )

    def _pass(self) -> bool:
        """One turn of the scheduler's loop; False when the engine is idle."""
        inbox, driver = self.inbox, self.driver
        now = driver.now_ms = self.now_ms
        driver.deliver()
        while inbox and inbox[0].arrival_ms <= now:
            self._arrive(inbox.popleft())
        driver.begin_pass()
        batcher = self.batcher
        batch = batcher.next_batch()
        pool = self.pool
        driver.end_pass(pool.free_tokens, pool.capacity_tokens, batcher.load_after())
        before, launched = self.in_flight, None
        if batch is None:
            driver.no_batch()
        else:
            launched = self._launch(batch)
            self._stalled = 0
        for request in batcher.take_lost():
            self._left(request)
        if self.settings.overlap:
            self.in_flight = launched
            if before is not None:
                self._complete(before)
        elif launched is not None:
            self._complete(launched)
        if batch is not None or before is not None:
            return True
        batcher.ratio.idle()
        return False

    def _launch(self, batch: Batch) -> Launched:
        start = max(self.gpu_free_ms, self.now_ms)
        duration = self.timer.step_ms(batch.rows, batch.attended_tokens, batch.prefill_tokens)
        done = start + duration
        self.gpu_free_ms = done
        self.steps += 1
        if batch.rows:
            self.decode_done_ms.append(done)
        return self.driver.launched(
            batch.kind,
            self.now_ms,
            done,
            batch.rows,
            batch.prefill_tokens,
            self.pool.held,
            batch.first_tokens,
        )

    def _complete(self, step: Launched) -> None:
        """The scheduler processes the result of ``step`` as soon as it is there."""
        done = step.done_ms
        if done > self.now_ms:
            self.now_ms = done
        rows = self.batcher.rows
        for request, stay in step.first_tokens:
            if request.stay != stay:
                continue  # retracted meanwhile; the token is computed again
            request.first_token_ms = done
            rows.first_token(request)
            if request.produced >= request.output_tokens:
                self._finish(request)
        if step.batch:
            for request in rows.settle():
                self._finish(request)
        self.driver.completed(step, self.settings.overlap)

    def _finish(self, request: LiveRequest) -> None:
        rows = self.batcher.rows
        limit = request.max_new_tokens
        produced = request.output_tokens
        remaining = self.driver.lengths.remaining(request.spec.input_tokens, limit, produced)
        first_token_ms = request.first_token_ms
        assert first_token_ms is not None
        if request in rows.running:
            begin, end = request.first, request.end
            kv_tokens = rows.leave(request, remaining)
        else:
            # Its only token came with its prefill, before it joined the batch.
            begin = end = 0
            rows.load_tokens -= remaining
            kv_tokens = request.fill_tokens
        self.batcher.full = False
        self.pool.release(request, kv_tokens, keep=True)
        request.segments.append(Segment(first_token_ms, begin, end))
        request.produced = produced
        request.status = "completed"
        self.driver.answered(request)
        if self.driver.sink is not None:
            self.driver.finished.append((request.spec.input_tokens, produced))
        self._left(request)
