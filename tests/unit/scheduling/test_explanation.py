"""Why requests wait, in words, and where each stands."""

from __future__ import annotations

import pytest
from scheduling_builders import config, request, sample, view

from twp_sglang.scheduling.explanation import Facts, facts_of, hold, place_of, status_line
from twp_sglang.scheduling.policies import build_policy
from twp_sglang.scheduling.recent_steps import RecentSteps
from twp_sglang.scheduling.waiting import WaitingQueue
from twp_sglang.scheduling.waiting_time import WaitingTime

BUSY = Facts(
    "twp",
    True,
    queue=12,
    batch=8,
    closed="window",
    load_tokens=3900.0,
    window_tokens=4000.0,
    kv_free=0.07,
    kv_threshold=0.05,
)


def test_an_idle_server_says_so() -> None:
    assert status_line(Facts("twp", True, 0, 0, "")) == "Idle: nobody waits, nobody runs."
    assert status_line(Facts("twp", True, 0, 1, "window")) == "Nobody waits; 1 request runs."


def test_the_window_names_both_numbers() -> None:
    assert status_line(BUSY) == (
        "12 requests wait: those who run still owe 3,900 output tokens, and the next one would "
        "add more than the window of 4,000 takes."
    )
    assert "would add 256," in hold(BUSY, 256)


def test_memory_names_the_share_that_must_stay_free() -> None:
    text = status_line(BUSY._replace(closed="kv", queue=1))
    assert text.startswith("1 request waits: the KV cache is 7% free")
    assert "5.0%" in text


@pytest.mark.parametrize("closed", ["", "engine", "forced-limit", "limit", "target", "a-new-one"])
def test_every_reason_has_words(closed: str) -> None:
    text = status_line(BUSY._replace(closed=closed))
    assert text.startswith("12 requests wait: ")
    assert len(text) > 40


def test_slo_speaks_of_its_objective() -> None:
    text = status_line(BUSY._replace(policy="slo", itl_limit_ms=50.0, itl_plan_ms=31.0))
    assert "objective of 50 ms, of which the errors of its model leave 31 ms" in text
    memory = status_line(BUSY._replace(policy="slo", closed="kv"))
    assert "by the forecast of their lengths" in memory
    assert "7% of it is free now" in memory


def test_slo_says_that_its_objective_cannot_be_kept() -> None:
    facts = facts_of(
        {
            **{"policy": "slo", "deciding": True, "queue": 3, "batch": 1, "closed": "window"},
            **{"itl_slo_ms": 300.0, "itl_step_goal_ms": 420.0, "theta": 0.9},
            "itl_slo_reachable": False,
        }
    )
    said = "The ITL objective of 300 ms cannot be kept even by one row; steps of up to 378 ms are"
    window = status_line(facts)
    assert window.count(said) == 1
    assert "would not keep within" not in window
    assert status_line(facts._replace(closed="chunk")).endswith(f". {said} planned.")
    assert status_line(facts._replace(queue=0)) == f"Nobody waits; 1 request runs. {said} planned."


def test_a_fallback_is_said_before_all_else() -> None:
    text = status_line(BUSY._replace(deciding=False, fallback_reason="order"))
    assert text.startswith("TWP FELL BACK to stock SGLang scheduling (fault in order")
    assert "12 requests wait in SGLang's own order" in text


def test_observe_says_who_decides() -> None:
    text = status_line(BUSY._replace(policy="observe", deciding=False))
    assert "SGLang decides, TWP only watches" in text


def test_facts_survive_a_state_without_fields() -> None:
    for policy in ("twp", "observe", "slo", "fcfs", "priority", "dynamic-batch"):
        snapshot = build_policy(config(policy=policy)).snapshot()
        assert status_line(facts_of(snapshot)) == "Idle: nobody waits, nobody runs."
    assert facts_of({}) == Facts("unknown", False, 0, 0, "")


@pytest.mark.parametrize("policy", ["twp", "slo", "fcfs", "priority", "dynamic-batch"])
def test_grants_are_the_head_of_the_waiting_order(policy: str) -> None:
    chosen = build_policy(config(policy=policy, h0_tokens=200.0, l_min_ms=20.0))
    waiting = [
        request(
            seq,
            arrival_pass=seq // 3,
            prompt_tokens=7 * seq % 50 + 1,
            expected_tokens=11 * seq % 70 + 1,
            retracted=seq in (5, 11),
        )
        for seq in range(20)
    ]
    for one in waiting:
        chosen.enqueue(one)
    now = view(pass_index=8)
    order = chosen.waiting_order(now)
    assert sorted(one.seq for one in order) == list(range(20))
    grants = [grant.request for grant in chosen.decide(now).grants]
    assert grants
    assert order[: len(grants)] == grants
    assert place_of(order[0], order) == (1, 0)
    ahead = sum(one.prompt_tokens for one in order[:7])
    assert place_of(order[7], order) == (8, ahead)
    assert place_of(request(99), order) is None


def test_asking_slo_for_its_order_moves_nobody_to_the_late_line() -> None:
    asked, twin = (build_policy(config(policy="slo", ttft_slo_ms=1.0)) for _ in range(2))
    for policy in (asked, twin):
        for seq in range(6):
            policy.enqueue(request(seq, prompt_tokens=5000))
    late = view(now_ms=5000.0)
    assert len(asked.waiting_order(late)) == 6
    asked.end_pass(1000, 1000, None)
    assert asked.snapshot() == twin.snapshot()
    asked.decide(late)
    asked.end_pass(1000, 1000, None)
    assert asked.snapshot()["late"] == 6
    assert "first token cannot come" in asked.remark(asked.waiting_order(late)[0])


def test_the_wait_is_tokens_over_the_rate_measured_while_somebody_waited() -> None:
    time = WaitingTime()
    queue = WaitingQueue()
    for step in range(1, 40):
        time.observe(sample(10.0, step=step, prefill_tokens=64), queue)
    assert time.until_served(1000).seconds is None, "nobody waited"
    queue.add(request(0, arrival_pass=0))
    for step in range(40, 80):
        time.observe(sample(10.0, step=step, prefill_tokens=20), queue)
    expected = time.until_served(1000)
    assert expected.seconds == pytest.approx(0.5)
    assert "1,000 prompt tokens" in expected.how
    assert "2,000 per second" in expected.how
    assert time.until_served(1000, 2000).seconds == expected.seconds
    cached = time.until_served(5, 2000)
    assert cached.seconds is None, "rows or memory decide"
    assert "all but 5 of the 2,000 prompt tokens" in cached.how


def test_steps_are_summarised_since_the_last_look() -> None:
    recent = RecentSteps()
    assert recent.summary().steps == 0
    for step in range(10):
        recent.add(sample(10.0 + step, step=step, batch=4), 12.0)
    recent.add(sample(None, step=10), 12.0)
    recent.add(sample(50.0, step=11, batch=5, prefill_tokens=64), None)
    whole = recent.summary()
    assert (whole.steps, whole.newest_step, whole.step_ms_max) == (11, 11, 50.0)
    newest = recent.summary(after_step=8)
    assert (newest.steps, newest.step_ms, newest.batch) == (2, (19.0 + 50.0) / 2, 5)
    assert newest.prompt_tokens_per_s == pytest.approx(64 / 0.069)
    assert newest.error == pytest.approx(12.0 / 19.0 - 1)
