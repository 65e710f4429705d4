"""First come, first served."""

from __future__ import annotations

from scheduling_builders import config, request, view

from twp_sglang.scheduling.policies import build_policy
from twp_sglang.scheduling.policies.base import GRANTS_PER_PASS, Signals


def test_everybody_in_order_of_arrival_retracted_first() -> None:
    policy = build_policy(config(policy="fcfs"))
    for one in (request(1, expected_tokens=4000), request(0), request(9, retracted=True)):
        policy.enqueue(one)
    decision = policy.decide(view(load_tokens=10**6, kv_free_tokens=0))
    assert [(g.request.seq, g.reason) for g in decision.grants] == [
        (9, "retracted"),
        (0, "policy"),
        (1, "policy"),
    ]
    assert decision.closed == ""
    # 10^6, then 20 of the retracted, then 20 of request 0
    assert [g.load_before_tokens for g in decision.grants] == [10**6, 10**6 + 20, 10**6 + 40]


def test_it_has_no_window_and_nothing_to_steer_by() -> None:
    policy = build_policy(config(policy="fcfs"))
    policy.enqueue(request(0))
    assert policy.decide(view()).grants[0].window_tokens is None
    assert policy.signals() == Signals(None, None, None)


def test_a_long_queue_is_granted_in_portions() -> None:
    policy = build_policy(config(policy="fcfs"))
    for seq in range(GRANTS_PER_PASS + 1):
        policy.enqueue(request(seq))
    decision = policy.decide(view())
    assert (len(decision.grants), decision.closed) == (GRANTS_PER_PASS, "limit")


def test_nobody_waits() -> None:
    assert build_policy(config(policy="fcfs")).decide(view()).grants == ()
