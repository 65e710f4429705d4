"""Forms the next batch as SGLang's scheduler does: prompts, decoding rows, or both.

Follows ``Scheduler.get_next_batch_to_run`` of SGLang 0.5.20-0.5.23 for one plain engine:
waiting prompts are tried first; where that gives a batch it runs (with the decoding rows in
it when steps are mixed), otherwise the running batch decodes, and when its next tokens do
not fit, requests are retracted and recomputed later.
"""

from __future__ import annotations

from typing import NamedTuple

from twp_sglang.scheduling.active_rows import nobody
from twp_sglang.scheduling.lengths import CLIP_TOKENS
from twp_sglang.scheduling.load import ActiveLoad
from twp_sglang.scheduling.sample import PassView, StepKind
from twp_sglang.simulator.kv_pool import KvPool
from twp_sglang.simulator.live_request import LiveRequest, Segment
from twp_sglang.simulator.policy_driver import PolicyDriver
from twp_sglang.simulator.prefill_budget import NewTokenRatio, PrefillBudget
from twp_sglang.simulator.row_reader import rows_reader
from twp_sglang.simulator.rows import Rows
from twp_sglang.simulator.settings import EngineSettings


class Batch(NamedTuple):
    """What runs in one step."""

    kind: StepKind
    rows: int
    """Decoding rows."""
    prefill_tokens: int
    attended_tokens: int
    """KV tokens that the attention of this step reads."""
    first_tokens: tuple[tuple[LiveRequest, int], ...]
    """Requests whose prompt it completes, each with its stay."""


