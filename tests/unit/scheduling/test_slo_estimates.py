"""What policy slo learns while serving: step model, prompt rate, lengths, memory."""

from __future__ import annotations

import math
import random

import pytest
from scheduling_builders import config, sample, seasoned_model

from controllers.models.latency import LatencyModel
from twp_sglang.scheduling.model_learning import EXTRAPOLATE, ROWS_EXTRAPOLATE
from twp_sglang.scheduling.prefill_rate import MEMORY_MS, PRIOR_MS, PrefillRate
from twp_sglang.scheduling.self_calibration import Fit, SelfCalibration
from twp_sglang.scheduling.step_model import OnlineStepModel

TRUE = LatencyModel(
    l_min_ms=6.0,
    b0=0.0,
    alpha_ms=0.0,
    a_ms=0.02,
    kappa_ms_per_token=4e-5,
    prefill_ms_per_token=0.02,
)


GUESS = LatencyModel(l_min_ms=12.5, b0=0.0, alpha_ms=0.0, a_ms=0.4, prefill_ms_per_token=0.05)
"""Two to twenty times too slow, as a first guess is on a fast machine."""


def calibrated(steps: int, noise: float = 0.0, saturated: int = 0) -> tuple[Fit | None, list[Fit]]:
    """Fits made over a ramp of load, after it ``saturated`` like steps."""
    rng = random.Random(1)
    calibration = SelfCalibration(GUESS)
    fits = []
    for step in range(steps + saturated):
        held = step >= steps
        batch = 100 if held else 1 + step * 100 // steps
        kv = 90_000 if held else batch * rng.randint(200, 1500)
        prefill = 1500 if held else rng.choice([0, 0, 0, rng.randint(1, 2000)])
        step_ms = TRUE.step_ms(batch, kv, prefill) * math.exp(rng.gauss(0, noise))
        fit = calibration.observe(step_ms, batch, kv, prefill)
        if fit is not None:
            fits.append(fit)
    return (fits[-1] if fits else None), fits


def test_a_ramp_of_load_gives_the_model_back() -> None:
    # Bucket means of an affine function lie on it: what is left is the hold of the guess.
    fit, _ = calibrated(512)
    assert fit is not None
    for name in ("l_min_ms", "a_ms", "kappa_ms_per_token", "prefill_ms_per_token"):
        assert getattr(fit.model, name) == pytest.approx(getattr(TRUE, name), rel=0.02), name
    assert fit.residual < 2e-3
    assert (fit.free_tokens, fit.jump_rows, fit.model.alpha_ms) == (0.0, None, 0.0)


def test_noise_costs_a_few_percent_of_the_prediction() -> None:
    fit, _ = calibrated(1024, noise=0.05)
    assert fit is not None
    for batch, kv, prefill in ((10, 8000, 0), (100, 90_000, 0), (60, 50_000, 1500)):
        predicted = fit.model.step_ms(batch, kv, prefill)
        assert predicted == pytest.approx(TRUE.step_ms(batch, kv, prefill), rel=0.08)


def test_saturation_does_not_wash_out_what_was_seen_before() -> None:
    fit, fits = calibrated(512, noise=0.03, saturated=8000)
    assert fit is not None
    assert len(fits) > 5
    assert fit.model.step_ms(4, 2000) == pytest.approx(TRUE.step_ms(4, 2000), rel=0.1)


def test_steps_that_never_differ_give_no_model() -> None:
    calibration = SelfCalibration(GUESS)
    assert not any(calibration.observe(10.0, 8, 4000, 0) for _ in range(600))


def test_a_pause_is_no_sample() -> None:
    calibration = SelfCalibration(GUESS)
    for _ in range(5):
        calibration.observe(10.0, 8, 4000, 0)
    calibration.observe(5000.0, 8, 4000, 0)
    assert calibration.samples == 5


def given_model(**fields: float) -> OnlineStepModel:
    values = {"l_min_ms": 10.0, "a_ms": 1.0, "prefill_ms_per_token": 0.1, "itl_slo_ms": 50.0}
    return seasoned_model(OnlineStepModel(config(**{**values, **fields})))


def test_rows_and_chunk_by_hand() -> None:
    model = given_model()
    # s = 0.05 at start: theta = exp(-3.3 * 0.05) = 0.848, so 42.39 ms may be planned for.
    assert model.theta == pytest.approx(math.exp(-0.165))
    assert model.admits(31, 0)
    assert not model.admits(32, 0), "10 + 33 ms"
    # 10 rows: 20 ms; (42.39 - 20) / 0.1 tokens.
    assert model.chunk_tokens(10, 0) == 223
    assert model.chunk_tokens(40, 0) == 32, "prompts always move"
    assert model.chunk_tokens(0, 0) == 8192, "nobody to protect"


