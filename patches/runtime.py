"""TWP inside one SGLang scheduler process: the policy, its inputs, its record, its faults.

The hooks of ``patches.sglang_0_5`` call this object and nothing else. Every call is
guarded there: an exception in here is logged once with its traceback, stock scheduling
takes over for good, and /server_info says so.

How tensor-parallel ranks agree: rank 0 measures; its samples ride on SGLang's own request
broadcast and reach every rank in the same scheduling pass, and so does its clock where the
policy reads the time. The policy sees only those, pass counts and request attributes.
"""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

from controllers.step_trace import Header
from patches import fault_injection
from patches.active_load import ActiveLoadReader
from patches.admission_records import granted, taken
from patches.arrivals import Arrivals, arrival_of, info_of
from patches.door import Door
from patches.informed import informed
from patches.membership import compared
from patches.metrics.exporter import Exporter
from patches.offering import Offering
from patches.preemptions import Preemptions
from patches.prefix_hits import PrefixHits
from patches.recording import Recording
from patches.sample_relay import Envelope, SampleRelay
from patches.sglang_0_5 import engine_view
from patches.step_meter import StepMeter, sample_of
from patches.telemetry import Telemetry
from patches.watching import Watching
from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.active_rows import nobody
from twp_sglang.scheduling.decision import Decision, Grant
from twp_sglang.scheduling.load import ActiveLoad
from twp_sglang.scheduling.overload import Refusal
from twp_sglang.scheduling.policies import build_policy
from twp_sglang.scheduling.sample import PassView
from twp_sglang.trace import AdmissionRecord, StepRecord

logger = logging.getLogger(__name__)


class Ranks(NamedTuple):
    """Where this scheduler process stands."""

    tp_rank: int
    dp_rank: int | None


