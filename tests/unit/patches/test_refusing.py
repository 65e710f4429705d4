"""Turning requests away in the scheduler process, on stand-ins of SGLang's objects."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from benchmarks.engine_stand_ins import Batch, Req, Scheduler
from controllers.step_trace import Header
from patches.runtime import Ranks, Runtime
from patches.sglang_0_5.refusing import (
    REASON_KEY,
    RETRY_AFTER_KEY,
    finished_reason,
    init_req_max_new_tokens,
)
from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.overload import Refusal


class Desk:
    """A runtime and the requests that come to its door."""

    def __init__(self, **fields: Any) -> None:
        batch = Batch([Req(f"a{i}", 10, 50) for i in range(8)])
        self.scheduler = Scheduler(batch, 10_000, 9_000)
        self.scheduler.page_size = 1
        self.runtime = Runtime(TwpConfig(**fields), self.scheduler, Ranks(0, None), None, Header())

    def come(self, req: Req, *, retracted: bool = False) -> Refusal | None:
        """As the hooks do: ask, and queue those who may."""
        refusal = self.runtime.refusal(req)
        if refusal is None:
            self.scheduler.waiting_queue.append(req)
            self.runtime.enqueued(req, retracted)
        return refusal


def test_the_bound_holds_and_those_refused_leave_nothing_behind() -> None:
    desk = Desk(queue_max_requests=3)
    outcomes = [desk.come(Req(f"b{i}", 10, 50)) for i in range(5)]
    assert [outcome is None for outcome in outcomes] == [True, True, True, False, False]
    assert len(desk.runtime.policy.queue) == 3
    assert desk.runtime.state()["refusals"] == {"queue-requests": 2}


def test_arrival_numbers_go_on_over_refusals() -> None:
    desk = Desk(queue_max_requests=2)
    for i in range(4):
        desk.come(Req(f"b{i}", 10, 50))
    assert sorted(info.seq for info in desk.runtime.policy.queue) == [0, 1]
    desk.scheduler.waiting_queue.clear()  # all aborted
    desk.come(Req("c", 10, 50))
    assert [info.seq for info in desk.runtime.policy.queue] == [4]


def test_one_that_comes_back_retracted_is_let_in_though_the_queue_is_full() -> None:
    desk = Desk(queue_max_requests=2)
    first = Req("b0", 10, 50)
    desk.come(first)
    desk.runtime.policy.withdraw(next(iter(desk.runtime.policy.queue)))
    for i in range(1, 3):
        desk.come(Req(f"b{i}", 10, 50))
    assert desk.come(first, retracted=True) is None
    assert len(desk.runtime.policy.queue.retracted) == 1


def test_an_oversized_request_is_clipped_or_refused_as_configured() -> None:
    for oversized, refused in (("clip", False), ("refuse", True)):
        desk = Desk(oversized=oversized)
        req = Req("b", 4_000, 20_000)
        init_req_max_new_tokens(desk.scheduler, req)
        req.sampling_params.max_new_tokens = 5_999  # what SGLang makes of it
        refusal = desk.come(req)
        assert (refusal is not None) == refused
        if refusal is not None:
            assert (refusal.status, refusal.retry_after_s) == (400, None)
            assert "24000 KV tokens" in refusal.message


def test_no_limit_of_its_own_is_no_request_for_too_much() -> None:
    desk = Desk(oversized="refuse")
    req = Req("b", 4_000, None)  # type: ignore[arg-type]
    init_req_max_new_tokens(desk.scheduler, req)
    req.sampling_params.max_new_tokens = 5_999
    assert desk.come(req) is None


@pytest.mark.parametrize("policy", ["observe", "fcfs"])
def test_policies_that_refuse_nobody_let_everybody_in(policy: str) -> None:
    desk = Desk(policy=policy, queue_max_requests=1)
    assert [desk.come(Req(f"b{i}", 10, 50)) for i in range(3)] == [None] * 3


def test_the_finish_reason_has_what_sglang_and_the_http_process_read() -> None:
    reason = finished_reason(Refusal("ttft", "Too late.", 429, 7))
    assert reason["type"] == "abort"
    assert reason["status_code"] is HTTPStatus.TOO_MANY_REQUESTS
    assert reason["err_type"] == "TooManyRequests"
    assert (reason[REASON_KEY], reason[RETRY_AFTER_KEY]) == ("ttft", 7)
    assert RETRY_AFTER_KEY not in finished_reason(Refusal("never-fits", "No.", 400, None))


def test_a_prompt_that_would_end_the_engine_is_refused_by_every_policy() -> None:
    for policy in ("twp", "slo", "fcfs"):
        desk = Desk(policy=policy)
        strange = Req("b0", 3, 50)
        strange.origin_input_ids[1] = 99_999_999
        for req in (strange, Req("b1", 0, 50)):
            refusal = desk.come(req)
            assert refusal is not None
            assert (refusal.status, refusal.retry_after_s) == (400, None)
        assert desk.runtime.state()["refusals"] == {"invalid": 2}
        assert desk.come(Req("b2", 3, 50)) is None


def test_what_is_not_made_of_token_ids_alone_is_not_judged_by_them() -> None:
    desk = Desk()
    picture, embedded = Req("b0", 3, 50), Req("b1", 0, 50)
    picture.origin_input_ids[1] = 99_999_999  # SGLang marks pictures with ids of its own
    picture.multimodal_inputs = object()  # type: ignore[assignment]
    embedded.input_embeds = [[0.5]]  # type: ignore[assignment]
    assert desk.come(picture) is None
    assert desk.come(embedded) is None
