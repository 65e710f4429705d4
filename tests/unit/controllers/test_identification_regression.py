"""The regression engine against plain least squares and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.identification.bootstrap import bootstrap, joint_interval, knee_profile
from controllers.identification.correlation import (
    autocorrelation,
    ljung_box,
    variance_inflation,
)
from controllers.identification.knee_moments import Design, KneeMoments, Terms
from controllers.identification.samples import DecodeSamples
from controllers.identification.segmented import best_knee, fit_segmented, parabola_minimum

ALL = Terms(a=True, knee=True, kv=True, prefill=True)
PLAIN = Terms(a=False, knee=True, kv=False, prefill=False)


def samples(seed: int, n: int = 400, b0: float = 8.0, noise: float = 0.5) -> DecodeSamples:
    rng = np.random.default_rng(seed)
    batch = rng.integers(1, 20, n).astype(float)
    kv = batch * rng.uniform(50, 400, n)
    prefill = np.where(rng.random(n) < 0.3, rng.integers(1, 512, n), 0).astype(float)
    step = 40 + 0.1 * batch + 3 * np.maximum(batch - b0, 0) + 0.001 * kv + 0.02 * prefill
    return DecodeSamples(np.arange(n), batch, kv, prefill, step + noise * rng.normal(size=n))


@given(
    seed=st.integers(0, 1000),
    # With a knee at 1, the smallest batch, the three columns of B are one too many: no solution
    # is the only one.
    b0=st.floats(1.5, 17.0),
    used=st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
)
@settings(max_examples=50, deadline=None)
def test_moments_give_the_least_squares_solution(
    seed: int, b0: float, used: tuple[bool, bool, bool, bool]
) -> None:
    data, terms = samples(seed), Terms(*used)
    rng = np.random.default_rng(seed)
    weight = rng.uniform(0.1, 2.0, len(data))
    design = Design.of(data)
    moments = KneeMoments(design, data.step_ms, weight)
    scaled, rss = moments.solve(terms, np.array([b0]))
    found = design.physical(terms, scaled)[0]
    columns = [
        np.ones(len(data)),
        data.batch,
        np.maximum(data.batch - b0, 0),
        data.kv_tokens,
        data.prefill_tokens,
    ]
    plain = np.column_stack([columns[i] for i in terms.columns]) * np.sqrt(weight)[:, None]
    target = data.step_ms * np.sqrt(weight)
    expected, *_ = np.linalg.lstsq(plain, target, rcond=None)
    np.testing.assert_allclose(found[list(terms.columns)], expected, rtol=1e-5, atol=1e-7)
    residual = target - plain @ expected
    np.testing.assert_allclose(rss[0], residual @ residual, rtol=1e-6)


@pytest.mark.parametrize("b0", [1.6, 5.0, 8.37, 16.2])
def test_best_knee_is_the_global_minimum(b0: float) -> None:
    data = samples(1, b0=b0, n=2000)
    moments = KneeMoments(Design.of(data), data.step_ms, np.ones(len(data)))
    found = best_knee(moments, ALL)
    brute = np.linspace(1.01, 16.99, 3000)
    _, rss = moments.solve(ALL, brute)
    _, at_found = moments.solve(ALL, np.array([found]))
    assert at_found[0] <= rss.min() * (1 + 1e-9)
    assert found == pytest.approx(b0, abs=0.5)


def test_profile_is_lowest_at_the_estimate_and_covers_it() -> None:
    data = samples(3, n=1500)
    fit = fit_segmented(data, ALL)
    profile = knee_profile(fit, tau=1.0)
    low, high = profile.interval()
    assert low < fit.b0 < high
    assert profile.b0[int(np.argmin(profile.deviance))] == pytest.approx(fit.b0, abs=0.05)
    assert profile.deviance[0] > 3.84
    assert profile.deviance[-1] > 3.84


def test_bootstrap_spread_matches_repeated_experiments() -> None:
    """The reference for a standard error: many independent data sets."""
    repeats = []
    spreads = []
    for seed in range(60):
        rng = np.random.default_rng(100 + seed)
        base = samples(7, n=600, noise=0.0)
        step = base.step_ms + 0.8 * rng.normal(size=600)
        data = DecodeSamples(base.row, base.batch, base.kv_tokens, base.prefill_tokens, step)
        fit = fit_segmented(data, ALL)
        repeats.append([*fit.coefficients, fit.b0])
        if seed < 10:
            found = bootstrap(fit, step, 1.0, rng, 300)
            spreads.append([*found.coefficients.std(axis=0), found.b0.std()])
    ratio = np.mean(spreads, axis=0) / np.std(repeats, axis=0)
    assert np.all((ratio > 0.8) & (ratio < 1.5)), ratio


def test_gross_outliers_get_no_weight() -> None:
    data = samples(4, n=1000)
    bad = np.arange(0, 1000, 20)
    step = data.step_ms.copy()
    step[bad] *= 4
    spoilt = DecodeSamples(data.row, data.batch, data.kv_tokens, data.prefill_tokens, step)
    clean, dirty = fit_segmented(data, ALL), fit_segmented(spoilt, ALL)
    assert np.all(dirty.robust[bad] == 0)
    np.testing.assert_allclose(dirty.coefficients[0], clean.coefficients[0], rtol=5e-3)
    assert dirty.b0 == pytest.approx(clean.b0, abs=0.1)


def test_scatter_that_grows_with_the_step_is_seen() -> None:
    data = samples(5, n=3000, noise=0.0)
    rng = np.random.default_rng(5)
    step = data.step_ms * (1 + 0.05 * rng.normal(size=len(data)))
    fit = fit_segmented(
        DecodeSamples(data.row, data.batch, data.kv_tokens, data.prefill_tokens, step), ALL
    )
    relative = fit.scatter_ms / fit.fitted_ms
    assert relative.max() / relative.min() < 1.25
    assert np.median(relative) == pytest.approx(0.05, rel=0.1)


def test_joint_interval_holds_all_columns_together() -> None:
    values = np.random.default_rng(0).normal(size=(4000, 5))
    low, high = joint_interval(values)
    inside = np.mean(np.all((values >= low) & (values <= high), axis=1))
    assert inside == pytest.approx(0.95, abs=0.01)
    assert np.all(high > 2.3)  # one column alone would need 1.96


def test_parabola() -> None:
    grid = np.array([0.0, 1.0, 2.5, 4.0])
    assert parabola_minimum(grid, (grid - 1.7) ** 2) == pytest.approx(1.7)
    assert parabola_minimum(grid, grid) == 0.0
    assert parabola_minimum(grid, np.zeros(4)) == 0.0


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_correlation_numbers(rho: float) -> None:
    rng = np.random.default_rng(1)
    x = np.zeros(20_000)
    shocks = rng.normal(size=x.size) * np.sqrt(1 - rho**2)
    for i in range(1, x.size):
        x[i] = rho * x[i - 1] + shocks[i]
    assert autocorrelation(x, 1)[0] == pytest.approx(rho, abs=0.03)
    assert variance_inflation(x) == pytest.approx((1 + rho) / (1 - rho), rel=0.15)
    assert (ljung_box(x)[1] < 1e-6) == (rho > 0)


def test_constant_residuals_have_no_correlation() -> None:
    assert np.all(autocorrelation(np.ones(100), 5) == 0)
    assert ljung_box(np.zeros(100))[1] == 1.0


def test_plain_knee_without_other_terms() -> None:
    rng = np.random.default_rng(2)
    batch = rng.integers(1, 20, 800).astype(float)
    zero = np.zeros_like(batch)
    step = 43 + 4.3 * np.maximum(batch - 8, 0) + 0.3 * rng.normal(size=800)
    fit = fit_segmented(DecodeSamples(np.arange(800), batch, zero, zero, step), PLAIN)
    assert fit.b0 == pytest.approx(8, abs=0.1)
    assert fit.coefficients[3] == 0
    assert PLAIN.describe() == "l = c + alpha (B - B0)+"
