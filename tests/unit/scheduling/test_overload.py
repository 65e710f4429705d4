"""What is refused, with which numbers, and when to come again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import config, request, sample, view

from twp_sglang.scheduling.overload import RETRY_MAX_S, RETRY_UNKNOWN_S, Overload
from twp_sglang.scheduling.policies import build_policy
from twp_sglang.scheduling.policies.base import Policy
from twp_sglang.scheduling.policies.slo import Slo


def filled(count: int, prompt_tokens: int = 100, **fields: Any) -> Policy:
    """A twp policy with ``count`` waiting since pass 0."""
    policy = build_policy(config(**{"policy": "twp", **fields}))
    for seq in range(count):
        policy.enqueue(request(seq, prompt_tokens=prompt_tokens))
    return policy


def measure(policy: Policy, tokens_per_step: int = 100, steps: int = 50) -> None:
    """Steps of 100 ms with somebody waiting: 1 token per ms for 100 tokens."""
    for step in range(1, steps + 1):
        policy.observe(sample(100.0, step=step, prefill_tokens=tokens_per_step, kind="mixed"))


def test_a_full_queue_refuses_and_says_so() -> None:
    policy = filled(5, queue_max_requests=5)
    refusal = policy.refusal(request(9))
    assert refusal is not None
    assert (refusal.reason, refusal.status) == ("queue-requests", 429)
    assert "5 requests wait already" in refusal.message
    assert "queue_max_requests = 5" in refusal.message
    assert refusal.retry_after_s == RETRY_UNKNOWN_S, "no rate is known yet"
    assert policy.tally.refusals == {"queue-requests": 1}
    assert filled(4, queue_max_requests=5).refusal(request(9)) is None


def test_prompt_tokens_are_bounded_too_but_an_empty_queue_takes_any() -> None:
    policy = filled(3, queue_max_prompt_tokens=350)
    assert policy.refusal(request(9, prompt_tokens=50)) is None
    refusal = policy.refusal(request(9, prompt_tokens=51))
    assert refusal is not None
    assert refusal.reason == "queue-tokens"
    assert "300 prompt tokens wait already" in refusal.message
    assert filled(0, queue_max_prompt_tokens=350).refusal(request(9, prompt_tokens=9999)) is None


def test_a_first_token_predicted_too_late_is_refused_with_the_time_that_is_too_much() -> None:
    policy = filled(100, refuse_ttft_ms=9_000.0)
    assert policy.refusal(request(999, prompt_tokens=100)) is None, "no rate is known yet"
    measure(policy)
    refusal = policy.refusal(request(999, prompt_tokens=100))
    assert refusal is not None
    # 10,000 tokens before it and 100 of its own at 1 per ms: 10.1 s, 1.1 s too much.
    assert refusal.reason == "ttft"
    assert "10.1 s" in refusal.message
    assert "at most 9 s" in refusal.message
    assert refusal.retry_after_s == 2
    lenient = filled(100, refuse_ttft_ms=11_000.0)
    measure(lenient)
    assert lenient.refusal(request(999, prompt_tokens=100)) is None


def test_prompts_under_way_come_before() -> None:
    policy = filled(100, refuse_ttft_ms=11_000.0)
    measure(policy)
    assert policy.refusal(request(999, prompt_tokens=100), owed_prompt_tokens=5000) is not None


def test_unset_nobody_is_refused_for_being_late() -> None:
    policy = filled(5000)
    measure(policy, tokens_per_step=1)
    assert policy.refusal(request(9_999)) is None


def test_who_asked_for_more_time_gets_it() -> None:
    policy = filled(100, refuse_ttft_ms=2_000.0)
    measure(policy)
    assert policy.refusal(request(999)) is not None
    assert policy.refusal(request(1000, ttft_slo_ms=60_000.0)) is None


@pytest.mark.parametrize("name", ["observe", "fcfs", "priority", "dynamic-batch"])
def test_policies_that_do_not_pace_refuse_nobody(name: str) -> None:
    policy = filled(50, policy=name, queue_max_requests=5, refuse_ttft_ms=1.0)
    measure(policy)
    assert policy.refusal(request(999)) is None


def test_retracted_requests_are_never_refused() -> None:
    policy = filled(50, queue_max_requests=5)
    assert policy.refusal(request(999, retracted=True)) is None


def test_a_higher_priority_waits_for_its_equals_only() -> None:
    policy = build_policy(config(policy="twp", refuse_ttft_ms=2_000.0))
    for seq in range(100):
        policy.enqueue(request(seq, prompt_tokens=100, priority=0))
    measure(policy)
    assert policy.refusal(request(999, priority=0)) is not None
    assert policy.refusal(request(1000, priority=1)) is None


def test_slo_takes_who_can_still_be_in_time_past_those_who_cannot() -> None:
    policy = build_policy(
        config(
            policy="slo",
            refuse_ttft_ms=3_000.0,
            ttft_slo_ms=2_000.0,
            itl_slo_ms=500.0,
            l_min_ms=50.0,
            prefill_ms_per_token=0.5,
        )
    )
    assert isinstance(policy, Slo)
    for seq in range(60):
        policy.enqueue(request(seq, prompt_tokens=100))
    measure(policy)
    # 6 s of prompts: those that miss 2 s go to the late line.
    policy.decide(view(now_ms=0.0))
    policy.end_pass(1000, 1000, None)
    assert policy.lines.late > 30
    # The line of those in time is full: 300 more tokens would be too many. For one that has
    # 5.9 s the late line is not before it, though the whole queue would take 6.3 s.
    assert policy.refusal(request(998, prompt_tokens=300)) is not None
    assert policy.refusal(request(999, prompt_tokens=300, ttft_slo_ms=5_900.0)) is None


def test_a_bad_moment_does_not_shut_an_idle_engine() -> None:
    """Field case 4: what was learned in a burst must not veto what comes after it."""
    policy = filled(1, refuse_ttft_ms=1_000.0)
    for step in range(1, 200):
        policy.observe(sample(100.0, step=step, prefill_tokens=0))
    policy.observe(sample(100.0, step=200, prefill_tokens=1, kind="mixed"))
    assert policy.refusal(request(9, prompt_tokens=1000)) is not None, "0.05 tokens per s"
    policy.withdraw(next(iter(policy.queue)))
    assert policy.refusal(request(10, prompt_tokens=1000)) is None, "nobody waits"


def test_the_step_that_empties_the_queue_counts() -> None:
    """A queue of one moves too: without its last step it would look as if it never did."""
    policy = build_policy(config(policy="twp", h0_tokens=1e6, h_max_tokens=1e7))
    for number in range(10):
        one = request(number, arrival_pass=10 * number, prompt_tokens=100)
        policy.enqueue(one)
        for step in range(1, 4):
            policy.observe(sample(100.0, step=10 * number + step, prefill_tokens=0))
        decision = policy.decide(view(pass_index=10 * number + 4))
        policy.admitted(decision.grants[0])
        policy.observe(sample(100.0, step=10 * number + 4, prefill_tokens=100, kind="mixed"))
    assert policy.overload is not None
    assert policy.overload.prompt_tokens_per_ms == pytest.approx(100 / 400, rel=0.1)


def test_the_refused_come_back_one_after_another() -> None:
    policy = filled(100, refuse_ttft_ms=9_000.0)
    measure(policy)
    told = []
    for seq in range(1000, 1050):
        refusal = policy.refusal(request(seq, prompt_tokens=500))
        assert refusal is not None
        assert refusal.retry_after_s is not None
        told.append(refusal.retry_after_s)
    assert told == sorted(told)
    # Each takes half a second: 49 of them later, 24.5 s.
    assert told[-1] - told[0] == pytest.approx(24.5, abs=1)
    for seq in range(2000, 2500):
        policy.refusal(request(seq, prompt_tokens=500))
    last = policy.refusal(request(3000, prompt_tokens=500))
    assert last is not None
    assert last.retry_after_s == RETRY_MAX_S


def test_turns_are_dropped_once_nobody_waits() -> None:
    policy = filled(100, refuse_ttft_ms=9_000.0)
    measure(policy)
    for seq in range(1000, 1100):
        policy.refusal(request(seq, prompt_tokens=500))
    for one in list(policy.queue):
        policy.withdraw(one)
    policy.observe(sample(100.0, step=60, prefill_tokens=100, kind="mixed"))
    for seq in range(5000, 5100):
        policy.enqueue(request(seq, arrival_pass=60, prompt_tokens=100))
    refusal = policy.refusal(request(6000, prompt_tokens=100))
    assert refusal is not None
    assert refusal.retry_after_s == 2


def test_bounds_change_while_serving_and_the_rate_stays() -> None:
    policy = filled(100)
    measure(policy)
    policy.reconfigure(config(policy="twp", refuse_ttft_ms=5_000.0))
    refusal = policy.refusal(request(999))
    assert refusal is not None
    assert refusal.reason == "ttft"


def test_steps_without_a_duration_are_no_measurement() -> None:
    overload = Overload(config())
    queue = filled(3).queue
    for bad in (None, 0.0, float("inf"), float("nan")):
        overload.observe(sample(bad, step=5, prefill_tokens=100), queue)
    assert overload.prompt_tokens_per_ms is None


@given(
    waiting=st.integers(0, 30),
    bound=st.integers(1, 20),
    tokens=st.integers(1, 2000),
    limit=st.one_of(st.none(), st.floats(1.0, 1e5)),
    steps=st.lists(st.tuples(st.floats(0.1, 1e4), st.integers(0, 5000)), max_size=30),
)
def test_a_refusal_always_says_why_and_when(
    waiting: int,
    bound: int,
    tokens: int,
    limit: float | None,
    steps: list[tuple[float, int]],
) -> None:
    policy = filled(waiting, queue_max_requests=bound, refuse_ttft_ms=limit)
    for number, (duration, prefill) in enumerate(steps, start=1):
        policy.observe(sample(duration, step=number, prefill_tokens=prefill, kind="mixed"))
    refusal = policy.refusal(request(999, prompt_tokens=tokens))
    if waiting == 0:
        assert refusal is None
    if waiting >= bound:
        assert refusal is not None
    if refusal is not None:
        assert refusal.status == 429
        assert refusal.retry_after_s is not None
        assert 1 <= refusal.retry_after_s <= RETRY_MAX_S
        assert refusal.message.endswith(".")
    assert len(policy.queue) == waiting, "judging changes nothing in the queue"
