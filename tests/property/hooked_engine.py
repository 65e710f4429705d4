"""A small engine with SGLang's shape around TWP's real hooks, that never loses a request itself.

It queues, forms prompt batches by chunk budget and memory, decodes one token a row, retracts
the newest row when a token finds no place, and aborts by name. Everything that TWP changes
in SGLang passes through the hook functions, in SGLang's order.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from benchmarks.engine_stand_ins import Batch, Req, Scheduler
from controllers.step_trace import Header
from patches import active
from patches.runtime import Ranks, Runtime
from patches.sglang_0_5 import consensus, gate, queueing, ranking, refusing, stepping
from twp_sglang.config import TwpConfig


class Extending:
    """The forward mode of a prompt batch."""

    def is_decode(self) -> bool:
        return False


@dataclass
class Plan:
    """What a pass returns; nothing to run when idle."""

    batch_to_run: Batch | None
    running_batch: Batch


@dataclass
class Adder:
    """SGLang's ``PrefillAdder``: what it takes into one prompt batch."""

    rem_chunk_tokens: int | None
    can_run_list: list[Any] = field(default_factory=list)


class Traffic(NamedTuple):
    """What comes in; rates are per pass."""

    arrivals: float
    aborts: float
    longest_prompt: int
    longest_output: int
    capacity_tokens: int
    chunk_tokens: int
    passes: int


