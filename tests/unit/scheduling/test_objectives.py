"""Objectives in force: stated, from the calibrated model, learned at low load."""

from __future__ import annotations

import pytest
from scheduling_builders import config, request, sample, seasoned, view

from twp_sglang.scheduling.objectives import (
    LOW_ROWS,
    WINDOW_STEPS,
    Objectives,
    step_objective_ms,
)
from twp_sglang.scheduling.policies.slo import Slo


def decode(objectives: Objectives, step_ms: float, rows: int = 1, steps: int = 16) -> bool:
    """Whether any of ``steps`` equal decode steps changed an objective."""
    return sum(objectives.observe(sample(step_ms, batch=rows)) for _ in range(steps)) > 0


def prefill(objectives: Objectives, step_ms: float, tokens: int, steps: int = 16) -> None:
    for _ in range(steps):
        objectives.observe(sample(step_ms, batch=0, kind="prefill", prefill_tokens=tokens))


def test_stated_objectives_stay() -> None:
    objectives = Objectives(config(itl_slo_ms=40, ttft_slo_ms=900))
    assert not decode(objectives, 3.0)
    assert (objectives.itl_ms, objectives.ttft_ms) == (40.0, 900.0)
    assert objectives.snapshot()["itl_slo_source"] == "stated"


def test_auto_follows_from_the_calibrated_model_by_hand() -> None:
    objectives = Objectives(
        config(
            **{"itl_slo_ms": "auto", "ttft_slo_ms": "auto", "l_min_ms": 6.0, "a_ms": 0.5},
            **{"b0": 8, "alpha_ms": 3.0, "prefill_ms_per_token": 0.02, "prefill_free_tokens": 24.0},
        )
    )
    assert objectives.itl_ms == pytest.approx(5 * (6.0 + 0.5))
    assert objectives.ttft_ms == pytest.approx(25 * (6.0 + 0.02 * 1000))
    assert not decode(objectives, 1.0), "a calibrated baseline is not learned over"
    assert objectives.snapshot()["itl_slo_source"] == "auto: baseline 6.5 ms, calibrated"


def test_auto_is_learned_from_steps_of_few_rows_alone() -> None:
    objectives = Objectives(config(itl_slo_ms="auto", ttft_slo_ms="auto"))
    default = (50.0, 2000.0)
    assert (objectives.itl_ms, objectives.ttft_ms) == default
    assert not decode(objectives, 90.0, rows=LOW_ROWS + 1, steps=200)
    assert (objectives.itl_ms, objectives.ttft_ms) == default
    assert "until the baseline is learned" in objectives.snapshot()["itl_slo_source"]
    assert decode(objectives, 20.0)
    assert objectives.itl_ms == 100.0
    # 512 tokens in 30 ms: 1,024 take at most 60.
    prefill(objectives, 30.0, 512)
    assert objectives.ttft_ms == 25 * 60.0
    # 4,096 in 180 ms, 20 of them the step's constant: 40 ms for 1,024 on top of it.
    prefill(objectives, 180.0, 4096)
    assert objectives.ttft_ms == 25 * 60.0
    prefill(objectives, 164.0, 4096)
    assert objectives.ttft_ms == 25 * 56.0
    assert objectives.snapshot()["ttft_slo_source"] == "auto: baseline 56 ms, learned at low load"


def test_a_slow_spell_does_not_loosen_an_objective_and_a_fast_one_tightens_it() -> None:
    objectives = Objectives(config(itl_slo_ms="auto"))
    decode(objectives, 20.0)
    assert not decode(objectives, 60.0, steps=500)
    assert decode(objectives, 10.0, steps=2 * WINDOW_STEPS)
    assert objectives.itl_ms == 50.0


def test_a_stray_fast_step_is_no_baseline() -> None:
    objectives = Objectives(config(itl_slo_ms="auto"))
    for index in range(10 * WINDOW_STEPS):
        objectives.observe(sample(1.0 if index % 4 == 0 else 20.0, batch=2))
    assert objectives.itl_ms == 100.0


def test_short_prompts_say_nothing_of_a_first_token() -> None:
    objectives = Objectives(config(ttft_slo_ms="auto"))
    prefill(objectives, 8.0, 63, steps=100)
    assert objectives.ttft_ms == 2000.0


def test_the_policy_plans_with_what_was_learned() -> None:
    policy = Slo(config(policy="slo", itl_slo_ms="auto", ttft_slo_ms="auto", prefill_free_tokens=0))
    for _ in range(WINDOW_STEPS):
        policy.observe(sample(8.0, batch=2, kv_tokens=100))
    state = policy.snapshot()
    assert (state["itl_slo_ms"], state["ttft_slo_ms"]) == (40.0, 2000.0)
    # The first guess is a quarter of the objective, for which 10 ms now stand.
    assert policy.model.predicted_ms(0, 0) == pytest.approx(10.0)
    policy.enqueue(request(1, prompt_tokens=1000))
    assert policy.decide(view(now_ms=0.0, batch=0, kv_free_tokens=9000)).grants
    for _ in range(WINDOW_STEPS):
        policy.observe(sample(16.0, batch=0, kind="prefill", prefill_tokens=1024))
    assert policy.snapshot()["ttft_slo_ms"] == 400.0
    # 1,000 tokens at the guessed rate take longer than that after 5 s of waiting.
    policy.decide(view(now_ms=5000.0, batch=1, kv_free_tokens=9000))
    policy.end_pass(9000, 9000, None)
    assert policy.lines.late == 1


def test_a_learned_model_survives_a_new_objective() -> None:
    fields = {"l_min_ms": 10.0, "a_ms": 1.0, "prefill_ms_per_token": 0.1}
    model = seasoned(Slo(config(policy="slo", **fields))).model
    for _ in range(50):
        model.observe(sample(26.0, batch=10, kv_tokens=0), 0, 0)
    gain, rows = model.state.gain_decode, model.admits(30, 0)
    model.objective_changed(400.0)
    assert model.state.gain_decode == gain > 1.0
    assert not rows
    assert model.admits(30, 0)


def test_steps_are_left_what_delivery_does_not_take() -> None:
    assert step_objective_ms(50.0, 5.0) == 45.0
    assert step_objective_ms(20.0, 5.0) == 16.0, "a fifth at most"
    assert step_objective_ms(50.0, 0.0) == 50.0


def test_rows_and_chunk_are_planned_within_what_delivery_leaves() -> None:
    fields = {"l_min_ms": 10.0, "a_ms": 1.0, "prefill_ms_per_token": 0.1, "itl_slo_ms": 50.0}
    model = seasoned(Slo(config(policy="slo", **fields, itl_delivery_ms=5.0))).model
    # s = 0.05 at start: 0.848 of 45 ms are 38.2.
    assert model.admits(27, 0)
    assert not model.admits(28, 0)
    assert model.chunk_tokens(10, 0) == 181
    assert model.admits(27, 0, objective_ms=50.0)
    assert not model.admits(28, 0, objective_ms=50.0), "objectives of their own are clients' too"
    assert model.snapshot()["itl_step_goal_ms"] == 45.0
