"""Fluid and request-level simulation against the closed forms and each other."""

import numpy as np
import pytest
from loop_cases import LENGTH_SPECS, make_loop

from controllers.margins import margins
from controllers.operating_point import equilibrium, gate_gap
from controllers.simulation.fluid import simulate_fluid
from controllers.simulation.request_level import simulate_requests

FOUR = LENGTH_SPECS[:4]


@pytest.mark.parametrize("spec", FOUR)
@pytest.mark.parametrize(
    "case",
    [
        {"h0_tokens": 800.0},
        {"h0_tokens": 800.0, "a_ms": 0.3, "kappa": 1e-3, "prompt_tokens": 100.0},
        {"law": "regulated", "k": 0.02, "h_max_tokens": 9000.0},
        {"law": "predictive", "itl_objective_ms": 70.0, "h_max_tokens": 9000.0},
    ],
)
def test_fluid_rests_at_the_equilibrium(spec, case):
    loop = make_loop(spec, **case)
    assert margins(loop).stable
    point = equilibrium(loop)
    run = simulate_fluid(loop, 4000).after(3900)
    np.testing.assert_allclose(run.window_tokens, point.window_tokens, rtol=1e-5)
    np.testing.assert_allclose(run.batch, point.batch, rtol=1e-5)
    np.testing.assert_allclose(run.sigma, point.sigma, rtol=1e-5)


@pytest.mark.parametrize("spec", FOUR)
@pytest.mark.parametrize("alpha", [2.0])
def test_request_level_batch_within_three_percent_of_theory(spec, alpha):
    """The paper's law well above the knee; the gate's gap is in the theory."""
    loop = make_loop(spec, alpha_ms=alpha, h0_tokens=1600.0)
    point = equilibrium(loop, gated=True)
    run = simulate_requests(loop, 20_000, seed=1).after(2000)
    assert run.batch.mean() == pytest.approx(point.batch, rel=0.03)
    assert run.window_tokens.mean() == pytest.approx(point.window_tokens, rel=0.03)
    gap = float(np.mean(run.window_tokens - run.load_tokens))
    assert gap == pytest.approx(gate_gap(loop.lengths), rel=0.15)


@pytest.mark.parametrize("spec", FOUR)
def test_fluid_and_requests_differ_by_the_gate_gap(spec):
    """B of requests = B of the fluid - 1 + 1/rbar under the same fixed window."""
    loop = make_loop(spec, law="fixed", h0_tokens=1600.0)
    fluid = simulate_fluid(loop, 3000).after(2000).batch.mean()
    run = simulate_requests(loop, 20_000, seed=1).after(2000)
    expected = fluid - gate_gap(loop.lengths) / loop.lengths.residual_mean
    assert run.batch.mean() == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("spec", ["geometric:50", "mix:20@0.5,50@0.3,200@0.2"])
def test_where_theory_does_not_hold_near_the_knee(spec):
    """A batch that fluctuates across the knee is slower on average than its mean says:
    regulated at sigma_ref = 1.1 then holds fewer requests than the closed form (docs)."""
    loop = make_loop(spec, law="regulated", alpha_ms=3.0, h0_tokens=800.0)
    point = equilibrium(loop, gated=True)
    run = simulate_requests(loop, 20_000, seed=1).after(2000)
    shortfall = run.batch.mean() / point.batch - 1
    assert -0.15 < shortfall < -0.05
    # What it regulates it still holds.
    assert np.mean(run.sigma) == pytest.approx(1.1, rel=0.02)


@pytest.mark.parametrize("spec", FOUR)
def test_regulated_holds_sigma_with_one_step_of_delay(spec):
    """k = 0.05, sigma_ref = 1.1, d = 1 on four length laws (control.md: 1.07-1.10)."""
    loop = make_loop(spec, law="regulated", k=0.05, delay_steps=1, beta=1.0, h_min_tokens=50.0)
    run = simulate_requests(loop, 10_000, seed=3).after(2000)
    assert np.mean(run.sigma) == pytest.approx(1.1, abs=0.04)


def test_same_seed_same_run_other_seed_other_run():
    loop = make_loop("uniform:1:99")
    first = simulate_requests(loop, 500, seed=1, noise=0.02)
    again = simulate_requests(loop, 500, seed=1, noise=0.02)
    other = simulate_requests(loop, 500, seed=2, noise=0.02)
    for a, b in zip(first, again, strict=True):
        assert np.array_equal(a, b)
    assert not np.array_equal(first.batch, other.batch)


def test_requests_and_tokens_are_conserved():
    loop = make_loop("uniform:1:9", law="fixed", h0_tokens=60.0)
    arrivals = np.random.default_rng(1).poisson(0.8, 400)
    run = simulate_requests(loop, 400, seed=1, arrivals=arrivals.tolist())
    np.testing.assert_array_equal(np.cumsum(arrivals) - np.cumsum(run.admitted), run.queue)
    # K rises by what is admitted and falls by one token per running request.
    gained = np.diff(run.load_tokens) + run.batch[:-1]
    assert np.all(gained >= run.admitted[1:] - 1e-9)
    assert np.all(gained <= 9 * run.admitted[1:] + 1e-9)
    assert np.all(run.load_tokens[run.batch > 1] <= 60.0)


def test_an_idle_engine_admits_its_head_however_long():
    loop = make_loop("const:50", law="fixed", h0_tokens=10.0)
    run = simulate_requests(loop, 200, seed=1)
    assert set(run.batch) == {1.0}


def test_step_noise_widens_the_predictive_margin():
    loop = make_loop("const:50", law="predictive", itl_objective_ms=70.0, h_max_tokens=4000.0)
    calm = simulate_requests(loop, 6000, seed=1, noise=0.01).after(2000)
    noisy = simulate_requests(loop, 6000, seed=1, noise=0.06).after(2000)
    assert noisy.batch.mean() < calm.batch.mean() - 0.5
    assert np.mean(noisy.step_ms > 70.0) < 0.01


def test_a_token_window_alone_does_not_hold_each_step():
    """Lengths that spread let the batch fluctuate under a constant load (docs/control.md)."""
    loop = make_loop(law="predictive", itl_objective_ms=70.0, h_max_tokens=4000.0)
    run = simulate_requests(loop, 10_000, seed=1, noise=0.03).after(2000)
    assert 0.05 < np.mean(run.step_ms > 70.0) < 0.3
    assert run.step_ms.mean() < 70.0


@pytest.mark.parametrize("simulate", [simulate_fluid, simulate_requests])
def test_bad_arguments(simulate):
    seed = {"seed": 1} if simulate is simulate_requests else {}
    with pytest.raises(ValueError, match="steps = 0"):
        simulate(make_loop(), 0, **seed)
    with pytest.raises(ValueError, match="arrivals"):
        simulate(make_loop(), 10, arrivals=[1], **seed)