def test_pauses_of_the_process_do_not_shut_the_window() -> None:
    """Every third step three times too long, as on a crowded host: no smaller batch helps."""
    model = given_model()
    for step in range(600):
        pause = 3.0 if step % 3 == 0 else 1.0
        model.observe(sample(20.0 * pause, step=step, batch=10, kv_tokens=0), 1000, 5)
    assert model.theta == 0.5
    assert model.admits(10, 0), "21 of 25 ms"
    assert not model.admits(20, 0)


def test_a_batch_of_one_is_never_all_there_is() -> None:
    """Whatever the margin and the prompts leave: rows that hardly lengthen the step get in."""
    model = given_model(l_min_ms=40.0, a_ms=0.5, itl_slo_ms=50.0)
    for step in range(600):
        pause = 3.0 if step % 3 == 0 else 1.0
        model.observe(
            sample(41.0 * pause, step=step, batch=1, kv_tokens=0, prefill_tokens=200), 1000, 50
        )
    assert model.theta == 0.5
    rows = next(batch for batch in range(1, 200) if not model.admits(batch, 0))
    # _reach doubled the goal: 2 * 40.5 ms, of which the prompts have up to half.
    assert rows >= 20
    assert model.chunk_tokens(rows, 0) > 32, "and prompts move with them"


def test_one_very_long_context_locks_nobody_out() -> None:
    model = given_model(kappa_ms_per_token=4e-4)
    kv = 100_000  # 10 + 1 + 40 ms for its row alone, of 42 that may be planned for
    assert not model.admits(1, kv), "nobody knows that it is one row"
    rows = next(batch for batch in range(1, 200) if not model.admits(batch, kv, longest=lambda: kv))
    assert rows == 13, "50 + 13 <= 1.25 * 51"
    assert not model.admits(1, kv, longest=lambda: kv // 10), "ten rows share it: too many"


def test_free_prompt_tokens_come_on_top() -> None:
    assert given_model(prefill_free_tokens=100).chunk_tokens(10, 0) == 323
    assert given_model(prefill_free_tokens=100).predicted_ms(10, 0, 100) == 20.0


def test_the_knee_stops_rows_where_more_would_give_less() -> None:
    # alpha B0 = 16 > c: beyond B0 the tokens per second fall.
    knee = {"b0": 8, "alpha_ms": 2.0, "a_ms": 0.0, "itl_slo_ms": 1000.0}
    assert given_model(**knee).admits(7, 0)
    assert not given_model(**knee).admits(8, 0)


def test_a_slower_machine_is_followed_within_two_hundred_steps() -> None:
    model = given_model()
    for _ in range(200):
        model.observe(sample(1.3 * 20.0, batch=10, kv_tokens=0), 0, 0)
    assert model.predicted_ms(10, 0) == pytest.approx(26.0, rel=0.03)


def test_without_a_profile_it_learns_and_stays_near_what_it_saw() -> None:
    model = OnlineStepModel(config(itl_slo_ms=50.0, b0=8))
    assert model.source == "learning"
    assert not model.admits(ROWS_EXTRAPOLATE * 8, 0)
    rng = random.Random(2)
    for step in range(300):
        batch = 1 + step // 6
        kv, prefill = batch * rng.randint(300, 900), rng.choice([0, 0, 300, 900])
        duration = TRUE.step_ms(batch, kv, prefill)
        model.observe(sample(duration, batch=batch, kv_tokens=kv, prefill_tokens=prefill), 0, 0)
    assert model.source == "learned"
    assert model.predicted_ms(40, 20_000) == pytest.approx(TRUE.step_ms(40, 20_000), rel=0.05)
    assert not model.admits(math.ceil(ROWS_EXTRAPOLATE * 50), 0)
    assert model.chunk_tokens(10, 5000) <= EXTRAPOLATE * 900


def test_prompt_rate_starts_at_the_models_and_follows_the_steps() -> None:
    rate = PrefillRate()
    assert rate.tokens_per_ms(40.0) == 40.0
    rate.observe(1000.0, 20_000)
    assert rate.tokens_per_ms(40.0) == (20_000 + 40_000) / 2000
    for _ in range(200):
        rate.observe(1000.0, 20_000)
    # Fixed point: sums of a geometric series with ratio exp(-1/10).
    total = 1.0 / (1.0 - math.exp(-1000.0 / MEMORY_MS))
    expected = (20_000 * total + 40 * PRIOR_MS) / (1000 * total + PRIOR_MS)
    assert rate.tokens_per_ms(40.0) == pytest.approx(expected, rel=1e-6)
