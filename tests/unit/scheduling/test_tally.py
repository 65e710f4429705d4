"""Counts by reason: every admission is counted once, whoever made it."""

from __future__ import annotations

import json

from scheduling_builders import config, request, view

from twp_sglang.scheduling.policies import build_policy
from twp_sglang.scheduling.tally import Tally


def test_grants_count_by_their_reason_and_the_engines_own_as_such() -> None:
    policy = build_policy(config(policy="twp", h0_tokens=45.0))
    for seq in range(3):
        policy.enqueue(request(seq))
    decision = policy.decide(view(load_tokens=20))
    for grant in decision.grants:
        policy.admitted(grant)
    policy.taken(request(7))
    policy.taken(request(8, retracted=True))
    # H = 45, K = 20: one more of 20 fits.
    assert policy.tally.admissions == {"window": 1, "engine": 1, "retracted": 1}
    assert sum(policy.tally.admissions.values()) == policy.admitted_total


def test_asking_twice_counts_nothing() -> None:
    policy = build_policy(config(policy="twp"))
    policy.enqueue(request(0))
    policy.decide(view())
    policy.decide(view())
    assert policy.tally.admissions == {}


def test_the_error_of_expected_lengths_has_no_sign_while_the_sums_have() -> None:
    tally = Tally()
    tally.answered(100, 60)
    tally.answered(100, 160)
    assert (tally.answers, tally.expected_tokens, tally.answer_tokens) == (2, 200, 220)
    assert tally.length_error_tokens == 40 + 60


def test_the_snapshot_is_plain_json_and_a_copy() -> None:
    tally = Tally()
    tally.held("window")
    tally.held("window")
    tally.refused("queue-requests")
    shown = tally.snapshot()
    tally.held("kv")
    assert json.loads(json.dumps(shown)) == shown
    assert shown["holds"] == {"window": 2}
    assert shown["refusals"] == {"queue-requests": 1}
