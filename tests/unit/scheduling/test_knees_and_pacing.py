"""Ceilings of the batch, learned knees, and how even the prompts are served."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from scheduling_builders import config, sample, seasoned_model

from controllers.models.latency import LatencyModel
from twp_sglang.scheduling.graph_ceiling import FADE, GraphCeiling
from twp_sglang.scheduling.least_squares import Moments, non_negative
from twp_sglang.scheduling.prompt_pacing import (
    RETEST_STEPS,
    WIDENS,
    ChunkBound,
    PromptPacing,
    even_chunk,
)
from twp_sglang.scheduling.self_calibration import Fit, SelfCalibration
from twp_sglang.scheduling.step_model import OnlineStepModel

GUESS = LatencyModel(
    l_min_ms=12.5,
    b0=0.0,
    alpha_ms=0.0,
    a_ms=0.4,
    kappa_ms_per_token=2.5e-4,
    prefill_ms_per_token=0.05,
)


def learned(step_ms: Callable[[int, int, int], float], noise: float = 0.02) -> Fit:
    """The last fit over steps of 1 to 80 rows, a third of them with prompts."""
    rng = random.Random(3)
    calibration = SelfCalibration(GUESS)
    fit = None
    for _ in range(2048):
        rows = rng.randint(1, 80)
        kv, prompt = rows * rng.randint(200, 1500), rng.choice([0, 0, rng.randint(1, 2000)])
        measured = step_ms(rows, kv, prompt) * math.exp(rng.gauss(0, noise))
        fit = calibration.observe(measured, rows, kv, prompt) or fit
    assert fit is not None
    return fit


def test_a_jump_is_learned_where_it_is() -> None:
    fit = learned(lambda rows, kv, prompt: 8.0 + 0.02 * prompt + (9.0 if rows > 32 else 0.0))
    assert fit.jump_rows == 32
    assert fit.jump_ms == pytest.approx(9.0, rel=0.1)
    assert fit.model.alpha_ms == 0.0


def test_a_knee_is_learned_where_it_is() -> None:
    fit = learned(lambda rows, kv, prompt: 10.0 + max(0.0, 1.0 * (rows - 24)))
    assert fit.jump_rows is None
    assert 20 <= fit.model.b0 <= 28
    assert fit.model.alpha_ms + fit.model.a_ms == pytest.approx(1.0, rel=0.1)


def test_no_knee_is_seen_in_noise() -> None:
    fit = learned(lambda rows, kv, prompt: 8.0 + 0.05 * rows + 0.02 * prompt, noise=0.1)
    assert fit.jump_rows is None
    assert fit.model.alpha_ms == 0.0


def test_free_prompt_tokens_are_learned() -> None:
    fit = learned(lambda rows, kv, prompt: 6.0 + 0.02 * max(0, prompt - 350))
    assert 256 <= fit.free_tokens <= 384
    assert fit.model.prefill_ms_per_token == pytest.approx(0.02, rel=0.1)


def test_what_was_never_seen_stays_with_the_guess() -> None:
    calibration = SelfCalibration(GUESS)
    fit = None
    for step in range(64):
        fit = calibration.observe(6.0, 1 + step % 8, 1000 * (1 + step % 8), 0) or fit
    assert fit is not None
    assert fit.model.prefill_ms_per_token == pytest.approx(0.05), "no step had prompts"
    assert fit.model.step_ms(4, 4000) == pytest.approx(6.0, rel=0.05)


def test_non_negative_solution_by_hand() -> None:
    # x + y = 1, x + 2 y = 0 wants y = -1; without y the mean of 1 and 0 is left.
    moments = Moments(2)
    moments.add([1.0, 1.0], 1.0)
    moments.add([1.0, 2.0], 0.0)
    assert non_negative(moments) == pytest.approx([0.5, 0.0])
    assert moments.squared_error([0.5, 0.0]) == pytest.approx(0.5)
    assert non_negative(Moments(2)) is None


def test_a_held_unknown_counts_in_no_error() -> None:
    moments = Moments(2)
    moments.add([1.0, 0.0], 3.0)
    moments.hold(1, 7.0, 0.01)
    assert non_negative(moments) == pytest.approx([3.0, 7.0])
    assert moments.squared_error([3.0, 7.0]) == pytest.approx(0.0)


def flat(rows: int) -> float:
    """3 ms whatever the rows, as under CUDA graphs of a small model."""
    return 3.0


def test_beyond_a_ceiling_only_where_that_makes_more_tokens() -> None:
    ceiling = GraphCeiling(18, jump_ms=9.6)
    # 18 rows in 3 ms are 6 per ms; 12.6 ms must hold more than 79 rows to beat it by 5 %.
    assert not ceiling.worth_it(77, 50.0, flat)
    assert ceiling.worth_it(80, 50.0, flat)
    assert not ceiling.worth_it(80, 12.0, flat), "the objective forbids 12.6 ms"
    assert not ceiling.worth_it(18, 50.0, flat)


def test_a_ceiling_learns_its_jump_and_doubts_it_later() -> None:
    ceiling = GraphCeiling(18)
    assert ceiling.extra_ms(19, 3.0) == 3.0, "twice as long before anything was measured"
    assert ceiling.observe(40, 12.6, 3.0, 3.0)
    assert ceiling.extra_ms(40, 3.0) == pytest.approx(9.6)
    assert ceiling.extra_ms(18, 3.0) == 0.0
    assert not ceiling.observe(10, 3.0, 3.0, 3.0)
    assert ceiling.extra_ms(40, 3.0) == pytest.approx(9.6 - FADE * 6.6)


def test_steps_beyond_a_ceiling_leave_the_gains_alone() -> None:
    model = OnlineStepModel(
        config(l_min_ms=3.0, prefill_ms_per_token=0.02, graph_ceiling_rows=18, itl_slo_ms=50.0)
    )
    for _ in range(100):
        model.observe(sample(12.6, batch=77, kv_tokens=0), 0, 0)
    assert model.state.gain_decode == pytest.approx(1.0)
    assert model.predicted_ms(77, 0) == pytest.approx(12.6)
    assert model.predicted_ms(18, 0) == pytest.approx(3.0)
    assert model.admits(17, 0, 2)
    assert not model.admits(18, 0, 2), "two more would make the step four times as long"
    assert not model.admits(40, 0, 2), "it drains until it is below again"
    assert model.admits(18, 0, 70)


def test_a_knee_gives_way_where_kv_makes_most_of_the_step() -> None:
    knee = {"l_min_ms": 10.0, "b0": 8, "alpha_ms": 2.0, "prefill_ms_per_token": 0.1}
    model = seasoned_model(
        OnlineStepModel(config(**knee, kappa_ms_per_token=1e-4, itl_slo_ms=1000.0))
    )
    # alpha B0 = 16 > c + kappa KV until 60,000 tokens are held.
    assert not model.admits(8, 50_000)
    assert model.admits(8, 70_000)


def test_an_objective_out_of_reach_does_not_mean_one_at_a_time() -> None:
    model = OnlineStepModel(config(l_min_ms=60.0, prefill_ms_per_token=0.05, itl_slo_ms=50.0))
    model.observe(sample(60.0, batch=1, kv_tokens=0), 0, 0)
    assert model.admits(4, 0)
    assert model.snapshot()["itl_slo_reachable"] is False


def test_even_chunk_by_hand() -> None:
    assert even_chunk(6.0, 0.02, 350) == 350, "what is free, where it is worth the constant"
    assert even_chunk(6.0, 0.02, 250) == pytest.approx(1000), "1 ms over 0.05 * 0.02 ms a token"
    # 10 ms a step over 0.05 * 0.02 ms a token.
    assert even_chunk(10.0, 0.02, 0) == pytest.approx(10_000)
    assert even_chunk(10.0, 0.0, 0) == math.inf


def slow_rows(tokens: int) -> float:
    """Decoding takes 20 ms of the step."""
    return 20.0 + 0.02 * tokens


def few_rows(tokens: int) -> float:
    """It takes 1 ms."""
    return 1.0 + 0.02 * tokens


def test_whoever_waits_is_taken_at_once_while_steps_are_mostly_empty() -> None:
    pacing = PromptPacing()
    assert pacing.chunk_tokens(2000, 1500, 437.5, few_rows, 0.0) == 2000
    assert pacing.chunk_tokens(2000, 9000, 437.5, few_rows, 0.0) == 437, "no faster in larger ones"
    assert pacing.chunk_tokens(2000, 9000, 437.5, slow_rows, 0.0) == 2000, (
        "a burst, 2.2 times faster"
    )
    pacing.crowded(5000.0)
    assert pacing.chunk_tokens(2000, 9000, 437.5, slow_rows, 6000.0) == 437, "it waits for rows"
    assert pacing.chunk_tokens(2000, 9000, 437.5, slow_rows, 16_000.0) == 2000
    for _ in range(5000):
        pacing.observe(400, 437.5)
    pacing.observe(875, 437.5)
    assert pacing.chunk_tokens(2000, 1500, 437.5, slow_rows, 0.0) == 437
    assert pacing.chunk_tokens(300, 1500, 437.5, slow_rows, 0.0) == 300, "the objective goes first"


def test_after_long_without_one_a_chunk_as_large_as_allowed_is_tried() -> None:
    pacing = PromptPacing()
    for _ in range(RETEST_STEPS - 1):
        pacing.observe(437, 437.5)
    assert pacing.chunk_tokens(2000, 9000, 437.5, few_rows, 0.0) == 437
    pacing.observe(437, 437.5)
    assert pacing.chunk_tokens(2000, 9000, 437.5, few_rows, 0.0) == 2000
    pacing.observe(2000, 437.5)
    assert pacing.chunk_tokens(2000, 9000, 437.5, few_rows, 0.0) == 437


def test_a_step_beyond_the_objective_bounds_the_next_chunks_for_a_while() -> None:
    bound = ChunkBound()
    bound.observe(4000, 80.0, 50.0)
    assert bound.tokens == 0.75 * 2500
    bound.observe(4000, 900.0, 50.0)
    assert bound.tokens == pytest.approx(0.75 * 2500 * WIDENS), "a pause"
    for _ in range(2000):
        bound.observe(300, 20.0, 50.0)
    assert bound.tokens > 5000
    bound.observe(400, 80.0, 50.0)
    assert bound.tokens > 5000, "small chunks are for the model"
