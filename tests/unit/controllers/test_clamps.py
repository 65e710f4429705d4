"""What the clamps keep busy and let through, against counting and simulation."""

import numpy as np
import pytest
from loop_cases import LENGTH_SPECS, make_loop

from controllers.clamps import (
    Population,
    analyse_clamps,
    batch_exceedance,
    batch_of_naive_h0,
    batch_quantile,
    fits_probability,
    largest_window,
    safe_h0,
    window_for_batch,
)
from controllers.models import LatencyModel, LengthLaw
from controllers.operating_point import equilibrium
from controllers.simulation.request_level import simulate_requests

FOUR = LENGTH_SPECS[:4]


@pytest.mark.parametrize("spec", FOUR)
def test_naive_h0_overshoots_the_knee(spec):
    """H0 = B0 E[L] allows about 4 B0/(1 + CV^2), not B0."""
    law = LengthLaw.parse(spec)
    allowed = batch_of_naive_h0(law, 8.0)
    # Exactly 4 B0/(1 + CV^2 + 1/E[L]).
    assert allowed == pytest.approx(4 * 8.0 / (1 + law.cv**2 + 1 / law.mean), rel=1e-9)
    loop = make_loop(spec, alpha_ms=0.0, h0_tokens=8.0 * law.mean)
    assert equilibrium(loop).batch == pytest.approx(allowed, rel=1e-9)


@pytest.mark.parametrize("spec", FOUR)
def test_safe_h0_holds_the_knee_at_request_level(spec):
    law = LengthLaw.parse(spec)
    h0 = safe_h0(law, 8.0)
    # control.md's (B0 + 1) rbar/2 to within half a token.
    assert h0 == pytest.approx(9 * law.residual_mean / 2 - 0.5, rel=1e-12)
    loop = make_loop(spec, law="fixed", h0_tokens=2 * h0)
    run = simulate_requests(loop, 40_000, seed=0).after(1000)
    # With lengths that spread, a window of eight requests is not many of them long, and the
    # gate's gap exceeds its limit: up to 6 % fewer requests, never more.
    assert 0.93 * 8.0 < run.batch.mean() < 1.02 * 8.0
    if law.cv < 0.6:
        assert run.batch.mean() == pytest.approx(8.0, rel=0.03)


@pytest.mark.parametrize("spec", FOUR)
@pytest.mark.parametrize("count", [1, 3, 10])
def test_fits_probability_counts(spec, count):
    law = LengthLaw.parse(spec)
    sums = law.sample(np.random.default_rng(2), 40_000 * count).reshape(-1, count).sum(axis=1)
    for window in (0.5 * count * law.mean, count * law.mean, 1.4 * count * law.mean):
        got = fits_probability(law, window, count, Population.FRESH)
        assert got == pytest.approx(np.mean(sums <= window), abs=0.01)


def test_fits_probability_exact_cases():
    law = LengthLaw.const(50)
    assert fits_probability(law, 500, 10, Population.FRESH) == pytest.approx(1.0, abs=1e-7)
    assert fits_probability(law, 499, 10, Population.FRESH) == pytest.approx(0.0, abs=1e-7)
    assert fits_probability(law, 10, 0, Population.FRESH) == 1.0
    geometric = LengthLaw.geometric(50)
    assert fits_probability(geometric, 100, 1, Population.FRESH) == pytest.approx(1 - 0.98**100)
    # A geometric request that runs is as good as new.
    assert fits_probability(geometric, 900, 9, Population.STATIONARY) == pytest.approx(
        fits_probability(geometric, 900, 9, Population.FRESH), abs=1e-8
    )


@pytest.mark.parametrize("spec", ["uniform:1:99", "geometric:50", "mix:20@0.5,50@0.3,200@0.2"])
def test_stationary_exceedance_against_simulation(spec):
    """Independent remaining lengths: close, and on the safe side where CV < 1."""
    loop = make_loop(spec, law="fixed", h0_tokens=1600.0)
    run = simulate_requests(loop, 40_000, seed=1).after(2000)
    for batch_max in np.quantile(run.batch, [0.5, 0.9]):
        seen = np.mean(run.batch > batch_max)
        assert seen - 0.05 < batch_exceedance(loop.lengths, 1600.0, batch_max) < seen + 0.15


def test_exceedance_of_constant_lengths_is_pessimistic_in_the_tail():
    loop = make_loop("const:50", law="fixed", h0_tokens=1600.0)
    run = simulate_requests(loop, 20_000, seed=1).after(2000)
    assert batch_exceedance(loop.lengths, 1600.0, 65) > np.mean(run.batch > 65)


@pytest.mark.parametrize("spec", FOUR)
def test_burst_quantile_against_simulation(spec):
    law = LengthLaw.parse(spec)
    bound = batch_quantile(law, 1600.0, 0.05, Population.FRESH)
    rng = np.random.default_rng(4)
    admitted = [
        int(np.searchsorted(np.cumsum(law.sample(rng, 400)), 1600, side="right"))
        for _ in range(2000)
    ]
    assert np.mean(np.array(admitted) > bound) <= 0.05 + 0.015
    assert np.mean(np.array(admitted) > bound - 1) > 0.05 - 0.015


@pytest.mark.parametrize("spec", FOUR)
def test_largest_window_is_the_inverse(spec):
    law = LengthLaw.parse(spec)
    window = largest_window(law, 12, 0.01)
    assert batch_exceedance(law, window, 12, Population.FRESH) <= 0.01
    assert batch_exceedance(law, window + 1, 12, Population.FRESH) > 0.01


def test_clamp_analysis_in_one_case():
    law = LengthLaw.geometric(50)
    latency = LatencyModel(l_min_ms=43, b0=8, alpha_ms=4.3)
    wide = analyse_clamps(latency, law, window_for_batch(law, 8.0), 1600.0)
    assert wide.keeps_busy
    assert wide.min_batch == pytest.approx(8.0)
    assert wide.min_bandwidth_share == pytest.approx(1.0)
    assert wide.max_batch == pytest.approx((1600 - 49) / 50, rel=1e-9)
    worst = max(wide.max_batch, wide.burst_batch)
    assert wide.max_sigma == pytest.approx(1 + 0.1 * (worst - 8), rel=1e-9)
    narrow = analyse_clamps(latency, law, 100.0, 1600.0)
    assert not narrow.keeps_busy
    assert narrow.min_bandwidth_share == pytest.approx((100 - 49) / 50 / 8, rel=1e-6)
    with pytest.raises(ValueError, match="h_min_tokens <= h_max_tokens"):
        analyse_clamps(latency, law, 900.0, 800.0)


def test_stale_baseline_opens_the_window_to_four_h0():
    """sigma at the floor of equation (3) asks for 4 H0; the default H_max stops at 2 H0."""
    from controllers.laws.paper import PaperLaw, PaperLawConfig

    assert PaperLaw(PaperLawConfig(h0_tokens=100)).target(0.2, 1e9) == 400.0
    assert PaperLawConfig(h0_tokens=100).h_max == 200.0


@pytest.mark.parametrize(
    "call",
    [
        lambda law: window_for_batch(law, -1),
        lambda law: batch_quantile(law, 100, 1.5, Population.FRESH),
        lambda law: largest_window(law, 0, 0.1),
        lambda law: fits_probability(law, float("nan"), 1, Population.FRESH),
    ],
)
def test_bad_arguments(call):
    with pytest.raises(ValueError, match="must"):
        call(LengthLaw.const(5))
