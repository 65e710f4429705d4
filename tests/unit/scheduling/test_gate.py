"""The gate: both guards, head of line, and who is exempt."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scheduling_builders import request, view

from twp_sglang.scheduling.decision import Decision
from twp_sglang.scheduling.gate import Gate
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import PassView

T_MAX = 200


def decide(
    candidates: Sequence[RequestInfo],
    seen: PassView,
    window: float = 100.0,
    threshold: float = 0.05,
    forced_per_step: int | None = 1,
) -> Decision:
    return Gate(T_MAX, forced_per_step).decide(candidates, seen, window, threshold)


def reasons(decision: Decision) -> list[tuple[int, str]]:
    return [(grant.request.seq, grant.reason) for grant in decision.grants]


def test_the_load_may_fill_the_window_to_the_token() -> None:
    # K = 20, H = 100: four requests of 20 fit, the fifth does not.
    decision = decide([request(i) for i in range(5)], view(load_tokens=20))
    assert reasons(decision) == [(0, "window"), (1, "window"), (2, "window"), (3, "window")]
    assert decision.closed == "window"
    assert [grant.load_before_tokens for grant in decision.grants] == [20, 40, 60, 80]


def test_nobody_left_leaves_the_gate_open() -> None:
    assert decide([request(0)], view()).closed == ""


def test_the_head_is_not_passed_over_for_one_that_would_fit() -> None:
    decision = decide([request(0, expected_tokens=81), request(1, expected_tokens=1)], view())
    assert decision == Decision((), "window")


def test_memory_must_stay_above_the_threshold_once_the_prompt_is_in() -> None:
    # 100 of 1,000 free, threshold 0.05: 50 must stay, and more than that.
    seen = view(kv_free_tokens=100)
    assert decide([request(0, prompt_tokens=50)], seen) == Decision((), "kv")
    decision = decide([request(0, prompt_tokens=49)], seen)
    assert reasons(decision) == [(0, "window")]
    assert decision.grants[0].kv_free_after == pytest.approx(0.051)
    assert decision.grants[0].kv_threshold == 0.05


def test_prompts_of_one_pass_add_up_in_memory() -> None:
    decision = decide([request(i, prompt_tokens=400, expected_tokens=1) for i in range(3)], view())
    assert reasons(decision) == [(0, "window"), (1, "window")]
    assert decision.closed == "kv"


def test_an_idle_engine_takes_its_head_whatever_the_guards_say() -> None:
    big = request(0, prompt_tokens=990, expected_tokens=5000)
    decision = decide([big, request(1)], view(load_tokens=0, batch=0))
    assert reasons(decision) == [(0, "idle")]
    # With the head in, the engine is not idle any more and the window is full.
    assert decision.closed == "window"


def test_an_idle_engines_head_that_fits_needs_no_exemption() -> None:
    assert reasons(decide([request(0)], view(load_tokens=0, batch=0))) == [(0, "window")]


def test_retracted_requests_are_exempt_and_count() -> None:
    back = request(5, retracted=True, expected_tokens=500, prompt_tokens=980)
    decision = decide([back, request(6)], view())
    assert reasons(decision) == [(5, "retracted")]
    assert decision.closed == "window"


def test_waiting_t_max_passes_forces_and_one_less_does_not() -> None:
    big = request(0, expected_tokens=500, arrival_pass=100)
    assert decide([big], view(pass_index=299)) == Decision((), "window")
    decision = decide([big], view(pass_index=300))
    assert reasons(decision) == [(0, "forced")]
    assert decision.grants[0].waited_passes == T_MAX


def test_forcing_ignores_the_memory_guard_too() -> None:
    late = request(0, prompt_tokens=40)
    seen = view(pass_index=200, kv_free_tokens=50)
    assert reasons(decide([late], seen)) == [(0, "forced")]


def test_forcing_is_limited_per_pass() -> None:
    late = [request(i, expected_tokens=500) for i in range(4)]
    seen = view(pass_index=200)
    once = decide(late, seen, forced_per_step=1)
    assert (reasons(once), once.closed) == ([(0, "forced")], "forced-limit")
    thrice = decide(late, seen, forced_per_step=3)
    assert (len(thrice.grants), thrice.closed) == (3, "forced-limit")
    unlimited = decide(late, seen, forced_per_step=None)
    assert (len(unlimited.grants), unlimited.closed) == (4, "")


def test_a_starved_request_that_fits_does_not_use_up_the_limit() -> None:
    fits = request(0, expected_tokens=5)
    big = request(1, expected_tokens=500)
    assert reasons(decide([fits, big], view(pass_index=200))) == [(0, "window"), (1, "forced")]


def test_the_grant_tells_what_the_gate_saw() -> None:
    grant = decide([request(0, arrival_pass=3)], view(pass_index=10), window=77.0).grants[0]
    assert grant.window_tokens == 77.0
    assert grant.waited_passes == 7
    assert grant.load_before_tokens == 20


def test_an_empty_pool_divides_by_nothing() -> None:
    decision = decide([request(0)], view(kv_free_tokens=0, kv_capacity_tokens=0))
    assert decision == Decision((), "kv")
