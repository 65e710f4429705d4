"""Prompt tokens in the prefix cache are not to be computed: in every sum, whenever they change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import config, request, sample, view

from twp_sglang.scheduling.explanation import prompt_to_serve
from twp_sglang.scheduling.policies import build_policy
from twp_sglang.scheduling.policies.base import Policy
from twp_sglang.scheduling.policies.slo import Slo


def slo(**fields: float) -> Slo:
    policy = build_policy(
        config(
            policy="slo",
            ttft_slo_ms=1_000.0,
            itl_slo_ms=500.0,
            l_min_ms=50.0,
            prefill_ms_per_token=1.0,
            **fields,
        )
    )
    assert isinstance(policy, Slo)
    return policy


def measure(policy: Policy) -> None:
    """Somebody waited while prompts were computed at 1 token per ms."""
    for step in range(1, 50):
        policy.observe(sample(100.0, step=step, prefill_tokens=100, kind="mixed"))


def test_a_prompt_found_later_is_served_in_time_after_all() -> None:
    policy = slo()
    # At 1 token per ms, 1.6 s of prompts: one of them would be late.
    asked = [request(seq, prompt_tokens=800) for seq in range(2)]
    for one in asked:
        policy.enqueue(one)
    measure(policy)
    assert [one.seq for one in policy.waiting_order(view())] == [1, 0]
    policy.recount(asked[1], 750)
    assert [one.seq for one in policy.waiting_order(view())] == [0, 1]
    policy.decide(view())
    policy.end_pass(1000, 1000, None)
    assert policy.lines.late == 0


def test_a_prompt_that_was_evicted_counts_whole_again() -> None:
    policy = slo()
    one = request(0, prompt_tokens=900, cached_tokens=850)
    policy.enqueue(one)
    assert policy.lines.waiting_tokens == policy.queue.tokens_to_serve == 50
    policy.recount(one, 0)
    assert policy.lines.waiting_tokens == policy.queue.tokens_to_serve == 900
    policy.withdraw(one)
    assert policy.lines.waiting_tokens == policy.queue.tokens_to_serve == 0


def test_memory_is_asked_for_the_whole_prompt() -> None:
    # What is cached and not in use counts as free until it is taken; then it is not any more.
    policy = slo()
    for seq in range(2):
        policy.enqueue(request(seq, prompt_tokens=950, cached_tokens=940))
    decision = policy.decide(view(kv_free_tokens=1000, kv_capacity_tokens=1000))
    assert len(decision.grants) < 2
    assert decision.closed == "kv"


@pytest.mark.parametrize("policy_name", ["twp", "slo"])
def test_a_newcomer_is_refused_for_what_has_to_be_computed(policy_name: str) -> None:
    policy = build_policy(config(policy=policy_name, refuse_ttft_ms=9_000.0, ttft_slo_ms=1.0))
    waiting = [request(seq, prompt_tokens=100) for seq in range(100)]
    for one in waiting:
        policy.enqueue(one)
    measure(policy)
    refusal = policy.refusal(request(998, prompt_tokens=1_000, cached_tokens=900))
    assert refusal is not None
    assert "10,000 prompt tokens are before this request's 100," in refusal.message
    for one in waiting[:20]:
        policy.recount(one, 99)
    # 8,020 tokens before it and 100 of its own, at 1 per ms.
    assert policy.refusal(request(999, prompt_tokens=1_000, cached_tokens=900)) is None
    assert policy.refusal(request(999, prompt_tokens=1_000)) is not None


def test_priorities_are_told_apart() -> None:
    policy = build_policy(config(policy="twp"))
    for seq in range(6):
        policy.enqueue(request(seq, prompt_tokens=100, cached_tokens=60, priority=seq % 2))
    policy.enqueue(request(6, prompt_tokens=100, cached_tokens=90, retracted=True))
    policy.recount(next(one for one in policy.queue if one.seq == 1), 10)
    assert policy.queue.tokens_to_serve_at(1) == 10 + 90 + 40 + 40
    assert policy.queue.tokens_to_serve_at(0) == policy.queue.tokens_to_serve == 170 + 3 * 40 + 10


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "recount", "take", "leave", "decide"]),
        st.integers(0, 400),
        st.booleans(),
    ),
    max_size=60,
)


@given(STEPS)
def test_the_sums_are_those_of_who_waits(steps: list[tuple[str, int, bool]]) -> None:
    policy = slo()
    number = 0
    for kind, size, odd in steps:
        if kind == "join":
            policy.enqueue(
                request(
                    number,
                    prompt_tokens=size + 1,
                    cached_tokens=size // 2 if odd else 0,
                    retracted=odd and size % 3 == 0,
                    priority=size % 2,
                    arrival_ms=float(number),
                )
            )
            number += 1
        elif len(policy.queue):
            one = list(policy.queue)[size % len(policy.queue)]
            if kind == "recount":
                policy.recount(one, min(size, one.prompt_tokens - 1))
            elif kind == "take":
                policy.recount(one, size % one.prompt_tokens)
                policy.taken(one)
            elif kind == "leave":
                policy.withdraw(one)
            else:
                policy.decide(view(now_ms=10.0 * number, kv_free_tokens=10**6))
                policy.end_pass(10**6, 10**6, None)
        waiting = list(policy.queue)
        assert policy.queue.prompt_tokens == sum(one.prompt_tokens for one in waiting)
        assert policy.queue.tokens_to_serve == sum(map(prompt_to_serve, waiting))
        fresh = [one for one in waiting if not one.retracted]
        assert policy.lines.waiting_tokens == sum(map(prompt_to_serve, fresh))
