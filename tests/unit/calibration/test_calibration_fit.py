"""Known step times go in; l_min, B0, alpha and the prefill cost must come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from twp_sglang.calibration.decode_fit import FitRefused, fit_decode
from twp_sglang.calibration.prefill_fit import fit_prefill
from twp_sglang.calibration.samples import DecodePoint, DecodeSteps, PrefillProbe, undisturbed

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def sweep(
    step_ms: Callable[[float, float], float],
    sizes: Sequence[int] = SIZES,
    contexts: Sequence[int] = (64,),
    noise: float = 0.02,
    rounds: int = 3,
    steps: int = 32,
    drift: float = 0.0,
    seed: int = 1,
) -> list[DecodePoint]:
    """Visits of every size in shuffled order; ``drift`` scatters whole visits."""
    rng = np.random.default_rng(seed)
    points = []
    for round_ in range(rounds):
        tasks = [(b, c) for b in sizes for c in contexts]
        for place in rng.permutation(len(tasks)):
            batch, context = tasks[place]
            kv = batch * (context + np.arange(steps, dtype=np.float64))
            level = 1.0 + drift * rng.standard_normal()
            times = np.array([step_ms(batch, k) for k in kv]) * level
            times *= 1.0 + noise * rng.standard_normal(steps)
            points.append(DecodePoint(batch, context, round_, DecodeSteps(times, kv, 0)))
    return points


def knee(batch: float, kv: float) -> float:
    return 40.0 + 3.0 * max(batch - 8.0, 0.0)


def test_knee_is_recovered() -> None:
    fit = fit_decode(sweep(knee), min_scaling=0.5)
    assert fit.shape == "knee"
    assert fit.b0 == 8
    assert fit.l_min_ms == pytest.approx(40.0, rel=0.02)
    assert fit.alpha_ms == pytest.approx(3.0, rel=0.06)
    assert fit.intervals["b0"].lo <= 8.0 <= fit.intervals["b0"].hi
    assert fit.noise_percent == pytest.approx(2.0, rel=0.4)
    assert fit.x == pytest.approx(3.0 * fit.b0 / fit.l_min_ms, rel=0.1)
    assert any("throughput still rises" in w for w in fit.warnings)  # x = 0.6


def test_throughput_peak_is_not_called_rising() -> None:
    fit = fit_decode(sweep(lambda b, kv: 40.0 + 12.0 * max(b - 8.0, 0.0)), min_scaling=0.5)
    assert fit.x is not None
    assert fit.x > 1
    assert not any("throughput still rises" in w for w in fit.warnings)


def test_l_min_is_at_the_knee_where_the_step_rises_below_it() -> None:
    fit = fit_decode(
        sweep(lambda b, kv: 30.0 + 0.5 * b + 3.0 * max(b - 12.0, 0.0)), min_scaling=0.5
    )
    assert fit.shape == "knee"
    assert fit.l_min_ms == pytest.approx(36.0, rel=0.03)
    assert fit.below_ms == pytest.approx(0.5, rel=0.2)
    assert fit.alpha_ms == pytest.approx(3.5, rel=0.1)


def test_a_fast_lone_request_does_not_set_the_baseline() -> None:
    def jump(batch: float, kv: float) -> float:
        return 20.0 if batch == 1 else knee(batch, kv)

    fit = fit_decode(sweep(jump), min_scaling=0.5)
    assert fit.l_min_ms == pytest.approx(40.0, rel=0.03)
    assert fit.b0 == 8
    assert any("batch 1 was left out" in w for w in fit.warnings)


def test_kappa_needs_varied_contexts_and_is_then_recovered() -> None:
    def attention(batch: float, kv: float) -> float:
        return knee(batch, kv) + 0.002 * kv

    fit = fit_decode(sweep(attention, contexts=(64, 512)), min_scaling=0.5)
    assert fit.model is not None
    assert fit.model.kappa_ms_per_token == pytest.approx(0.002, rel=0.15)
    assert fit.b0 == 8
    alone = fit_decode(sweep(attention), min_scaling=0.5)
    assert alone.model is not None
    assert alone.model.kappa_ms_per_token == 0.0
    assert any("KV tokens move with the batch only" in w for w in alone.warnings)


def test_a_few_visits_at_a_longer_context_tell_kappa_and_leave_the_curve_alone() -> None:
    def attention(batch: float, kv: float) -> float:
        return 6.0 + 0.01 * batch + 1e-4 * kv

    points = sweep(attention, noise=0.01)
    points += sweep(attention, sizes=(8, 16, 32), contexts=(512,), noise=0.01, seed=2)
    fit = fit_decode(points, min_scaling=0.5)
    assert fit.predicts is not None
    assert fit.predicts.kappa_ms_per_token == pytest.approx(1e-4, rel=0.15)
    assert fit.predicts.step_ms(20, 30_000) == pytest.approx(attention(20, 30_000), rel=0.03)
    alone = fit_decode(sweep(attention, noise=0.01), min_scaling=0.5)
    assert (fit.b0, fit.shape) == (alone.b0, alone.shape)
    assert fit.l_min_ms == pytest.approx(alone.l_min_ms, rel=0.01)
    assert fit.context_tokens == alone.context_tokens


def test_a_knee_in_doubt_still_predicts_what_was_measured() -> None:
    def nearly_flat(batch: float, kv: float) -> float:
        return 6.0 + 0.005 * batch

    fit = fit_decode(sweep(nearly_flat, noise=0.03), min_scaling=0.5)
    assert fit.shape == "unresolved"
    assert fit.model is None
    assert fit.predicts is not None
    for batch in (1, 16, 32):
        assert fit.predicts.step_ms(batch, 64 * batch) == pytest.approx(
            nearly_flat(batch, 0), rel=0.02
        )


def test_line_without_a_knee_says_where_scaling_ends() -> None:
    # From B to 2B, throughput grows by less than sqrt(2) above B = c / (sqrt(2) a) = 7.07.
    fit = fit_decode(sweep(lambda b, kv: 20.0 + 2.0 * b), min_scaling=0.5)
    assert fit.shape == "line"
    assert fit.b0 == 8
    assert fit.l_min_ms == pytest.approx(20.0 + 2.0 * fit.b0, rel=0.03)
    assert fit.alpha_ms == pytest.approx(2.0, rel=0.1)
    assert any("without a knee" in w and "--min-scaling" in w for w in fit.warnings)


def test_flat_curve_gives_the_largest_batch_as_a_lower_bound_and_no_alpha() -> None:
    fit = fit_decode(sweep(lambda b, kv: 25.0), min_scaling=0.5)
    assert fit.shape == "flat"
    assert fit.b0 == 32
    assert fit.alpha_ms is None
    assert any("lower bound" in w for w in fit.warnings)


@pytest.mark.parametrize("seed", range(3))
def test_drift_between_visits_widens_and_does_not_mislead(seed: int) -> None:
    fit = fit_decode(sweep(knee, drift=0.03, rounds=4, seed=seed), min_scaling=0.5)
    assert fit.l_min_ms == pytest.approx(40.0, rel=0.06)
    if fit.shape == "knee":
        assert fit.intervals["b0"].lo <= 8.0 <= fit.intervals["b0"].hi


def test_disturbed_visits_are_left_out_and_told() -> None:
    points = sweep(knee)
    slowed = [
        DecodePoint(p.batch, 64, p.round, DecodeSteps(4.0 * p.steps.step_ms, p.steps.kv_tokens, 0))
        if p.round == 1
        else p
        for p in points
    ]
    assert len(undisturbed(slowed)) == 2 * len(SIZES)
    fit = fit_decode(slowed, min_scaling=0.5)
    assert fit.shape == "knee"
    assert fit.l_min_ms == pytest.approx(40.0, rel=0.03)
    assert any("10 of 30 visits" in w for w in fit.warnings)


def test_one_batch_size_is_refused() -> None:
    with pytest.raises(FitRefused, match=r"batch sizes measured: 8; .* fewer than 4"):
        fit_decode(sweep(knee, sizes=(8,), rounds=20), min_scaling=0.5)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(FitRefused, match="timed decode steps"):
        fit_decode(sweep(knee, rounds=1, steps=10), min_scaling=0.5)


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(FitRefused, match="none"):
        fit_decode([], min_scaling=0.5)


def test_prefill_tells_tokens_from_chunks() -> None:
    rng = np.random.default_rng(3)
    probes = [
        PrefillProbe(n, -(-n // 64), (5.0 * -(-n // 64) + 0.4 * n) * rng.normal(1, 0.02), 4)
        for n in (16, 32, 64, 128, 256)
        for _ in range(3)
    ]
    fit = fit_prefill(probes)
    assert fit is not None
    assert fit.prefill_ms_per_token == pytest.approx(0.4, rel=0.1)
    assert fit.chunk_ms == pytest.approx(5.0, rel=0.25)
    assert fit.lo <= fit.prefill_ms_per_token <= fit.hi


def test_prefill_of_one_length_is_not_fitted() -> None:
    assert fit_prefill([PrefillProbe(64, 1, 30.0, 4)] * 5) is None


FREE, PER_TOKEN, CHUNK = 350, 0.02, 512
"""Of an H100 under Llama-3.1 8B (twp_sglang/step_profiles)."""


def memory_bound(tokens: int) -> PrefillProbe:
    sizes = [CHUNK] * (tokens // CHUNK) + [tokens % CHUNK]
    paid = sum(max(size - FREE, 0) for size in sizes)
    return PrefillProbe(tokens, -(-tokens // CHUNK), PER_TOKEN * paid, 4)


@pytest.mark.parametrize("seed", range(3))
def test_prompt_tokens_that_cost_nothing_are_told_from_the_slope(seed: int) -> None:
    rng = np.random.default_rng(seed)
    probes = [
        replace(p, prefill_ms=p.prefill_ms * rng.normal(1, 0.03) + rng.normal(0, 0.05))
        for n in (128, 256, 384, 512, 1024, 2048)
        for p in [memory_bound(n)] * 6
    ]
    fit = fit_prefill(probes, chunk_tokens=CHUNK)
    assert fit is not None
    assert fit.free_tokens == pytest.approx(FREE, abs=30)
    assert fit.chunk_ms == 0.0
    for tokens in (384, 512, 2048):
        truth = memory_bound(tokens)
        expected = fit.expected_ms(tokens, truth.chunks, CHUNK)
        assert expected == pytest.approx(truth.prefill_ms, rel=0.1, abs=0.2)


def test_free_tokens_are_not_claimed_where_a_chunk_costs_something() -> None:
    rng = np.random.default_rng(1)
    probes = [
        PrefillProbe(n, -(-n // 64), (2.0 * -(-n // 64) + 0.4 * n) * rng.normal(1, 0.05), 4)
        for n in (16, 32, 64, 128, 256)
        for _ in range(6)
    ]
    fit = fit_prefill(probes, chunk_tokens=64)
    assert fit is not None
    assert fit.free_tokens == 0.0
    assert fit.expected_ms(128, 2, 64) == pytest.approx(4.0 + 51.2, rel=0.05)
