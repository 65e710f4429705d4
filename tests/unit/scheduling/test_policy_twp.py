"""Algorithm 1 put together."""

from __future__ import annotations

from typing import Any

import pytest
from scheduling_builders import config, request, sample, view

from twp_sglang.scheduling.decision import Decision
from twp_sglang.scheduling.load import ActiveLoad
from twp_sglang.scheduling.policies import build_policy
from twp_sglang.scheduling.policies.base import GRANTS_PER_PASS
from twp_sglang.scheduling.policies.twp import Twp


def twp(**fields: Any) -> Twp:
    policy = build_policy(
        config(**{"policy": "twp", "h0_tokens": 100.0, "l_min_ms": 20.0, **fields})
    )
    assert isinstance(policy, Twp)
    return policy


def seqs(decision: Decision) -> list[int]:
    return [grant.request.seq for grant in decision.grants]


def test_nobody_waits() -> None:
    assert twp().decide(view()) == Decision((), "")


def test_it_admits_while_the_load_fits_the_window() -> None:
    policy = twp()
    for seq in range(6):
        policy.enqueue(request(seq))
    decision = policy.decide(view(load_tokens=20))
    assert (seqs(decision), decision.closed) == ([0, 1, 2, 3], "window")


def test_deciding_changes_nothing() -> None:
    policy = twp()
    for seq in range(6):
        policy.enqueue(request(seq))
    state = policy.snapshot()
    assert policy.decide(view()) == policy.decide(view())
    assert policy.snapshot() == state


def test_retracted_first_then_starved_then_the_best() -> None:
    policy = twp(h0_tokens=1000.0)
    starved, plain, back = request(0), request(1, arrival_pass=150), request(2, retracted=True)
    better = request(3, arrival_pass=140)
    for one in (starved, plain, better, back):
        policy.enqueue(one)
    assert seqs(policy.decide(view(pass_index=200))) == [2, 0, 3, 1]


def test_a_closed_gate_lets_retracted_requests_in_and_nobody_else() -> None:
    policy = twp()
    policy.enqueue(request(0))
    back = request(1, retracted=True)
    policy.enqueue(back)
    decision = policy.decide(view(load_tokens=100))
    assert (seqs(decision), decision.closed) == ([1], "window")


def test_the_shortcut_of_a_closed_gate_says_what_ranking_would() -> None:
    full_window = view(load_tokens=90, batch=5)
    full_memory = view(kv_free_tokens=40)
    for seen, reason in ((full_window, "window"), (full_memory, "kv")):
        policy = twp()
        policy.enqueue(request(0, expected_tokens=11))
        assert policy.decide(seen) == Decision((), reason)


def test_an_idle_engine_takes_the_head() -> None:
    policy = twp()
    policy.enqueue(request(0, expected_tokens=4000))
    decision = policy.decide(view(load_tokens=0, batch=0))
    assert [grant.reason for grant in decision.grants] == ["idle"]


def test_a_starved_request_is_forced_through_a_closed_gate() -> None:
    policy = twp(t_max_steps=10)
    policy.enqueue(request(0, expected_tokens=4000))
    assert policy.decide(view(pass_index=9)).grants == ()
    decision = policy.decide(view(pass_index=10))
    assert [grant.reason for grant in decision.grants] == ["forced"]
    policy.admitted(decision.grants[0])
    assert (policy.forced_total, policy.admitted_total, len(policy.queue)) == (1, 1, 0)


def test_one_pass_grants_a_bounded_number_and_says_so() -> None:
    policy = twp(h0_tokens=1e6)
    for seq in range(GRANTS_PER_PASS + 5):
        policy.enqueue(request(seq, expected_tokens=1, prompt_tokens=1))
    decision = policy.decide(view())
    assert (len(decision.grants), decision.closed) == (GRANTS_PER_PASS, "limit")


def test_measured_steps_move_the_window_by_the_law() -> None:
    policy = twp(h0_tokens=400.0, gamma=0.15, queue_ref=16.0)
    for seq in range(8):
        policy.enqueue(request(seq))
    policy.observe(sample(40.0))
    # sigma = 2, q = 8: H* = 400 * 1.5 / 2 = 300, H = 400 - 0.15 * 100
    assert policy.window.tokens == pytest.approx(385.0)


def test_prefill_and_idle_samples_leave_the_window() -> None:
    policy = twp(h0_tokens=400.0)
    policy.observe(sample(None))
    policy.observe(sample(500.0, kind="prefill", batch=0, prefill_tokens=512))
    assert policy.window.tokens == 400.0


def test_the_law_sees_the_load_of_the_last_pass() -> None:
    policy = twp(law="regulated", h0_tokens=400.0)
    policy.end_pass(1000, 1000, ActiveLoad(10, 1))
    policy.observe(sample(40.0))
    # Anti-windup: at a load far below the window the regulated law does not move.
    assert policy.window.tokens == 400.0
    policy.end_pass(1000, 1000, ActiveLoad(390, 8))
    policy.observe(sample(40.0))
    assert policy.window.tokens < 400.0


def test_the_memory_threshold_of_the_passes_before_is_in_force() -> None:
    policy = twp()
    policy.enqueue(request(0, prompt_tokens=10))
    policy.end_pass(1000, 1000, None)
    policy.end_pass(500, 1000, None)
    # d = 0.5 in one step: the threshold is at its upper bound of 0.3.
    assert policy.decide(view(kv_free_tokens=305)) == Decision((), "kv")
    assert policy.decide(view(kv_free_tokens=320)).grants[0].kv_threshold == 0.3


def test_withdrawn_requests_are_not_granted() -> None:
    policy = twp()
    gone, here = request(0), request(1)
    policy.enqueue(gone)
    policy.enqueue(here)
    policy.withdraw(gone)
    assert seqs(policy.decide(view())) == [1]


def test_a_retracted_request_does_not_teach_the_mean_length() -> None:
    policy = twp(h0_tokens=None)
    for seq in range(500):
        policy.enqueue(request(seq, retracted=True, expected_tokens=4096))
    assert policy.window.h0_tokens == 400.0


def test_the_snapshot_is_json() -> None:
    import json

    policy = twp()
    policy.enqueue(request(0))
    policy.observe(sample(40.0))
    shown = json.loads(json.dumps(policy.snapshot()))
    assert shown["policy"] == "twp"
    assert shown["queue"] == 1
    assert shown["sigma"] == 2.0
    assert shown["l_min_ms"] == 20.0
    assert shown["steps_counted"] == 1


def test_off_is_no_policy() -> None:
    with pytest.raises(ValueError, match="policy = 'off'"):
        build_policy(config(policy="off"))
