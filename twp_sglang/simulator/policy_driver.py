"""Calls a policy as the hooks on SGLang call it, and keeps the record of each step.

The counterpart of ``patches.runtime`` for the simulated engine: the same calls in the same
order with the same arguments, so that a policy cannot tell which of the two drives it.
Without a policy it only keeps the queue, in SGLang's order, and the record.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from twp_sglang.scheduling.decision import Decision, Grant
from twp_sglang.scheduling.lengths import DeclaredLengths
from twp_sglang.scheduling.lengths_online import FinishedAnswer
from twp_sglang.scheduling.load import ActiveLoad
from twp_sglang.scheduling.overload import Refusal
from twp_sglang.scheduling.policies.base import Policy, Signals
from twp_sglang.scheduling.preemption import protected
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import PassView, StepKind, StepSample
from twp_sglang.simulator.live_request import LiveRequest
from twp_sglang.trace import AdmissionRecord, StepRecord

WINDOW_EVERY_PASSES = 8
"""The window is noted in every eighth pass: it moves slowly against that, and asking in
every one would be felt."""

_NO_SIGNALS = Signals(None, None, None)


class StepSink(Protocol):
    """Takes one record per step."""

    def put(self, record: StepRecord) -> None:
        """Take the next record."""


class Launched(NamedTuple):
    """A step between its launch and its result."""

    step: int
    kind: StepKind
    counts: bool
    """Whether the span to its completion is a step time (no idle gap before it)."""
    done_ms: float
    batch: int
    prefill_tokens: int
    kv_tokens: int
    first_tokens: tuple[tuple[LiveRequest, int], ...]
    """Requests whose prompt it completes, each with its stay."""
    record: StepRecord | None


class PolicyDriver:
    """Queue, policy and record of one simulated engine."""

    def __init__(self, policy: Policy | None, sink: StepSink | None = None) -> None:
        self.policy = policy
        self.steers = policy is not None and policy.enforces
        self.reads_rows = policy is not None and policy.reads_rows
        self.sink = sink
        self.lengths = DeclaredLengths()
        """What the engine itself reserves by."""
        self.source = self.lengths if policy is None else policy.length_source
        self.learns_lengths = not isinstance(self.source, DeclaredLengths)
        self.pass_index = 0
        self.now_ms = 0.0
        """The engine's clock at the start of the pass."""
        self.idle_since_launch = True
        self.last_pass_empty = True
        self.last_done_ms: float | None = None
        self.outbox: list[StepSample] = []
        self.windows = array("d")
        self.forced = 0
        self.finished: list[tuple[int, int]] = []
        self._newest_sample_step: int | None = None
        self._next_seq = 0
        # Stock order; the policy keeps its own where it steers.
        self._line: deque[LiveRequest] = deque()
        self.waiting = 0
        """Requests in the queue."""
        self.queued_tokens = 0
        """Prompt and expected output tokens of the queue."""
        self._priorities: set[int] = set()
        # Of the pass under way.
        self._decision: Decision | None = None
        self._grants: dict[LiveRequest, Grant] = {}
        self.step_chunk: int | None = None
        """TWP's bound on the prompt tokens of this step; None where nobody decodes."""
        self._load: ActiveLoad | None = None
        self._admissions: list[AdmissionRecord] = []
        self._admitted = 0
        self._forced_now = 0

    # ------------------------------------------------------------------- requests

    def enqueue(
        self,
        request: LiveRequest,
        *,
        retracted: bool,
        owed_prompt_tokens: int = 0,
        cached_tokens: int = 0,
    ) -> Refusal | None:
        """``request`` joins the tail of the queue, unless a policy that steers refuses it.

        Args:
            owed_prompt_tokens: prompt tokens of admitted requests still to be computed.
            cached_tokens: prompt tokens whose KV is there now.
        """
        spec = request.spec
        info = RequestInfo(
            str(request.index),
            self._next_seq,
            self.pass_index,
            spec.input_tokens + request.produced,
            self.source.remaining(spec.input_tokens, request.max_new_tokens, request.produced),
            priority=spec.priority,
            retracted=retracted,
            handle=request,
            arrival_ms=self.now_ms,
            client=spec.client,
            itl_slo_ms=spec.itl_slo_ms,
            ttft_slo_ms=spec.ttft_slo_ms,
            max_new_tokens=request.max_new_tokens,
            produced_tokens=request.produced,
            retractions=request.retractions,
            cached_tokens=cached_tokens,
            charged_tokens=0 if request.info is None else request.info.charged_tokens,
            preemptions=0 if request.info is None else request.info.preemptions,
        )
        self._next_seq += 1
        if self.steers and not retracted:
            assert self.policy is not None
            refusal = self.policy.refusal(info, owed_prompt_tokens)
            if refusal is not None:
                return refusal
        request.info = info
        request.status = "waiting"
        self.waiting += 1
        self.queued_tokens += info.prompt_tokens + info.expected_tokens
        self._priorities.add(spec.priority)
        if self.policy is not None:
            self.policy.enqueue(info)
        if not self.steers:
            self._line.append(request)
        return None

    def answered(self, request: LiveRequest) -> None:
        """A request completed."""
        if self.policy is not None and self.policy.reads_lengths:
            info = request.info
            assert info is not None
            self.policy.finished(
                FinishedAnswer(
                    request.spec.input_tokens,
                    request.produced,
                    request.max_new_tokens,
                    info.client,
                    info,
                )
            )

    def deliver(self) -> None:
        """The samples made since the last pass reach the policy."""
        outbox = self.outbox
        if not outbox:
            return
        if self.policy is not None:
            for sample in outbox:
                self.policy.observe(sample)
        self._newest_sample_step = outbox[-1].step
        outbox.clear()

    # --------------------------------------------------------------------- passes

    def begin_pass(self) -> None:
        """The engine starts to form its next batch."""
        if self.waiting or not self.last_pass_empty:
            self.pass_index += 1
        self._decision = None
        self._load = None
        self._admitted = 0
        self._forced_now = 0
        if self._grants:
            self._grants = {}
        if self._admissions:
            self._admissions = []

    def candidates(self, view: PassView) -> Iterable[LiveRequest]:
        """Whom the engine may try in this pass, first to last."""
        self._load = ActiveLoad(view.load_tokens, view.batch)
        if self.policy is not None:
            decision = self._decision = self.policy.decide(view)
            if self.steers:
                grants = self._grants = {grant.request.handle: grant for grant in decision.grants}
                return list(grants)
        if len(self._priorities) > 1:
            return sorted(self._line, key=lambda request: -request.spec.priority)
        return self._from_the_front(len(self._line))

    @property
    def preempts(self) -> bool:
        """Whether the only grant of this pass takes the place of a running request."""
        return self.steers and self._decision is not None and self._decision.preempts

    def may_give_way(self, request: LiveRequest, produced_tokens: int) -> bool:
        """Whether a running request is open to preemption; stock protects nobody."""
        assert request.info is not None
        return not self.steers or not protected(request.info, produced_tokens)

    def preempted(self, request: LiveRequest) -> None:
        """A running request gave its place to a higher priority."""
        assert request.info is not None
        request.info.preemptions += 1
        self.enqueue(request, retracted=False)

    def chunk_tokens(self, view: PassView) -> int | None:
        """The policy's bound on prompt tokens in this step, where it steers and has one."""
        if self.policy is None or not self.steers:
            return None
        return self.policy.chunk_tokens(view)

    def _from_the_front(self, count: int) -> Iterator[LiveRequest]:
        # The engine takes the front one or stops: no copy of a long queue is needed.
        for _ in range(count):
            yield self._line[0]

    def admitted(self, request: LiveRequest, cached_tokens: int) -> None:
        """The engine took ``request`` into its next batch and found so many tokens of its prompt
        in its prefix cache."""
        info, load = request.info, self._load
        assert info is not None
        assert load is not None
        self.waiting -= 1
        self.queued_tokens -= info.prompt_tokens + info.expected_tokens
        self._admitted += 1
        policy = self.policy
        grant = self._grants.pop(request, None)
        if policy is not None:
            policy.recount(info, cached_tokens)
        if grant is not None:
            assert policy is not None
            policy.admitted(grant)
            forced = grant.reason == "forced"
            self._forced_now += forced
            self.forced += forced
        else:
            if policy is not None:
                decision = self._decision
                policy.taken(
                    info,
                    agreed=decision is not None
                    and any(watched.request is info for watched in decision.grants),
                )
            if self._line and self._line[0] is request:
                self._line.popleft()
            else:
                self._line.remove(request)
        if self.sink is not None:
            self._admissions.append(_admission(info, grant, load, self.pass_index))
        self._load = load.plus(info.expected_tokens)

    def end_pass(self, kv_free_tokens: int, kv_capacity_tokens: int, after: ActiveLoad) -> None:
        """The batch is formed, or none. ``after`` is the load where no decision was asked."""
        policy = self.policy
        if self._load is None:
            self._load = after
        if policy is not None:
            policy.end_pass(kv_free_tokens, kv_capacity_tokens, self._load)
            if not self.pass_index % WINDOW_EVERY_PASSES:
                self.note_window()

    def note_window(self) -> None:
        """Remember the window for the summary."""
        assert self.policy is not None
        window = self.policy.signals().window_tokens
        if window is not None:
            self.windows.append(window)

    def no_batch(self) -> None:
        """The pass formed no batch."""
        self.last_pass_empty = True
        self.idle_since_launch = True

    def launched(
        self,
        kind: StepKind,
        now_ms: float,
        done_ms: float,
        batch: int,
        prefill_tokens: int,
        kv_tokens: int,
        first_tokens: tuple[tuple[LiveRequest, int], ...],
    ) -> Launched:
        """The pass formed a batch, which now runs."""
        self.last_pass_empty = False
        counts = not self.idle_since_launch
        self.idle_since_launch = False
        record = None
        if self.sink is not None:
            record = self._record(kind, now_ms, batch, prefill_tokens, kv_tokens)
        return Launched(
            self.pass_index,
            kind,
            counts,
            done_ms,
            batch,
            prefill_tokens,
            kv_tokens,
            first_tokens,
            record,
        )

    def completed(self, step: Launched, overlap: bool) -> None:
        """The result of ``step`` was processed: its sample and its record are ready."""
        last, self.last_done_ms = self.last_done_ms, step.done_ms
        duration: float | None = None
        # A step whose result comes while nothing follows it drains the pipeline.
        if step.counts and last is not None and not (overlap and self.last_pass_empty):
            duration = step.done_ms - last
        if self.policy is not None or self.sink is not None:
            self.outbox.append(
                StepSample(
                    step.step,
                    step.kind,
                    duration,
                    step.batch,
                    step.prefill_tokens,
                    step.kv_tokens,
                )
            )
        if self.sink is not None and step.record is not None:
            rounded = None if duration is None else round(duration, 4)
            self.sink.put(step.record._replace(duration_ms=rounded, finished=tuple(self.finished)))
            self.finished.clear()

    # --------------------------------------------------------------------- record

    def _record(
        self, kind: StepKind, now_ms: float, batch: int, prefill_tokens: int, kv_tokens: int
    ) -> StepRecord:
        policy = self.policy
        state = _NO_SIGNALS if policy is None else policy.signals()
        load = self._load
        decision = self._decision
        watched = decision is not None and not self.steers
        return StepRecord(
            step=self.pass_index,
            t_ms=round(now_ms, 3),
            kind=kind,
            duration_ms=None,
            batch=batch,
            prefill_tokens=prefill_tokens,
            kv_tokens=kv_tokens,
            queue=self.waiting,
            load_tokens=0 if load is None else load.load_tokens,
            window_tokens=state.window_tokens,
            sigma=state.sigma,
            itl_ms=state.itl_ms,
            sample_step=self._newest_sample_step,
            admitted=self._admitted,
            forced=self._forced_now,
            closed=self._closed(prefill_tokens),
            admissions=tuple(self._admissions),
            would_admit=len(decision.grants) if decision is not None and watched else None,
        )

    def _closed(self, prefill_tokens: int) -> str:
        """Why somebody still waits, in the words of the trace."""
        if not self.waiting:
            return ""
        if self._decision is None or self._grants:
            full = self.step_chunk is not None and prefill_tokens >= self.step_chunk
            return "chunk" if full else "engine"
        return self._decision.closed


def _admission(
    info: RequestInfo, grant: Grant | None, load: ActiveLoad, pass_index: int
) -> AdmissionRecord:
    by_engine = "retracted" if info.retracted else "policy"
    return AdmissionRecord(
        info.rid,
        by_engine if grant is None else grant.reason,
        info.prompt_tokens,
        info.expected_tokens,
        load.load_tokens,
        None if grant is None else grant.kv_free_after,
        None if grant is None else grant.kv_threshold,
        pass_index - info.arrival_pass if grant is None else grant.waited_passes,
        info.cached_tokens,
    )