class Runtime:
    """See the module's text. One per scheduler process."""

    def __init__(
        self,
        config: TwpConfig,
        scheduler: Any,
        ranks: Ranks,
        trace_dir: Path | None,
        header: Header,
        chunk_tokens: int | None = None,
        exporter: Exporter | None = None,
    ) -> None:
        self.config = config
        self.replica = ranks.dp_rank or 0
        """Number of the data-parallel replica; 0 where there is one."""
        self.revision = 0
        """How often the configuration was changed."""
        self.chunk_tokens = chunk_tokens
        """Prompt tokens per step while somebody decodes; None leaves SGLang's own chunk."""
        self.chunk_unset = () if config.chunk_tokens else (chunk_tokens,)
        """What the launcher chose where the configuration has no chunk; empty where it has."""
        self.policy = build_policy(informed(config, scheduler))
        self._load_reader = ActiveLoadReader(self.policy.length_source)
        self._offering = Offering(arrival_of)
        self._hits = PrefixHits(scheduler)
        self._arrivals = Arrivals(scheduler, self.policy.length_source, self._hits.of)
        self._door = Door(scheduler, self.policy, self._arrivals, reads_tokens=not header.emulated)
        self.deciding = True
        self.fallbacks = 0
        self.preemptions = Preemptions()
        self.fallback_reason: str | None = None
        self.pass_index = 0
        self._faults = fault_injection.requested()
        self._clock = self._faults.clock(time.perf_counter, ranks.tp_rank)
        self._start_s = self._clock()
        self._scheduler = scheduler
        self._capacity = engine_view.kv_capacity_tokens(scheduler)
        self.watching = Watching()
        # Of the pass under way.
        self._grants: dict[int, Grant] = {}
        self._decision: Decision | None = None
        self._load: ActiveLoad | None = None
        self._seen: PassView | None = None
        self._free_tokens = 0
        self._admissions: list[AdmissionRecord] = []
        self._forced = 0
        self._closed = ""
        # Between passes.
        self._meter = StepMeter(self._clock, bool(scheduler.enable_overlap))
        self._relay = SampleRelay(self.policy.reads_time)
        self._newest_sample_step: int | None = None
        self._recording = Recording(trace_dir, ranks.dp_rank, header)
        self._telemetry = Telemetry(self.policy, self._recording, exporter, self._clock)
        self._step_chunk = chunk_tokens
        self._leads = False

    def _since_start_ms(self) -> float:
        return round((self._clock() - self._start_s) * 1e3, 3)

    # ------------------------------------------------------------------ faults

    def fault(self, where: str) -> None:
        """Called from an except block: stock scheduling from here on."""
        self.fallbacks += 1
        if not self.deciding:
            return
        self.deciding = False
        self._grants.clear()
        logger.exception(
            "TWP failed in %s: stock SGLang scheduling takes over in this process. "
            "/server_info shows twp.deciding = false until a restart.",
            where,
        )
        self.fallback_reason = where
        self._telemetry.failed(self.fallbacks)

    # ------------------------------------------------------------ configuration

    def reconfigure(self, config: TwpConfig, chunk_tokens: int | None) -> None:
        """Decide by ``config`` and ``chunk_tokens`` from the next pass on. Called in the same
        pass on every rank.

        Raises:
            ValueError: the policy cannot take it; nothing has changed.
        """
        self.policy.reconfigure(informed(config, self._scheduler))
        self.config, self.chunk_tokens = config, chunk_tokens
        self.revision += 1
        # A trace is judged by the configuration in its header.
        self._recording.restart(config)

    # ----------------------------------------------------------------- requests

    def refusal(self, req: Any) -> Refusal | None:
        """Why ``req``, about to join SGLang's waiting queue, must not; None lets it in."""
        # Who has left without a word must not count against the bounds of the queue.
        self._agree(self._scheduler.waiting_queue)
        return self._door.refusal(req, self.config, self.pass_index, self._relay.now_ms)

    def enqueued(self, req: Any, retracted: bool) -> None:
        """``req`` stands at the tail of SGLang's waiting queue."""
        if retracted:
            self._telemetry.gaps.lost(req)
        info = self._door.let_in(req) or self._arrivals.note(
            req, self.pass_index, self._relay.now_ms, retracted=retracted
        )
        self.policy.enqueue(info)

    def resync(self, waiting_queue: list[Any]) -> None:
        """Make the policy's queue that of SGLang again: aborts and timeouts leave silently."""
        gone, unknown = compared(waiting_queue, self.policy.queue)
        for info in gone:
            self.policy.withdraw(info)
            self._telemetry.gaps.gone(info.handle)
        for req in unknown:
            self.enqueued(req, retracted=False)

    def _agree(self, waiting_queue: list[Any]) -> None:
        if len(waiting_queue) != len(self.policy.queue):
            self.resync(waiting_queue)

    # ------------------------------------------------------------------- passes

    def begin_pass(self) -> None:
        """SGLang starts to form its next batch."""
        if self._scheduler.waiting_queue or not self._meter.last_pass_empty:
            # An idle engine spins; counting that would number steps by wall time.
            self.pass_index += 1
        # SGLang asks for no order once its queue is empty; the last to leave it by an abort
        # would be counted as waiting until somebody else came.
        self._agree(self._scheduler.waiting_queue)
        self._grants.clear()
        self._decision = None
        self._load = None
        self._seen = None
        self._admissions = []
        self._forced = 0
        if self.pass_index == self._faults.fail_at_pass:
            raise RuntimeError(f"fault injected in pass {self.pass_index}")

    def order(self, waiting_queue: list[Any], running_batch: Any) -> None:
        """Decide this pass and put the granted requests first, in their order."""
        self._agree(waiting_queue)
        self._hits.renew(waiting_queue, self.policy)
        decision = self._decide(running_batch)
        if not self.policy.enforces:
            return
        try:
            self._offering.put_first(waiting_queue, decision.handles)
        except ValueError:
            # As many ghosts as newcomers: the lengths agreed and the members did not.
            self.resync(waiting_queue)
            decision = self._decide(running_batch)
            self._offering.put_first(waiting_queue, decision.handles)
        self._grants = {id(grant.request.handle): grant for grant in decision.grants}
        if decision.preempts:
            running_batch.batch_is_full = True  # what SGLang preempts for

    def _decide(self, running_batch: Any) -> Decision:
        view = self._seen = self.view(running_batch)
        self._decision = decision = self.policy.decide(view)
        self._load = ActiveLoad(view.load_tokens, view.batch)
        self._free_tokens = view.kv_free_tokens
        return decision

    def view(self, running_batch: Any) -> PassView:
        """The engine as it stands, as the policy is shown it."""
        scheduler = self._scheduler
        chunked = scheduler.chunked_req
        active = engine_view.active_before(running_batch, chunked)
        load = self._load_reader.read(active)
        owed = engine_view.owed_prompt_tokens(chunked)
        free = engine_view.kv_free_tokens(scheduler) - owed
        return PassView(
            self.pass_index,
            load.load_tokens,
            load.batch,
            free,
            self._capacity,
            owed,
            self._relay.now_ms,
            self._load_reader.rows(scheduler) if self.policy.reads_rows else nobody,
            engine_view.preemption_threshold(scheduler),
        )

    def step_chunk_tokens(self, running_batch: Any, page_size: int) -> int | None:
        """Most prompt tokens in the step of this pass; None where nobody decodes or nothing
        bounds them. A multiple of what a chunk must end on, or no prompt would move."""
        if running_batch is None or not running_batch.reqs:
            self._step_chunk = None
            return None
        # With an empty queue and a prompt under way SGLang asks for no order.
        chosen = self.policy.chunk_tokens(self._seen or self.view(running_batch))
        if chosen is None:
            self._step_chunk = self.chunk_tokens
            return self._step_chunk
        align = getattr(self._scheduler, "truncation_align_size", None)
        grain = math.lcm(page_size, int(align or 1))
        self._step_chunk = max(grain, chosen // grain * grain)
        return self._step_chunk

    def may_admit(self, req: Any) -> bool:
        """Whether the gate is open for ``req`` in this pass."""
        return not self.policy.enforces or id(req) in self._grants

    def admitted(self, req: Any) -> None:
        """SGLang took ``req`` into its next batch."""
        info = info_of(req)
        if info is None:
            return
        self.policy.recount(info, engine_view.prefix_tokens(req))
        load = self._load or ActiveLoad(0, 0)
        grant = self._grants.pop(id(req), None)
        if grant is not None:
            self.policy.admitted(grant)
            self._forced += grant.reason == "forced"
            record = granted(info, grant, load)
        else:
            decision = self._decision
            self.policy.taken(
                info,
                agreed=decision is not None
                and any(watched.request is info for watched in decision.grants),
            )
            free_after = (self._free_tokens - info.prompt_tokens) / max(1, self._capacity)
            waited = self.pass_index - info.arrival_pass
            record = taken(info, load, free_after, self.policy.kv_threshold, waited)
        self._admissions.append(record)
        self._free_tokens -= info.prompt_tokens
        self._load = load.plus(info.expected_tokens)

    def end_pass(self, plan: Any) -> None:
        """SGLang has formed its batch, or none."""
        scheduler = self._scheduler
        self.preemptions.pass_ended(scheduler)
        free = engine_view.kv_free_tokens(scheduler)
        load = self._load
        if load is None:
            # SGLang did not ask for an order. Read on every rank, not only where a trace
            # is written: laws with anti-windup look at the load.
            load = self._load_reader.read(engine_view.active_after(plan, scheduler.chunked_req))
        self.policy.end_pass(free, self._capacity, load)
        self._telemetry.pass_ended(load, self._step_chunk, self.fallbacks)
        batch = plan.batch_to_run
        if batch is None:
            self._meter.idle()
            return
        facts = engine_view.batch_facts(batch)
        decision = self._decision
        self._closed = self._closed_reason(decision, facts.prefill_tokens)
        if self._closed:
            self.policy.tally.held(self._closed)
        state = self.policy.signals()
        record = StepRecord(
            step=self.pass_index,
            t_ms=self._since_start_ms(),
            kind=facts.kind,
            duration_ms=None,
            batch=facts.decode_rows,
            prefill_tokens=facts.prefill_tokens,
            kv_tokens=self._capacity - free,
            queue=len(scheduler.waiting_queue),
            load_tokens=load.load_tokens,
            window_tokens=state.window_tokens,
            sigma=state.sigma,
            itl_ms=state.itl_ms,
            sample_step=self._newest_sample_step,
            admitted=len(self._admissions),
            forced=self._forced,
            closed=self._closed,
            admissions=tuple(self._admissions),
            would_admit=(
                len(decision.grants) if decision is not None and not self.policy.enforces else None
            ),
        )
        self._meter.launched(record)

    def _closed_reason(self, decision: Decision | None, prefill_tokens: int) -> str:
        """Why somebody still waits, in the words of the trace."""
        if not self._scheduler.waiting_queue:
            return ""
        if decision is None or self._grants:
            if self._step_chunk is not None and prefill_tokens >= self._step_chunk:
                return "chunk"
            # Its slots are full, its own chunk is, or this pass belongs to decoding.
            return "engine"
        return decision.closed

    # ------------------------------------------------------------------ samples

    def completed(self, batch: Any) -> None:
        """The result of the oldest launched step was processed."""
        record = self._meter.completed()
        self._telemetry.completed(record, batch.reqs)
        if record is None:
            return
        self._relay.made(sample_of(record), leads=self._leads)
        self._recording.completed(record, batch, self.policy)

    def outgoing(self) -> Envelope | None:
        """Rank 0: samples not yet delivered, to ride on the request broadcast."""
        if not self._leads:
            self._leads = True
            self._recording.open()
        return self._relay.pack(self._since_start_ms())

    def deliver(self, envelope: Envelope) -> None:
        """All ranks, in the same pass: feed the policy. Repeats are recognised."""
        for sample in self._relay.unpack(envelope):
            self.watching.take(sample, self.policy)
            self.policy.observe(sample)
            self._newest_sample_step = sample.step

    def state(self) -> dict[str, Any]:
        """What /server_info shows under ``twp``; JSON types only."""
        chunked = self._scheduler.chunked_req
        load = self._load_reader.read(
            engine_view.active_before(self._scheduler.running_batch, chunked)
        )
        return {
            **self.policy.snapshot(),
            "deciding": self.deciding and self.policy.enforces,
            "fallbacks": self.fallbacks,
            "fallback_reason": self.fallback_reason,
            "preemptions": self.preemptions.count,
            "load_tokens": load.load_tokens,
            "batch": load.batch,
            "queue": len(self._scheduler.waiting_queue),
            **self.watching.state(self.policy, self._scheduler, self._capacity),
            "closed": self._closed,
            "chunk_tokens": self._step_chunk if self.policy.sizes_chunks else self.chunk_tokens,
            "pass": self.pass_index,
            "samples": self._relay.delivered,
            "revision": self.revision,
            "retraction_gap_max_ms": self._telemetry.gaps.longest_ms,
            **self._recording.state(),
            "config": self.config.model_dump(mode="json"),
        }
