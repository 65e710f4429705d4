"""The batch may not grow while ITL is above its static target."""

from __future__ import annotations

from scheduling_builders import config, request, sample, view

from twp_sglang.scheduling.decision import Decision
from twp_sglang.scheduling.policies import build_policy
from twp_sglang.scheduling.policies.base import Policy


def at(itl_ms: float | None) -> Policy:
    policy = build_policy(config(policy="dynamic-batch", itl_target_ms=100.0, l_min_ms=50.0))
    if itl_ms is not None:
        policy.observe(sample(itl_ms))
    for seq in range(3):
        policy.enqueue(request(seq))
    return policy


def seqs(decision: Decision) -> list[int]:
    return [grant.request.seq for grant in decision.grants]


def test_everybody_enters_up_to_the_target() -> None:
    for itl_ms in (None, 20.0, 100.0):
        decision = at(itl_ms).decide(view())
        assert (seqs(decision), decision.closed) == ([0, 1, 2], "")


def test_nobody_enters_above_it() -> None:
    assert at(100.1).decide(view()) == Decision((), "target")


def test_retracted_requests_enter_above_it() -> None:
    policy = at(200.0)
    policy.enqueue(request(8, retracted=True))
    decision = policy.decide(view())
    assert (seqs(decision), decision.closed) == ([8], "target")


def test_an_idle_engine_takes_its_head_and_nobody_else_above_it() -> None:
    policy = at(200.0)
    decision = policy.decide(view(load_tokens=0, batch=0))
    assert (seqs(decision), decision.closed) == ([0], "target")
    policy.enqueue(request(8, retracted=True))
    assert seqs(policy.decide(view(load_tokens=0, batch=0))) == [8]


def test_the_gate_opens_again_when_the_filtered_latency_falls() -> None:
    policy = at(110.0)
    # 110 + 0.25 (60 - 110) = 97.5
    policy.observe(sample(60.0))
    assert seqs(policy.decide(view())) == [0, 1, 2]


def test_it_shows_its_target() -> None:
    shown = at(50.0).snapshot()
    assert (shown["itl_ms"], shown["itl_target_ms"], shown["sigma"]) == (50.0, 100.0, 1.0)
