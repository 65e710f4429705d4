"""Equilibria: the closed forms, and rest points of the laws themselves."""

import numpy as np
import pytest
from loop_cases import LENGTH_SPECS, make_loop

from controllers.operating_point import (
    Regime,
    equilibrium,
    gate_gap,
    queue_depth,
    steady_sample,
)

FOUR = LENGTH_SPECS[:4]


@pytest.mark.parametrize("spec", FOUR)
@pytest.mark.parametrize("alpha", [1.0, 4.3, 12.0])
@pytest.mark.parametrize("h0", [400.0, 1600.0])
def test_paper_equilibrium_solves_the_quadratic(spec, alpha, h0):
    loop = make_loop(spec, alpha_ms=alpha, h0_tokens=h0)
    point = equilibrium(loop)
    a, x = alpha / 43.0, alpha * 8.0 / 43.0
    rbar = loop.lengths.residual_mean
    assert point.mean_remaining_tokens == rbar
    if 2 * h0 / rbar <= 8.0 * (1 + 1e-9):
        assert point.regime is Regime.IDLE
        assert (point.sigma, point.window_tokens) == pytest.approx((1.0, 2 * h0))
        assert point.loop_gain == 0.0
    else:
        assert point.regime is Regime.ACTIVE
        residual = point.sigma**2 + (x - 1) * point.sigma - 2 * a * h0 / rbar
        assert residual == pytest.approx(0.0, abs=1e-9)
        assert point.window_tokens == pytest.approx(2 * h0 / point.sigma, rel=1e-12)
        assert point.loop_gain == pytest.approx(a * point.batch / point.sigma, rel=1e-9)
    assert point.batch == pytest.approx(point.window_tokens / rbar, rel=1e-12)


@pytest.mark.parametrize("spec", FOUR)
def test_offset_above_l_min_depends_on_the_length_law(spec):
    """No integral action: four laws of equal parameters rest at different slowdowns."""
    others = {equilibrium(make_loop(s)).sigma for s in FOUR if s != spec}
    assert equilibrium(make_loop(spec)).sigma not in others


@pytest.mark.parametrize("spec", FOUR)
@pytest.mark.parametrize(
    "case",
    [
        {"law": "paper", "h0_tokens": 800.0},
        {"law": "paper", "h0_tokens": 800.0, "queue": 4.0},
        {"law": "paper", "h0_tokens": 800.0, "a_ms": 0.4, "kappa": 2e-3, "prompt_tokens": 200},
        {"law": "regulated", "h_max_tokens": 5000.0},
        {"law": "regulated", "a_ms": 1.0, "sigma_ref": 1.5, "h_max_tokens": 5000.0},
        {"law": "predictive", "itl_objective_ms": 60.0, "h_max_tokens": 5000.0},
        {
            "law": "predictive",
            "itl_objective_ms": 80.0,
            "kappa": 2e-3,
            "prefill": 0.02,
            "prompt_tokens": 200,
            "h_max_tokens": 5000.0,
        },
    ],
)
def test_the_law_itself_rests_at_the_equilibrium(spec, case):
    """Feed the law the sample of its own rest point: the window must not move."""
    loop = make_loop(spec, **case)
    point = equilibrium(loop)
    assert point.regime is Regime.ACTIVE
    law = loop.make_law()
    state = law.initial()._replace(window_tokens=point.window_tokens)
    if law.name == "predictive":
        state = state._replace(
            residual_var=0.0,
            row_tokens=loop.lengths.residual_mean,
            row_kv_tokens=loop.kv_per_request,
            prefill_per_step=point.batch / loop.lengths.mean * loop.prompt_tokens,
        )
    sample = steady_sample(loop, point.window_tokens, point.batch, point.step_ms, queue_depth(loop))
    window, _ = law.step(sample, state)
    assert window == pytest.approx(point.window_tokens, rel=1e-9)


@pytest.mark.parametrize("spec", FOUR)
def test_regulated_rests_at_its_reference_whatever_the_lengths(spec):
    point = equilibrium(make_loop(spec, law="regulated", sigma_ref=1.1, h_max_tokens=5000.0))
    assert point.sigma == pytest.approx(1.1, rel=1e-12)


def test_predictive_rests_at_its_margin_below_the_objective():
    point = equilibrium(make_loop(law="predictive", itl_objective_ms=60.0))
    assert point.step_ms == pytest.approx(0.97 * 60.0, rel=1e-9)


def test_predictive_stops_at_the_knee_where_more_rows_lower_bandwidth():
    point = equilibrium(make_loop(law="predictive", itl_objective_ms=200.0, alpha_ms=10.0))
    assert point.batch == pytest.approx(8.0)


def test_queue_scales_the_target():
    half = equilibrium(make_loop(queue=8.0, h0_tokens=300.0))
    assert half.window_tokens * half.sigma == pytest.approx(1.5 * 300.0)
    assert equilibrium(make_loop(queue=0.0)).window_tokens == pytest.approx(400.0)


def test_clamps_hold_the_window():
    low = equilibrium(make_loop(h0_tokens=400, h_min_tokens=700))
    assert (low.regime, low.window_tokens) == (Regime.CLAMPED_MIN, 700)
    high = equilibrium(make_loop(h0_tokens=400, h_max_tokens=500))
    assert (high.regime, high.window_tokens) == (Regime.CLAMPED_MAX, 500)


def test_laws_without_rest():
    assert equilibrium(make_loop(law="fixed", h0_tokens=500)).regime is Regime.OPEN_LOOP
    assert equilibrium(make_loop(law="aimd")).regime is Regime.CYCLING
    # Gradient2's baseline drifts up to the latency that it should judge.
    assert equilibrium(make_loop(law="gradient2")).regime is Regime.CLAMPED_MAX


@pytest.mark.parametrize("spec", FOUR)
def test_gate_gap_is_the_length_biased_half(spec):
    loop = make_loop(spec)
    law = loop.lengths
    assert gate_gap(law) == pytest.approx((law.second_moment / law.mean - 1) / 2, rel=1e-12)
    fixed = make_loop(spec, law="fixed", h0_tokens=1600.0, h_max_tokens=1600.0)
    assert equilibrium(fixed, gated=True).batch == pytest.approx(
        1600.0 / law.residual_mean - 1 + 1 / law.residual_mean, rel=1e-12
    )


@pytest.mark.parametrize("sigma", np.linspace(1.01, 3.0, 5))
def test_gated_equilibrium_is_consistent(sigma):
    loop = make_loop("uniform:1:99", alpha_ms=6.0, h0_tokens=500.0 * sigma)
    point = equilibrium(loop, gated=True)
    assert point.window_tokens * point.sigma == pytest.approx(2 * 500.0 * sigma, rel=1e-12)
    expected = (point.window_tokens - gate_gap(loop.lengths)) / loop.lengths.residual_mean
    assert point.batch == pytest.approx(expected, rel=1e-12)
