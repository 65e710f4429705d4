"""Circle criterion, global attraction below x = 1, and the drain."""

import numpy as np
import pytest
from loop_cases import LENGTH_SPECS, make_loop

from controllers.certificates import (
    circle_certificate,
    drain,
    drain_steps,
    globally_attracting,
    is_memoryless,
    step_down,
)
from controllers.margins import margins
from controllers.models import LengthLaw
from controllers.operating_point import equilibrium
from controllers.simulation.fluid import simulate_fluid


def _rests_from_anywhere(loop, steps=2000):
    point = equilibrium(loop)
    for start in (0.05, 10.0):
        run = simulate_fluid(
            loop,
            steps,
            initial_window_tokens=start * point.window_tokens,
            initial_batch=start * point.batch,
            admit_negative=True,
        )
        if not np.allclose(run.window_tokens[-50:], point.window_tokens, rtol=1e-3):
            return False
    return True


WIDE = {"h_min_tokens": 1.0, "h_max_tokens": 1e6}


@pytest.mark.parametrize("spec", LENGTH_SPECS[:4])
@pytest.mark.parametrize("alpha", [2.0, 10.0])
@pytest.mark.parametrize("gamma", [0.03, 0.15])
def test_what_the_circle_certifies_comes_to_rest(spec, alpha, gamma):
    loop = make_loop(spec, alpha_ms=alpha, gamma=gamma, delay_steps=1, **WIDE)
    certificate = circle_certificate(loop)
    if certificate.certified:
        assert margins(loop).stable
        assert _rests_from_anywhere(loop)
    low, high = certificate.batch_slopes
    point = equilibrium(loop)
    assert low == pytest.approx((point.sigma - 1) / point.sigma)
    assert high == pytest.approx(point.loop_gain)


def test_the_certificate_says_yes_and_no():
    assert circle_certificate(make_loop("uniform:1:99", **WIDE)).certified
    wild = make_loop("const:50", gamma=1.0, beta=1.0, delay_steps=3, alpha_ms=30.0, **WIDE)
    refused = circle_certificate(wild)
    assert not refused.certified
    assert "locally" in refused.reason
    assert not _rests_from_anywhere(wild)
    idle = circle_certificate(make_loop(h0_tokens=100.0, alpha_ms=0.0))
    assert idle.certified


@pytest.mark.parametrize("spec", LENGTH_SPECS[:4])
def test_certificate_bears_every_straight_line_in_its_sectors(spec):
    """Two lines of slopes k1, k2 inside the sectors make a linear loop of gain k1 k2: where
    that can exceed the critical gain, nothing may be certified."""
    certified, refused = [], []
    for gamma in (0.02, 0.1, 0.3, 0.6, 1.0):
        for alpha in (2.0, 8.0, 30.0):
            loop = make_loop(spec, gamma=gamma, beta=0.5, alpha_ms=alpha, delay_steps=2, **WIDE)
            certificate = circle_certificate(loop)
            steepest = certificate.batch_slopes[1] * equilibrium(loop).sigma
            share = steepest / margins(loop).critical_loop_gain
            (certified if certificate.certified else refused).append(share)
            if certificate.certified:
                assert certificate.inverse_slopes == (0.0, equilibrium(loop).sigma)
    assert max(certified) < 1.0
    assert max(refused) > 1.0
    # And it is not vacuous: a good part of what lines allow is certified.
    assert max(certified) > 0.2


def test_certificate_bears_gains_above_one():
    """Negative feedback: with the sign of the loop wrong, this would be refused."""
    loop = make_loop("uniform:1:99", gamma=0.03, alpha_ms=10.0, delay_steps=1, **WIDE)
    certificate = circle_certificate(loop)
    assert certificate.batch_slopes[1] * certificate.inverse_slopes[1] > 2
    assert certificate.certified


def test_certificate_is_worked_out_for_the_paper_law_without_kv():
    with pytest.raises(ValueError, match="'paper'"):
        circle_certificate(make_loop(law="regulated"))
    with pytest.raises(ValueError, match="kappa"):
        circle_certificate(make_loop(kappa=1e-3))


