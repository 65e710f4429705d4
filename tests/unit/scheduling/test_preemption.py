"""Who makes way for a higher priority, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import config, request, seasoned, view

from twp_sglang.scheduling.active_rows import ActiveRows
from twp_sglang.scheduling.policies.slo import Slo
from twp_sglang.scheduling.preemption import PROTECTED_TOKENS, makes_way, protected, without
from twp_sglang.scheduling.request import RequestInfo

THRESHOLD = 10


def rows(infos: Sequence[RequestInfo | None], produced: int = 50) -> ActiveRows:
    each = np.ones(len(infos), dtype=np.int64)
    return ActiveRows(infos, 100 * each, 200 * each, produced * each)


def test_the_lowest_priority_makes_way_and_of_equals_the_newest() -> None:
    infos = [request(0, priority=3), request(1), request(2), request(3, priority=1), None]
    assert makes_way(rows(infos), 20, THRESHOLD) == 2
    assert makes_way(rows(infos[:1]), 20, THRESHOLD) == 0


@given(st.integers(-20, 20), st.lists(st.integers(-20, 20), max_size=6), st.integers(0, 15))
def test_only_a_priority_beyond_the_threshold_counts(
    priority: int, running: list[int], threshold: int
) -> None:
    infos = [request(seq, priority=value) for seq, value in enumerate(running)]
    place = makes_way(rows(infos), priority, threshold)
    assert (place is None) == all(priority - value <= threshold for value in running)
    if place is not None:
        assert running[place] == min(running), "never an equal, never a higher one"


@given(st.integers(1, 3000), st.integers(1, 400))
def test_a_request_is_preempted_a_logarithmic_number_of_times(output: int, patience: int) -> None:
    """However soon after its protection it loses its place again."""
    produced = preemptions = 0
    while produced < output:
        info = request(0, produced_tokens=produced, preemptions=preemptions)
        stay = 0
        while produced + stay < output and (
            stay < patience if preemptions == 0 else protected(info, produced + stay)
        ):
            stay += 1
        if produced + stay >= output:
            break
        produced += stay
        preemptions += 1
    assert preemptions <= 2 + np.log2(1 + output / PROTECTED_TOKENS)


def test_without_a_row_its_memory_is_free() -> None:
    infos = [request(0), request(1), request(2)]
    there = view(batch=3, kv_free_tokens=100, rows=lambda: rows(infos))
    after = without(there, 1)
    assert (after.batch, after.kv_free_tokens) == (2, 250)
    assert after.rows().requests == [infos[0], infos[2]]
    assert after.rows().held_tokens.tolist() == [150, 150]


def full(infos: Sequence[RequestInfo], **attributes: Any) -> Any:
    """32 rows, as many as keep the objective."""
    values = {"batch": 32, "kv_free_tokens": 10_000, "kv_capacity_tokens": 20_000}
    seen = rows(infos)
    return view(**{**values, "rows": lambda: seen, **attributes})


def slo() -> Slo:
    model = {"l_min_ms": 10.0, "a_ms": 1.0, "prefill_ms_per_token": 0.1, "b0": 1}
    return seasoned(Slo(config(policy="slo", **model)))


def test_a_shut_gate_opens_for_one_of_higher_priority() -> None:
    running = [request(100 + number) for number in range(32)]
    policy = slo()
    policy.enqueue(request(0, priority=10))
    asked = full(running, preemption_threshold=THRESHOLD)
    assert policy.decide(asked).grants == (), "not beyond the threshold"
    policy.enqueue(request(1, priority=11))
    policy.enqueue(request(2, priority=11))
    decision = policy.decide(asked)
    assert [grant.request.seq for grant in decision.grants] == [1], "one in a pass"
    assert decision.preempts
    assert decision.closed == "window"
    assert policy.decide(full(running)).grants == (), "the engine does not preempt"
    busy = full(running, preemption_threshold=THRESHOLD, owed_prompt_tokens=5)
    assert policy.decide(busy).grants == (), "a prompt under way may leave no room"


def test_a_protected_row_keeps_its_place() -> None:
    running = [request(100 + n, preemptions=1, produced_tokens=40) for n in range(32)]
    policy = slo()
    policy.enqueue(request(0, priority=20))
    # 10 of 32 tokens since it came back.
    assert policy.decide(full(running, preemption_threshold=THRESHOLD)).grants == ()
    later = rows(running, produced=40 + PROTECTED_TOKENS)
    asked = full(running, preemption_threshold=THRESHOLD, rows=lambda: later)
    assert policy.decide(asked).preempts


def test_who_was_preempted_goes_first_of_its_priority_and_is_never_late() -> None:
    policy = slo()
    there = view(kv_free_tokens=10**6, kv_capacity_tokens=10**6)
    policy.enqueue(request(0, prompt_tokens=14_000))
    policy.enqueue(request(1, preemptions=1, prompt_tokens=14_000, produced_tokens=100))
    policy.enqueue(request(2, prompt_tokens=900, priority=1))
    decision = policy.decide(there)
    assert [grant.request.seq for grant in decision.grants] == [2, 1, 0]
    policy.end_pass(10**6, 10**6, None)
    assert policy.lines.late == 1
    assert not policy.lines.is_late(decision.grants[1].request)


def test_a_late_one_of_high_priority_goes_before_those_of_low_priority_in_time() -> None:
    policy = slo()
    there = view(kv_free_tokens=10**6, kv_capacity_tokens=10**6)
    policy.enqueue(request(0, prompt_tokens=90_000, priority=1))
    policy.enqueue(request(1, prompt_tokens=10))
    assert [grant.request.seq for grant in policy.decide(there).grants] == [0, 1]
    policy.end_pass(10**6, 10**6, None)
    assert policy.lines.late == 1
    assert [grant.request.seq for grant in policy.decide(there).grants] == [0, 1]
