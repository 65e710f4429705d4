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
