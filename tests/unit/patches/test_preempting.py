"""The hook on SGLang's preemption, around a copy of what it reads and does."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.engine_stand_ins import Batch, Plan, Req, Scheduler
from controllers.step_trace import Header
from patches import active
from patches.arrivals import info_of
from patches.runtime import Ranks, Runtime
from patches.sglang_0_5.preempting import preempt_to_schedule
from patches.sglang_0_5.queueing import add_request_to_queue
from twp_sglang.config import TwpConfig


class Adder:
    """Takes the last running request that is not in ``preempt_list``, as SGLang does."""

    def __init__(self, batch: Batch) -> None:
        self.running_batch = batch
        self.preempt_list: list[Any] = []

    def preempt(self, req: Any) -> bool:
        open_to_it = [one for one in self.running_batch.reqs if one not in self.preempt_list]
        if not open_to_it:
            return False
        self.preempt_list.extend(open_to_it[-1:])
        self.running_batch.reqs.remove(open_to_it[-1])
        return True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    scheduler = Scheduler(Batch([]), 100_000, 90_000)
    scheduler.enable_priority_scheduling = True
    scheduler.enable_priority_preemption = True
    scheduler.priority_scheduling_preemption_threshold = 10
    config = TwpConfig(policy="fcfs")
    runtime = Runtime(config, scheduler, Ranks(0, None), None, Header())
    monkeypatch.setattr(active, "steering", lambda: runtime)
    for number in range(2):
        req = Req(f"running {number}", 10, 500, produced=50)
        runtime.enqueued(req, retracted=False)
        scheduler.running_batch.reqs.append(req)
        info = info_of(req)
        assert info is not None
        runtime.policy.withdraw(info)
    return runtime


def waiting(runtime: Runtime, priority: int) -> Req:
    req = Req(f"waiting {priority}", 10, 20)
    req.priority = priority
    runtime._scheduler.waiting_queue.append(req)
    runtime.enqueued(req, retracted=False)
    runtime.begin_pass()
    return req


def test_nobody_loses_its_place_for_a_request_that_was_not_granted(made: Runtime) -> None:
    req = waiting(made, 20)
    adder = Adder(made._scheduler.running_batch)
    assert preempt_to_schedule(Adder.preempt, adder, req) is False
    assert adder.preempt_list == []
    made.order(made._scheduler.waiting_queue, made._scheduler.running_batch)
    assert preempt_to_schedule(Adder.preempt, adder, req) is True
    assert [one.rid for one in adder.preempt_list] == ["running 1"]
    assert made.preemptions.count == 1
    info = info_of(adder.preempt_list[0])
    assert info is not None
    assert info.preemptions == 1


def test_a_protected_one_is_spared_and_leaves_no_trace_in_the_list(made: Runtime) -> None:
    newest = made._scheduler.running_batch.reqs[1]
    info = info_of(newest)
    assert info is not None
    info.preemptions, info.produced_tokens = 1, 40
    req = waiting(made, 20)
    made.order(made._scheduler.waiting_queue, made._scheduler.running_batch)
    adder = Adder(made._scheduler.running_batch)
    assert preempt_to_schedule(Adder.preempt, adder, req) is True
    assert [one.rid for one in adder.preempt_list] == ["running 0"]
    assert preempt_to_schedule(Adder.preempt, adder, req) is False
    assert [one.rid for one in adder.preempt_list] == ["running 0"]


def test_who_comes_back_keeps_the_count(made: Runtime) -> None:
    victim = made._scheduler.running_batch.reqs[1]
    made.preemptions.made_way(victim)
    made.enqueued(victim, retracted=False)
    info = info_of(victim)
    assert info is not None
    assert (info.preemptions, info.retracted, info.produced_tokens) == (1, False, 50)


def test_whom_the_engine_does_not_queue_again_is_not_lost(
    made: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = made._scheduler
    one, two = scheduler.running_batch.reqs
    made.preemptions.made_way(one)
    made.preemptions.made_way(two)

    def stock(scheduler: Any, req: Any, is_retracted: bool = False) -> None:
        scheduler.waiting_queue.append(req)

    monkeypatch.setattr(active, "installed", lambda: made)
    add_request_to_queue(stock, scheduler, one)

    def again(req: Any) -> None:
        add_request_to_queue(stock, scheduler, req)

    monkeypatch.setattr(scheduler, "_add_request_to_queue", again, raising=False)
    made.end_pass(Plan(scheduler.running_batch, scheduler.running_batch))
    assert scheduler.waiting_queue == [one, two]
    made.end_pass(Plan(scheduler.running_batch, scheduler.running_batch))
    assert scheduler.waiting_queue == [one, two]


def test_a_fault_leaves_stock(made: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(req: Any) -> bool:
        raise RuntimeError("injected")

    monkeypatch.setattr(made, "may_admit", broken)
    adder = Adder(made._scheduler.running_batch)
    assert preempt_to_schedule(Adder.preempt, adder, waiting(made, 20)) is True
    assert not made.deciding
