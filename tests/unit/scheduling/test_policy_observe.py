"""Shadow mode: decides like twp and enforces nothing."""

from __future__ import annotations

from scheduling_builders import config, request, sample, view

from twp_sglang.scheduling.policies import build_policy
from twp_sglang.scheduling.policies.observe import Observe


def test_it_decides_as_twp_does_and_enforces_nothing() -> None:
    fields = {"h0_tokens": 100.0, "l_min_ms": 20.0}
    watching = build_policy(config(policy="observe", **fields))
    deciding = build_policy(config(policy="twp", **fields))
    assert not watching.enforces
    assert deciding.enforces
    for seq in range(9):
        for policy in (watching, deciding):
            policy.enqueue(request(seq))
    for policy in (watching, deciding):
        policy.observe(sample(50.0))
    one, other = watching.decide(view()), deciding.decide(view())
    assert [(g.request.seq, g.reason) for g in one.grants] == [
        (g.request.seq, g.reason) for g in other.grants
    ]
    assert one.closed == other.closed == "window"
    assert watching.signals() == deciding.signals()


def test_it_counts_the_engines_admissions_it_agrees_with() -> None:
    policy = build_policy(config(policy="observe"))
    assert isinstance(policy, Observe)
    first, second = request(0), request(1)
    policy.enqueue(first)
    policy.enqueue(second)
    policy.taken(first, agreed=True)
    policy.taken(second)
    shown = policy.snapshot()
    assert (shown["admitted"], shown["would_admit"], shown["queue"]) == (2, 1, 0)


def test_it_tells_agreed_held_and_earlier_apart() -> None:
    policy = build_policy(config(policy="observe", h0_tokens=100.0))
    assert isinstance(policy, Observe)
    early, agreed, held = request(0), request(1), request(2, expected_tokens=500)
    policy.enqueue(early)
    policy.decide(view())
    policy.end_pass(1000, 1000, None)  # the engine did not take it
    policy.enqueue(agreed)
    policy.enqueue(held)
    granted = [grant.request for grant in policy.decide(view()).grants]
    assert granted == [early, agreed]
    for one in (early, agreed, held):
        policy.taken(one, agreed=one in granted)
    policy.end_pass(1000, 1000, None)
    shown = policy.snapshot()
    assert shown["shadow"] == {
        "agreed": 1,
        "would_have_held": 1,
        "would_have_admitted_earlier": 1,
    }
    assert shown["would_admit"] == 2


def test_a_granted_request_that_left_is_forgotten() -> None:
    policy = build_policy(config(policy="observe"))
    assert isinstance(policy, Observe)
    gone = request(0)
    policy.enqueue(gone)
    policy.decide(view())
    policy.end_pass(1000, 1000, None)
    policy.withdraw(gone)
    assert policy._granted == set()