class HookedEngine:
    """See the module's text.

    Args:
        config: of TWP.
        traffic: what comes in.
        seed: of everything random.
    """

    def __init__(self, config: TwpConfig, traffic: Traffic, seed: int) -> None:
        self.traffic = traffic
        self.random = random.Random(seed)
        self.running = Batch([])
        self.scheduler = Scheduler(self.running, traffic.capacity_tokens, traffic.capacity_tokens)
        self.scheduler.enable_overlap = False
        self.runtime = Runtime(
            config,
            self.scheduler,
            Ranks(0, None),
            None,
            Header(config=config.model_dump(mode="json")),
            chunk_tokens=traffic.chunk_tokens,
        )
        self.arrived = 0
        self.ends: Counter[str] = Counter()
        """How often each request ended: finished, aborted or refused."""
        self.retractions = 0
        self.refused = 0
        self._held: dict[str, int] = {}

    # ------------------------------------------------------------------ one pass

    def run(self) -> None:
        """The traffic's passes, and then as many as it takes to empty the engine."""
        for _ in range(self.traffic.passes):
            self._arrive_some()
            self._abort_some()
            self.one_pass()
        self.run_out()

    def run_out(self) -> None:
        """As many passes as it takes to empty the engine, within reason."""
        patience = 40 * (len(self.scheduler.waiting_queue) + len(self.running.reqs) + 5)
        patience *= self.traffic.longest_output
        while (self.scheduler.waiting_queue or self.running.reqs) and patience:
            patience -= 1
            self.one_pass()

    def one_pass(self) -> None:
        """Broadcast, plan, step, result."""
        sent = consensus.poll_timeout_aborts([], self.scheduler) or []
        consensus.process_input_requests(self.scheduler, sent)
        plan = stepping.get_next_batch_to_run(self._plan, self.scheduler, self.running, None)
        if plan.batch_to_run is None:
            return
        stepping.process_batch_result(self._results, self.scheduler, plan.batch_to_run, None)

    def _plan(self, scheduler: Scheduler, *args: Any) -> Plan:
        batch = self._prompt_batch() if scheduler.waiting_queue else None
        if batch is None and self.running.reqs:
            self._make_room()
            batch = self.running
        return Plan(batch if batch is not None and batch.reqs else None, self.running)

    def _prompt_batch(self) -> Batch | None:
        queue = self.scheduler.waiting_queue
        ranking.calc_priority(lambda *_: None, None, queue, self.running)
        adder = Adder(8 * self.traffic.chunk_tokens)
        gate.prefill_adder_init(None, adder, 1, None, None, self.running, 0.3, 8192, 0)
        for req in list(queue):
            if gate.add_one_req(self._take, adder, req, False, None) is not CONTINUE:
                break
        if not adder.can_run_list:
            return None
        taken = {id(req) for req in adder.can_run_list}
        queue[:] = [req for req in queue if id(req) not in taken]
        return Batch(
            list(adder.can_run_list),
            forward_mode=Extending(),  # type: ignore[arg-type]
            extend_num_tokens=sum(len(req.origin_input_ids) for req in adder.can_run_list),
        )

    def _take(self, adder: Adder, req: Any, *args: Any) -> object:
        """SGLang's own admission: memory first, then the budget of the pass."""
        needed = len(req.origin_input_ids) + len(req.output_ids)
        if needed >= self._free():
            return NO_TOKEN
        adder.can_run_list.append(req)
        self._hold(req, needed)
        assert adder.rem_chunk_tokens is not None
        adder.rem_chunk_tokens -= needed
        return CONTINUE if adder.rem_chunk_tokens > 0 else OTHER

    def _make_room(self) -> None:
        """A token for every row, or the newest goes back to the queue."""
        while len(self.running.reqs) > self._free() and len(self.running.reqs) > 1:
            req = self.running.reqs.pop()
            self._release(req)
            self.retractions += 1
            self._queue(req, is_retracted=True)

    def _results(self, scheduler: Scheduler, batch: Batch, result: Any) -> None:
        if batch is not self.running:
            self.running.reqs.extend(batch.reqs)
        for req in list(batch.reqs):
            req.output_ids.append(7)
            self._hold(req, 1)
            if len(req.output_ids) >= req.sampling_params.max_new_tokens:
                self._end(req)

    # ---------------------------------------------------------- requests come and go

    def _arrive_some(self) -> None:
        while self.random.random() < self.traffic.arrivals / (1 + self.traffic.arrivals):
            self.arrive()

    def arrive(self) -> None:
        """One request comes, and joins the queue unless it is refused."""
        limit = self.random.randint(1, self.traffic.longest_output)
        prompt = self.random.randint(1, self.traffic.longest_prompt)
        req = Req(f"r{self.arrived:05}", prompt, limit)
        req.to_finish = None  # type: ignore[attr-defined]
        # A name of its own for each: whoever keeps something by name keeps it for ever.
        req.sampling_params.custom_params = {"twp": {"client": f"client-{self.arrived}"}}
        self.arrived += 1
        if refusing.abort_on_queued_limit(lambda *_: False, self.scheduler, req):
            self.refused += 1
            self.ends[req.rid] += 1
        else:
            self._queue(req, is_retracted=False)

    def _queue(self, req: Any, *, is_retracted: bool) -> None:
        queueing.add_request_to_queue(self._add, self.scheduler, req, is_retracted)

    def _add(self, scheduler: Scheduler, req: Any, is_retracted: bool = False) -> None:
        scheduler.waiting_queue.append(req)

    def _abort_some(self) -> None:
        present = [*self.scheduler.waiting_queue, *self.running.reqs]
        if present and self.random.random() < self.traffic.aborts:
            self.abort(self.random.choice(present))

    def abort(self, req: Any) -> None:
        """SGLang takes it out of its queue or batch, and tells TWP nothing."""
        if req in self.scheduler.waiting_queue:
            self.scheduler.waiting_queue.remove(req)
            self.ends[req.rid] += 1
        else:
            self._end(req)

    def _end(self, req: Any) -> None:
        self.running.reqs.remove(req)
        self._release(req)
        self.ends[req.rid] += 1

    # --------------------------------------------------------------------- memory

    def _free(self) -> int:
        return self.scheduler.token_to_kv_pool_allocator.free

    def _hold(self, req: Any, tokens: int) -> None:
        self._held[req.rid] = self._held.get(req.rid, 0) + tokens
        self.scheduler.token_to_kv_pool_allocator.free -= tokens

    def _release(self, req: Any) -> None:
        self.scheduler.token_to_kv_pool_allocator.free += self._held.pop(req.rid)


CONTINUE, NO_TOKEN, OTHER = object(), object(), object()
"""SGLang's ``AddReqResult``."""


def steered_by(runtime: Runtime | None) -> None:
    """Make the hooks of this process call ``runtime``, whatever they called before."""
    active._runtime = None
    if runtime is not None:
        active.install(runtime)
