"""The runtime pass by pass, on stand-ins of SGLang's objects and without an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine_stand_ins import Batch, Plan, Req, Scheduler
from controllers.step_trace import Header
from controllers.trace_reader import read_step_trace
from patches.runtime import Ranks, Runtime
from twp_sglang.audit import audit
from twp_sglang.config import TwpConfig


class Desk:
    """One runtime with its scheduler."""

    def __init__(
        self, running: int = 2, trace_dir: Path | None = None, rank: int = 0, **fields: Any
    ) -> None:
        config = TwpConfig(
            **{
                "policy": "twp",
                "h0_tokens": 400.0,
                "l_min_ms": 20.0,
                "warmup_steps": 0,
                "b0": 8,
                **fields,
            }
        )
        self.batch = Batch([Req(f"a{i}", 10, 50) for i in range(running)])
        self.scheduler = Scheduler(self.batch, 10_000, 9_000)
        header = Header(config=config.model_dump(mode="json"))
        self.runtime = Runtime(config, self.scheduler, Ranks(rank, None), trace_dir, header)

    def join(self, name: str, limit: int = 100, *, retracted: bool = False) -> Req:
        req = Req(name, 10, limit)
        self.scheduler.waiting_queue.append(req)
        self.runtime.enqueued(req, retracted)
        return req

    def order(self) -> list[str]:
        """One pass up to the order; the names that may be admitted, in the queue's order."""
        self.runtime.begin_pass()
        self.runtime.order(self.scheduler.waiting_queue, self.batch)
        return [r.rid for r in self.scheduler.waiting_queue if self.runtime.may_admit(r)]

    def take(self, req: Req) -> None:
        self.runtime.admitted(req)
        self.scheduler.waiting_queue.remove(req)
        self.batch.reqs.append(req)

    def finish_pass(self) -> None:
        self.runtime.end_pass(Plan(self.batch, self.batch))
        self.runtime.completed(self.batch)


def test_the_gate_opens_for_as_many_as_fit() -> None:
    desk = Desk()
    for name in "bcde":
        desk.join(name)
    # K = 2 * 50, H = 400: three of 100 fit.
    assert desk.order() == ["b", "c", "d"]


def test_retracted_requests_are_moved_to_the_front_though_the_gate_is_closed() -> None:
    desk = Desk(running=8)
    desk.join("b")
    desk.join("c", retracted=True)
    assert desk.order() == ["c"]
    assert [req.rid for req in desk.scheduler.waiting_queue] == ["c", "b"]


def test_the_load_counts_those_just_admitted() -> None:
    desk = Desk()
    first, second = desk.join("b"), desk.join("c")
    desk.order()
    desk.take(first)
    desk.take(second)
    desk.finish_pass()
    assert desk.runtime.policy.snapshot()["load_tokens"] == 300


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_law_gets_the_load_on_every_rank_whether_or_not_it_traces(
    tmp_path: Path, traced: bool, rank: int
) -> None:
    desk = Desk(trace_dir=tmp_path if traced else None, rank=rank)
    if rank == 0:
        desk.runtime.outgoing()
    # Nobody waits, so SGLang does not ask for an order.
    desk.runtime.begin_pass()
    desk.finish_pass()
    assert desk.runtime.policy.snapshot()["load_tokens"] == 100


def test_an_abort_in_the_queue_is_noticed() -> None:
    desk = Desk()
    gone, left = desk.join("b"), desk.join("c")
    desk.scheduler.waiting_queue.remove(gone)
    assert desk.order() == ["c"]
    assert [info.handle for info in desk.runtime.policy.queue] == [left]


def test_as_many_strangers_as_ghosts_are_noticed() -> None:
    desk = Desk()
    gone = desk.join("b")
    desk.scheduler.waiting_queue.remove(gone)
    desk.scheduler.waiting_queue.append(Req("x", 10, 100))
    assert desk.order() == ["x"]
    assert len(desk.runtime.policy.queue) == 1


def test_after_a_fault_nothing_is_granted_any_more(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.join("b")
    desk.order()
    try:
        raise KeyError("broken")
    except KeyError:
        desk.runtime.fault("order")
    assert not desk.runtime.deciding
    assert desk.runtime.state()["fallback_reason"] == "order"
    assert "KeyError" in caplog.text


@pytest.mark.parametrize("policy", ["twp", "observe"])
def test_the_audit_passes_what_twp_admits_and_not_what_stock_would(
    tmp_path: Path, policy: str
) -> None:
    desk = Desk(trace_dir=tmp_path, policy=policy)
    desk.runtime.outgoing()
    reqs = [desk.join(f"b{i}") for i in range(12)]
    for _ in range(3):
        desk.order()
        for req in [r for r in reqs if r in desk.scheduler.waiting_queue]:
            if desk.runtime.may_admit(req):
                desk.take(req)
        desk.finish_pass()
    desk.runtime._recording.close()
    found, about = audit(tmp_path)
    assert about["policy"] == policy
    assert not found.unjudged
    assert len(read_step_trace(tmp_path)) == 3
    kinds = {violation.kind for violation in found.violations}
    if policy == "twp":
        assert kinds == set()
        assert found.by_reason == {"window": 3}
    else:
        assert kinds == {"window"}
        assert found.by_reason == {"policy": 12}
        assert len(found.violations) == 9


def test_steps_that_hold_somebody_back_are_counted_by_reason() -> None:
    desk = Desk(running=8)
    desk.join("b")
    # K = 8 * 50 = H: nobody else fits.
    for _ in range(3):
        assert desk.order() == []
        desk.finish_pass()
    assert desk.runtime.state()["holds"] == {"window": 3}
