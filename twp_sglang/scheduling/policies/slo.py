"""Hold the user's objectives: the step by prediction, the first token by feasibility.

The default, because it kept at least as many requests within both objectives as every scheduler
it was compared with in simulation; not yet confirmed on a GPU. docs/slo.md has formulas, results
and limits.

- Rows: admit while the predicted decode step keeps the ITL objective with a learned margin.
- Chunk: as many prompt tokens per step as the prediction leaves, at least 32.
- Order: retracted, aged on a bounded share, those whose TTFT can be kept, late ones.
- Memory: the predicted peak leaves a margin; a late one that does not fit is passed by those who
  do, until it is old.

Exempt from rows and memory are retracted requests and the head of an idle engine; nobody is
exempt from what the engine can physically hold, which the engine itself checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import partial
from itertools import chain
from typing import Any

from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.client_turns import ClientTurns
from twp_sglang.scheduling.decision import (
    NOBODY_WAITS,
    ClosedReason,
    Decision,
    Grant,
    GrantReason,
)
from twp_sglang.scheduling.explanation import prompt_to_serve
from twp_sglang.scheduling.feasibility import TtftLines
from twp_sglang.scheduling.lengths_online import FinishedAnswer
from twp_sglang.scheduling.load import ActiveLoad
from twp_sglang.scheduling.memory_guard import CAUTIOUS_FROM, MemoryGuard
from twp_sglang.scheduling.objectives import Objectives
from twp_sglang.scheduling.overload import Overload
from twp_sglang.scheduling.pass_sums import decoding_rows, kv_held, longest_row
from twp_sglang.scheduling.policies.base import GRANTS_PER_PASS, Policy, Signals
from twp_sglang.scheduling.preemption import makes_way, without
from twp_sglang.scheduling.prefill_rate import PrefillRate
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.row_objectives import RowObjectives
from twp_sglang.scheduling.sample import PassView, StepSample
from twp_sglang.scheduling.step_model import OnlineStepModel

GRANTS_SPARE = 8
"""Grants in a pass whose prompts fill the step already: the engine may find more in its prefix
cache than when it was asked, and each further grant costs a look at memory."""

PASSED_BY = 16
"""Most requests that do not fit in memory and are passed by others in one pass."""


class Slo(Policy):
    """Policy ``slo``, see the module's text."""

    name = "slo"
    sizes_chunks = True
    reads_time = True
    reads_lengths = True
    reads_rows = True

    def __init__(self, config: TwpConfig) -> None:
        super().__init__()
        self.overload = Overload(config)
        self.objectives = Objectives(config)
        self._chunk_limit = config.chunk_tokens
        self._warmup = config.warmup_steps
        self.model = OnlineStepModel(config)
        self.turns = ClientTurns() if config.client_fairness == "on" else None
        self.lines = TtftLines(
            self.objectives.ttft_ms, config.late_after_ms, config.late_share, self.turns
        )
        self.rate = PrefillRate()
        self.memory = MemoryGuard(config)
        self.row_objectives = RowObjectives(self.model)
        self._load = ActiveLoad(0, 0)
        self._now_ms = 0.0
        self._closed: ClosedReason = ""
        self._pass_index = 0
        self._step_ms: float | None = None

    def reconfigure(self, config: TwpConfig) -> None:
        """Another objective, model or share; what was learned and the lines stay. A model that
        is given, or no longer given, starts with gains of 1."""
        # All that can refuse is built before anything is set.
        self.objectives, model = self._built(config)
        self.model.become(model)
        assert self.overload is not None
        self.overload.reconfigure(config)
        self.lines.reconfigure(self.objectives.ttft_ms, config.late_after_ms, config.late_share)
        self._chunk_limit = config.chunk_tokens
        self.memory.reconfigure(config)

    def try_out(self, config: TwpConfig) -> None:
        """Builds objectives and model beside those in force."""
        self._built(config)

    def _built(self, config: TwpConfig) -> tuple[Objectives, OnlineStepModel]:
        objectives = copy(self.objectives)
        objectives.reconfigure(config)
        return objectives, self.model.reconfigured(config, objectives.itl_ms)

    # ------------------------------------------------------------------- requests

    def ttft_objective_ms(self, request: RequestInfo) -> float:
        """Its own, or that of all."""
        return request.ttft_slo_ms or self.objectives.ttft_ms

    def prompt_tokens_before(self, request: RequestInfo) -> tuple[int, int]:
        """The late line is not before one that can still be in time."""
        ahead, _ = super().prompt_tokens_before(request)
        return ahead, min(ahead, self.lines.fresh_tokens)

    def enqueue(self, request: RequestInfo) -> None:
        """Joins the queue; fresh ones also the lines by TTFT."""
        super().enqueue(request)
        self.memory.enqueued(request)
        self.row_objectives.enqueued(request)
        if self.turns is not None:
            self.turns.arrived(request)
        if not request.retracted:
            self.lines.add(request)

    def recount(self, request: RequestInfo, cached_tokens: int) -> None:
        """Also what the lines add up."""
        before = prompt_to_serve(request)
        super().recount(request, cached_tokens)
        self.lines.recounted(request, prompt_to_serve(request) - before)

    def withdraw(self, request: RequestInfo) -> None:
        """Left unserved."""
        super().withdraw(request)
        self._left(request)

    def admitted(self, grant: Grant) -> None:
        """Taken; pays or earns the credit of aged requests."""
        request = grant.request
        if request.retracted:
            self.memory.gaps.admitted(request, self._pass_index, self._now_ms)
        else:
            aged = self.lines.goes_first(request, self._now_ms)
            self.lines.spent(prompt_to_serve(request), aged=aged)
            if self.row_objectives.gives_up(request) or self._is_due(request, self._now_ms):
                request.itl_slo_ms = None
            if self.turns is not None and not request.preemptions:
                self.turns.served_prompt(request)
        self._left(request)
        super().admitted(grant)

    def taken(self, request: RequestInfo, *, agreed: bool = False) -> None:
        """Taken by the engine on its own."""
        self._left(request)
        super().taken(request, agreed=agreed)

    def _left(self, request: RequestInfo) -> None:
        self.lines.discard(request)
        if self.turns is not None:
            self.turns.left(request)

    def finished(self, answer: FinishedAnswer) -> None:
        """Teaches the output lengths; the client is charged for what it was not yet."""
        self.memory.finished(answer)
        if self.turns is not None and answer.request is not None:
            self.turns.served_output(answer.request, answer.output_tokens)

    # ---------------------------------------------------------------- measurement

    def observe(self, sample: StepSample) -> None:
        """Teaches the step model, and the prompt rate where the step left somebody waiting."""
        self.memory.gaps.observe(sample)
        duration = sample.duration_ms
        # No step takes less than a microsecond or more than an hour: such a number would stay in
        # the means for good, and its square is none.
        if duration is None or not 1e-3 <= duration <= 3.6e6:
            return
        if self._warmup > 0:
            self._warmup -= 1
            return
        self._step_ms = duration
        assert self.overload is not None
        self.overload.observe(sample, self.queue)
        if self.objectives.observe(sample):
            self.model.objective_changed(self.objectives.itl_ms)
            self.lines.objective_changed(self.objectives.ttft_ms)
        self.model.observe(sample, self._load.load_tokens, len(self.queue))
        oldest = self.queue.oldest()
        if oldest is not None and oldest.arrival_pass < sample.step:
            self.rate.observe(duration, sample.prefill_tokens)

    # ------------------------------------------------------------------ decisions

    def decide(self, view: PassView) -> Decision:
        """Grants in order while rows and memory allow, and why the next one must wait."""
        queue = self.queue
        self._now_ms = view.now_ms
        self._pass_index = view.pass_index
        self.row_objectives.begin(view.now_ms, self.objectives.ttft_ms)
        if not len(queue):
            return NOBODY_WAITS
        if self.turns is not None and self.turns.look_due(view.pass_index):
            self.turns.served_rows(view.rows())
        kv = kv_held(view)
        waiting = len(queue)
        slo_ms = self.objectives.itl_ms
        tightest = self.row_objectives.tightest(view, slo_ms)
        longest = partial(longest_row, view)
        open_to_rows = view.batch == 0 or self.model.admits(
            view.batch, kv, waiting, tightest, longest
        )
        # Where the engine preempts, a shut gate may still open for a higher priority.
        if not queue.retracted and not open_to_rows and view.preemption_threshold is None:
            self._closed = "window"
            return Decision((), "window")
        grants: list[Grant] = []
        closed: ClosedReason = ""
        skipped = 0
        chunk, prompts = self._chunk(view, kv), view.owed_prompt_tokens
        load, batch, free = view.load_tokens, view.batch, view.kv_free_tokens
        memory = self.memory.begin(view)
        for request in chain(self._returning(), self._order(view, kv, self.lines)):
            if len(grants) == GRANTS_PER_PASS or (len(grants) >= GRANTS_SPARE and prompts >= chunk):
                closed = "limit"
                break
            reason: GrantReason
            shut: ClosedReason = ""
            left = waiting - len(grants)
            admits = partial(self.model.admits, batch, kv, left, longest=longest)
            due = self._is_due(request, view.now_ms)
            goal = self.row_objectives.goal(
                tightest, request, slo_ms, admits if batch else None, due=due
            )
            if request.retracted:
                if batch and request.retractions >= CAUTIOUS_FROM and not memory.fits(request):
                    closed = "kv"
                    break
                reason = "retracted"
            elif batch == 0:
                reason = "idle"
            elif not admits(goal):
                shut = "window"
            elif not memory.fits(request):
                shut = "kv"
            else:
                reason = "policy"
            if shut:
                self._closed = closed = shut
                swap = None if grants else self._swap(view, closed)
                if swap is not None:
                    return swap
                skipped += 1
                if skipped > PASSED_BY or closed != "kv" or not self._may_be_passed(view, request):
                    break
                continue
            memory.join(request)
            grants.append(self._grant(view, request, reason, load, free))
            tightest = goal
            prompts += prompt_to_serve(request)
            load += request.expected_tokens
            batch += 1
            free -= request.prompt_tokens
        self._closed = closed
        return Decision(tuple(grants), closed)

    def _grant(
        self, view: PassView, request: RequestInfo, reason: GrantReason, load: int, free: int
    ) -> Grant:
        return Grant(
            request,
            reason,
            load,
            (free - request.prompt_tokens) / max(1, view.kv_capacity_tokens),
            self.memory.margin,
            None,
            view.pass_index - request.arrival_pass,
        )

    def _is_due(self, request: RequestInfo, now_ms: float) -> bool:
        """Whether it may hold up nobody any more: by its own objective or by that of all,
        whichever is tighter, so that no request stops the others by what it says of itself."""
        longest_ms = min(self.ttft_objective_ms(request), self.objectives.ttft_ms)
        return now_ms - request.arrival_ms >= longest_ms

    def _may_be_passed(self, view: PassView, request: RequestInfo) -> bool:
        """Memory is saved up for those who can be in time and for those who are old; other
        late ones, and those in time only by a looser objective of their own, are passed by
        whoever fits."""
        if view.now_ms - request.arrival_ms >= self.lines.aging_ms:
            return False
        if self.lines.is_late(request):
            return True
        return not request.preemptions and self._is_due(request, view.now_ms)

    def _swap(self, view: PassView, closed: ClosedReason) -> Decision | None:
        """The foremost request in the place of a running one of clearly lower priority, where
        the engine preempts and memory allows: the rows stay as many."""
        request = self.lines.foremost()
        # Beside a prompt under way the step may have no room for this one, and the other
        # would have lost its place for nobody.
        if view.preemption_threshold is None or request is None or view.owed_prompt_tokens:
            return None
        row = makes_way(view.rows(), request.priority, view.preemption_threshold)
        if row is None:
            return None
        after = without(view, row)
        if not self.memory.begin(after).fits(request):
            return None
        grant = self._grant(after, request, "policy", view.load_tokens, after.kv_free_tokens)
        return Decision((grant,), closed, preempts=True)

    def waiting_order(self, view: PassView) -> list[RequestInfo]:
        """Retracted requests, then by the lines, as they would be drawn up now."""
        # An order notes whom it found late, for the end of its pass; a question is no pass.
        lines = copy(self.lines)
        return [*self._returning(), *self._order(view, kv_held(view), lines)]

    def remark(self, request: RequestInfo) -> str:
        """Whether it stands in the late line."""
        if not self.lines.is_late(request):
            return ""
        return (
            f"its first token cannot come within {self.objectives.ttft_ms:,.0f} ms any more, so "
            "it goes when nobody waits who can still be served in time, or once it is old "
            "(late_after_ms)"
        )

    def predicted_ms(self, sample: StepSample) -> float | None:
        """By the model with the gains now in force."""
        return self.model.predicted_ms(sample.batch, sample.kv_tokens, sample.prefill_tokens)

    def _returning(self) -> list[RequestInfo]:
        """Retracted ones, those that memory is asked for last."""
        return sorted(
            self.queue.retracted, key=lambda request: request.retractions >= CAUTIOUS_FROM
        )

    def _order(self, view: PassView, kv_tokens: int, lines: TtftLines) -> Iterator[RequestInfo]:
        rate = self.rate.tokens_per_ms(self.model.prompt_rate(decoding_rows(view), kv_tokens))
        # The first token comes with the result of the step that ends the prompt.
        start = view.now_ms + (self._step_ms or 0.0) + view.owed_prompt_tokens / rate
        return lines.order(start, view.now_ms, rate)

    def chunk_tokens(self, view: PassView) -> int | None:
        """Prompt tokens whose predicted step keeps the objective, and no more than pay."""
        return self._chunk(view, kv_held(view))

    def _chunk(self, view: PassView, kv_tokens: int) -> int:
        decoding = decoding_rows(view)
        waiting = self.lines.waiting_tokens + view.owed_prompt_tokens
        goal = self.row_objectives.tightest(view, self.objectives.itl_ms)
        chunk = self.model.chunk_tokens(
            decoding, kv_tokens, waiting, view.now_ms, goal, partial(longest_row, view)
        )
        if self._chunk_limit is not None and decoding > 0:
            chunk = min(chunk, self._chunk_limit)
        return chunk

    def end_pass(
        self, kv_free_tokens: int, kv_capacity_tokens: int, load: ActiveLoad | None
    ) -> None:
        """Those found late in this pass stay late; remembers the load."""
        self.lines.commit()
        if self._closed in ("window", "kv"):
            self.model.pacing.crowded(self._now_ms)
        self._closed = ""
        if load is not None:
            self._load = load

    # -------------------------------------------------------------------- reports

    @property
    def kv_threshold(self) -> float | None:
        """Share of the pool left free at the predicted peak."""
        return self.memory.margin

    def signals(self) -> Signals:
        """The newest step. The window is reported by :meth:`snapshot` only: it follows from
        the means per row, while the gate asks the model for the rows there are."""
        return Signals(None, None, self._step_ms)

    def snapshot(self) -> dict[str, Any]:
        """Adds objectives, model, margin, lines and rate."""
        return {
            **super().snapshot(),
            **self.objectives.snapshot(),
            "itl_ms": self._step_ms,
            "window_tokens": self.model.window_tokens,
            "l_min_ms": self.model.model.l_min_ms,
            "load_tokens": self._load.load_tokens,
            "batch": self._load.batch,
            "late": self.lines.late,
            "late_credit_tokens": self.lines.credit_tokens,
            **self.memory.snapshot(),
            **({} if self.turns is None else self.turns.snapshot()),
            **self.model.snapshot(),
        }