class Batcher:
    """Scheduling state of one engine between its steps."""

    def __init__(self, settings: EngineSettings, pool: KvPool, driver: PolicyDriver) -> None:
        self._settings = settings
        self.pool = pool
        self.driver = driver
        self.rows = Rows(pool.page_size, CLIP_TOKENS)
        self.ratio = NewTokenRatio(settings.schedule_conservativeness)
        self.full = False
        """No admission until a running request leaves (SGLang's batch_is_full)."""
        self.chunked: LiveRequest | None = None
        """The request in the middle of its prompt."""
        self.joining: list[LiveRequest] = []
        """Prompt complete; they decode from the next pass on."""
        self.retractions = 0
        self.preemptions = 0
        self._lost: list[LiveRequest] = []
        self._mixed = settings.step_kind == "mixed"
        self._interval = settings.prefill_decode_interval if settings.step_kind == "interval" else 0
        self._defer_passes = 0
        self._left_out = 0

    @property
    def active(self) -> int:
        """Requests that hold memory."""
        return len(self.rows.running) + len(self.joining) + (self.chunked is not None)

    @property
    def deferring(self) -> bool:
        """Whether the next pass belongs to decoding whatever waits."""
        return self._defer_passes > 0

    def take_lost(self) -> list[LiveRequest]:
        """Requests that failed since the last call."""
        if not self._lost:
            return []
        lost, self._lost = self._lost, []
        return lost

    def next_batch(self) -> Batch | None:
        """One scheduling pass, between the driver's begin_pass and end_pass."""
        rows = self.rows
        if self.joining:
            for request in self.joining:
                if request.status == "active":
                    rows.join(request)
            self.joining = []
        self._left_out = 0
        batch: Batch | None = None
        if self._defer_passes:
            self._defer_passes -= 1
        else:
            batch = self._prefill()
            if batch is not None:
                self._defer_passes = self._interval
        return self._decode() if batch is None else batch

    def load_after(self) -> ActiveLoad:
        """K and B once the batch stands."""
        rows, left_out = self.rows, self._left_out
        active = len(rows.running) + len(self.joining) + (self.chunked is not None)
        if self.driver.learns_lengths:
            return ActiveLoad(self._load_seen(), active - left_out)
        return ActiveLoad(rows.load_tokens - left_out, active - left_out)

    def _load_seen(self) -> int:
        """K as the policy counts it."""
        if not self.driver.learns_lengths:
            return self.rows.load_tokens
        seen = rows_reader(self)()
        return self.driver.source.total(
            seen.prompt_tokens, seen.max_new_tokens, seen.produced_tokens
        )

    # -------------------------------------------------------------------- prefill

    def _prefill(self) -> Batch | None:
        settings, rows, driver, pool = self._settings, self.rows, self.driver, self.pool
        if not driver.waiting and self.chunked is None:
            return None
        if not rows.running or settings.priority_preemption:
            self.full = False
        if self.full and self.chunked is None:
            return None
        running = len(rows.running)
        if (
            running >= settings.max_running_requests
            and self.chunked is None
            and not settings.priority_preemption
        ):
            self.full = True
            return None
        chunked = self.chunked
        owed = 0 if chunked is None else chunked.owed_tokens
        view = PassView(
            driver.pass_index,
            self._load_seen(),
            running + (chunked is not None),
            pool.free_tokens - owed,
            pool.capacity_tokens,
            owed,
            driver.now_ms,
            rows_reader(self) if driver.reads_rows else nobody,
            settings.preemption_threshold if settings.priority_preemption else None,
        )
        candidates = driver.candidates(view)
        if driver.preempts:
            self.full = True
        budget = self._budget(running, driver.chunk_tokens(view))
        taken: list[tuple[LiveRequest, int]] = []
        if chunked is not None:
            extend = budget.next_chunk(owed, chunked.max_new_tokens)
            if extend is not None:
                taken.append((chunked, extend.tokens))
                if not extend.chunked:
                    self.chunked = None
        for request in candidates:
            if budget.spent():
                break
            if len(taken) >= settings.max_running_requests - len(rows.running):
                self.full = True
            if self.full and not (
                settings.priority_preemption and self._preempt_for(request, budget)
            ):
                break
            hit, unevictable = pool.hit(request)
            budget.charge(unevictable)
            verdict = budget.take(
                request.fill_tokens - hit,
                hit,
                request.max_new_tokens - request.produced,
                request.max_new_tokens,
            )
            budget.charge(-unevictable)
            if verdict == "no-token":
                self.full = bool(taken or rows.running)
                break
            if isinstance(verdict, str):
                break
            self._admit(request, hit)
            taken.append((request, verdict.tokens))
            if verdict.chunked:
                self.chunked = request
            if budget.exhausted():
                self.full = True
                break
        if not taken:
            return None
        return self._extend_batch(taken)

    def _budget(self, running: int, chosen: int | None) -> PrefillBudget:
        settings = self._settings
        load = self.rows.load_tokens
        if self.chunked is not None:
            load -= self._remaining(self.chunked)
        mixed_rows = running if self._mixed else 0
        chunk = self._chunk(running, mixed_rows, chosen)
        share = 1.0 if settings.ignore_eos else self.ratio.current
        return PrefillBudget(
            self.pool, load * share, mixed_rows, settings.max_prefill_tokens, chunk
        )

    def _chunk(self, running: int, mixed_rows: int, chosen: int | None) -> int | None:
        """Prompt tokens of this step, ``chosen`` by the policy where it has a say; None where
        prompts are not chunked."""
        chunk, while_decoding = self._settings.chunk_tokens, self._settings.decode_chunk_tokens
        if chunk is None:
            return None
        if not self.driver.steers:
            # SGLang takes one token per decoding row off the chunk of a mixed step.
            return chunk - mixed_rows
        if chosen is not None:
            page = self.pool.page_size
            # Less than a page would not move a prompt at all.
            bound: int | None = max(page, chosen // page * page)
        else:
            # With nobody decoding there is nobody to protect.
            bound = while_decoding if running else None
        self.driver.step_chunk = bound if running else None
        return min(chunk, bound) if bound else chunk

    def _admit(self, request: LiveRequest, hit_tokens: int) -> None:
        rows = self.rows
        self.pool.admit(request, hit_tokens)
        self.driver.admitted(request, hit_tokens)
        request.status = "active"
        request.stay += 1
        request.before_stay = request.produced
        request.first = -1
        request.first_token_ms = None
        rows.admit(request, self._remaining(request))

    def _extend_batch(self, taken: list[tuple[LiveRequest, int]]) -> Batch:
        rows, pool = self.rows, self.pool
        prefill_tokens = attended = 0
        first_tokens = []
        for request, tokens in taken:
            pool.prefill(request, tokens)
            prefill_tokens += tokens
            attended += request.computed_tokens
            if request.computed_tokens == request.fill_tokens:
                pool.share(request)
                self.joining.append(request)
                first_tokens.append((request, request.stay))
        riding = 0
        if self._mixed and rows.running:
            sitting = rows.sitting_out()
            self._left_out = len(sitting)
            if sitting:
                self.full = False
            needed = rows.tokens_needed(sitting)
            # Rows that the new prompts left no room for sit this step out.
            if needed <= pool.free_tokens:
                riding = len(rows.running) - len(sitting)
        kind: StepKind = "prefill"
        if riding:
            kind = "mixed"
            pool.take(needed)
            rows.launch(riding)
            attended += rows.context_tokens - sum(map(rows.kv_tokens, sitting))
        return Batch(kind, riding, prefill_tokens, attended, tuple(first_tokens))

    # --------------------------------------------------------------------- decode

    def _decode(self) -> Batch | None:
        rows, pool = self.rows, self.pool
        if not rows.running:
            return None
        sitting = rows.sitting_out()
        self._left_out = len(sitting)
        if sitting:
            self.full = False
            if len(sitting) == len(rows.running):
                return None
        needed = rows.tokens_needed(sitting)
        if needed > pool.free_tokens:
            if sitting:
                # Their memory is free once their last token is processed.
                return None
            self._retract()
            needed = rows.tokens_needed([])
            if not rows.running:
                return None
        else:
            self.ratio.decayed_steps += 1
        riding = len(rows.running) - len(sitting)
        pool.take(needed)
        rows.launch(riding)
        attended = rows.context_tokens
        if sitting:
            attended -= sum(map(rows.kv_tokens, sitting))
        return Batch("decode", riding, 0, attended, ())

    # ------------------------------------------------------- leaving before the end

    def _retract(self) -> None:
        """Take memory from requests with the fewest outputs until the next step fits."""
        rows, pool = self.rows, self.pool
        keep = sorted(
            rows.running,
            key=lambda request: (rows.produced(request), -request.spec.input_tokens),
            reverse=True,
        )
        first = True
        while len(keep) > 1 and (first or rows.tokens_needed([]) > pool.free_tokens):
            first = False
            victim = keep.pop()
            self._evict(victim)
            self.retractions += 1
            victim.retractions += 1
            self.driver.enqueue(victim, retracted=True)
        if rows.tokens_needed([]) > pool.free_tokens:
            last = keep.pop()
            self._evict(last)
            last.status = "failed"
            last.reason = "out of KV memory after every other request was retracted"
            self._lost.append(last)
        self.ratio.after_retraction(
            sum(rows.produced(request) for request in keep),
            sum(request.max_new_tokens for request in keep),
            len(keep),
        )
        self.full = False

    def _preempt_for(self, request: LiveRequest, budget: PrefillBudget) -> bool:
        """Make room for ``request`` by requests of clearly lower priority, if that does."""
        rows, settings = self.rows, self._settings
        line = sorted(
            rows.running,
            key=lambda running: (running.spec.priority, -(_seq(running))),
        )
        share = 1.0 if settings.ignore_eos else self.ratio.current
        missing = (
            request.owed_tokens + min(request.max_new_tokens, CLIP_TOKENS) - budget.free_tokens
        )
        chosen: list[LiveRequest] = []
        for running in line:
            ahead = request.spec.priority - running.spec.priority
            if ahead <= settings.preemption_threshold:
                break
            if not self.driver.may_give_way(running, rows.produced(running)):
                continue
            chosen.append(running)
            missing -= self._remaining(running) * share
            if missing <= 0:
                break
        if not chosen or missing > 0:
            return False
        for victim in chosen:
            budget.charge(-self._remaining(victim) * share)
            self._evict(victim)
            self.preemptions += 1
            self.driver.preempted(victim)
        return True

    def _evict(self, request: LiveRequest) -> None:
        """Take ``request`` out of the running batch; it must be computed again."""
        rows = self.rows
        known = rows.produced(request)
        if request.first_token_ms is not None:
            end = request.first + known - request.before_stay - 1
            request.segments.append(Segment(request.first_token_ms, request.first, end))
        kv_tokens = rows.leave(request, self._remaining(request))
        self.pool.release(request, kv_tokens, keep=False)
        request.produced = known
        request.fill_tokens = request.spec.input_tokens + known
        request.computed_tokens = 0
        request.stay += 1

    def evict_all(self) -> list[LiveRequest]:
        """Take out everybody who holds memory, each with the output it has."""
        rows = self.rows
        for request in self.joining:
            if request.status == "active":
                rows.join(request)
        self.joining = []
        evicted = list(rows.running)
        for request in evicted:
            self._evict(request)
        chunked, self.chunked = self.chunked, None
        if chunked is not None:
            rows.load_tokens -= self._remaining(chunked)
            self.pool.release(chunked, chunked.computed_tokens, keep=False)
            chunked.computed_tokens = 0
            chunked.stay += 1
            evicted.append(chunked)
        self.full = False
        return evicted

    def _remaining(self, request: LiveRequest) -> int:
        produced = self.rows.produced(request) if request in self.rows.running else request.produced
        return self.driver.lengths.remaining(
            request.spec.input_tokens, request.max_new_tokens, produced
        )


def _seq(request: LiveRequest) -> int:
    assert request.info is not None
    return request.info.seq