@pytest.mark.parametrize("gamma", [0.15, 1.0])
@pytest.mark.parametrize("beta", [0.2, 1.0])
@pytest.mark.parametrize("delay", [0, 1, 4])
def test_x_below_one_attracts_from_anywhere_at_any_gain(gamma, beta, delay):
    loop = make_loop(
        alpha_ms=0.95 * 43 / 8, gamma=gamma, beta=beta, delay_steps=delay, h0_tokens=450.0, **WIDE
    )
    assert loop.latency.x == pytest.approx(0.95)
    assert globally_attracting(loop)
    assert _rests_from_anywhere(loop, steps=3000)


def test_x_above_one_does_not():
    loop = make_loop(
        alpha_ms=2.0 * 43 / 8, gamma=1.0, beta=1.0, delay_steps=3, h0_tokens=450.0, **WIDE
    )
    assert not globally_attracting(loop)
    assert not _rests_from_anywhere(loop)
    assert not globally_attracting(make_loop("const:50", alpha_ms=1.0))


def test_memoryless_is_geometric():
    assert is_memoryless(LengthLaw.geometric(50))
    assert is_memoryless(LengthLaw.const(1))
    for spec in ("const:50", "const:2", "uniform:1:99", "mix:20@0.5,50@0.3,200@0.2"):
        assert not is_memoryless(LengthLaw.parse(spec)), spec


@pytest.mark.parametrize("spec", LENGTH_SPECS)
def test_drain_is_what_the_simulation_does_once_the_gate_shuts(spec):
    loop = make_loop(spec, law="fixed", h0_tokens=1.0, h_min_tokens=1.0)
    run = simulate_fluid(loop, 60, initial_batch=20.0, arrivals=[0.0] * 60)
    curve = drain(loop.lengths)
    count = min(60, curve.load_share.size - 1)
    full = 20.0 * loop.lengths.residual_mean
    # The simulation ages its start by one step before the first decode.
    np.testing.assert_allclose(
        run.load_tokens[: count - 1] / full, curve.load_share[1:count], atol=1e-9
    )
    np.testing.assert_allclose(run.batch[: count - 1] / 20.0, curve.batch_share[1:count], atol=1e-9)


def test_drain_of_geometric_lengths_is_exponential():
    law = LengthLaw.geometric(50)
    steps = np.arange(200)
    np.testing.assert_allclose(drain(law).load_share[:200], (1 - 1 / 50) ** steps, rtol=1e-9)
    assert drain_steps(law, 0.5) == int(np.ceil(np.log(0.5) / np.log(0.98)))
    assert drain_steps(law, 1.0) == 0


def test_drain_of_constant_lengths_is_a_parabola():
    law = LengthLaw.const(50)
    t = np.arange(51)
    np.testing.assert_allclose(drain(law).load_share, (50 - t) * (51 - t) / (50 * 51), atol=1e-12)


def test_load_never_falls_by_more_than_the_batch():
    loop = make_loop("uniform:1:99", gamma=1.0, beta=1.0, alpha_ms=20.0, h0_tokens=2000.0)
    run = simulate_fluid(loop, 300)
    fall = run.load_tokens[:-1] - run.load_tokens[1:]
    assert np.all(fall <= run.batch[:-1] + 1e-9)
    # The window leads the load down: the load exceeds it while it drains.
    assert np.max(run.load_tokens - run.window_tokens) > 0.2 * np.max(run.window_tokens)


def test_step_down_is_set_by_the_drain_not_by_gamma():
    loop = make_loop("mix:20@0.5,50@0.3,200@0.2", gamma=0.15)
    pace = step_down(loop, 1600.0, 400.0)
    assert pace.drain_limited
    assert pace.drain_steps > 5 * pace.window_steps
    assert not step_down(make_loop(gamma=0.005), 1600.0, 400.0).drain_limited
    with pytest.raises(ValueError, match="not a step down"):
        step_down(loop, 400.0, 1600.0)
