"""Shortest prompt first."""

from __future__ import annotations

from scheduling_builders import config, request, view

from twp_sglang.scheduling.policies import build_policy


def test_shortest_prompt_first_ties_by_arrival_retracted_before_all() -> None:
    policy = build_policy(config(policy="priority"))
    prompts = {0: 300, 1: 20, 2: 100, 3: 20}
    for seq, tokens in prompts.items():
        policy.enqueue(request(seq, prompt_tokens=tokens))
    policy.enqueue(request(7, prompt_tokens=900, retracted=True))
    decision = policy.decide(view())
    assert [grant.request.seq for grant in decision.grants] == [7, 1, 3, 2, 0]
    assert {grant.reason for grant in decision.grants} == {"retracted", "policy"}


def test_it_starves_the_long_prompt_as_the_baseline_does() -> None:
    policy = build_policy(config(policy="priority"))
    policy.enqueue(request(0, prompt_tokens=5000))
    policy.enqueue(request(1, prompt_tokens=10, arrival_pass=100_000))
    assert policy.decide(view(pass_index=100_001)).grants[0].request.seq == 1
