"""Random loops: what the analysis predicts is what the linear loop does."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from controllers.linearisation import linearise
from controllers.margins import (
    critical_factors,
    is_stable,
    margins,
    unstable_pole_count,
)
from controllers.models import LatencyModel, LengthLaw, LoopModel, LoopTiming
from controllers.operating_point import Regime, equilibrium
from controllers.simulation.fluid import simulate_fluid
from controllers.simulation.request_level import simulate_requests


@st.composite
def length_laws(draw):
    kind = draw(st.sampled_from(["const", "uniform", "geometric", "mix", "custom"]))
    if kind == "const":
        return LengthLaw.const(draw(st.integers(1, 40)))
    if kind == "uniform":
        low = draw(st.integers(1, 20))
        return LengthLaw.uniform(low, low + draw(st.integers(0, 40)))
    if kind == "geometric":
        return LengthLaw.geometric(draw(st.floats(1.0, 2.5)))
    lengths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True))
    weights = [draw(st.integers(1, 10)) for _ in lengths]
    return LengthLaw.from_histogram(dict(zip(lengths, weights, strict=True)))


@st.composite
def loops(draw, laws=("paper", "regulated", "predictive")):
    latency = LatencyModel(
        l_min_ms=draw(st.floats(5.0, 60.0)),
        b0=draw(st.floats(1.0, 32.0)),
        alpha_ms=draw(st.floats(0.05, 30.0)),
        a_ms=draw(st.sampled_from([0.0, 0.1, 1.0])),
        kappa_ms_per_token=draw(st.sampled_from([0.0, 0.0, 1e-3, 1e-2])),
    )
    law = draw(st.sampled_from(laws))
    params = {"h0_tokens": draw(st.floats(50.0, 2000.0)), "h_min_tokens": 1.0, "h_max_tokens": 1e7}
    if law == "paper":
        params["gamma"] = draw(st.floats(0.02, 1.0))
    elif law == "regulated":
        params |= {"k": draw(st.floats(0.01, 1.0)), "sigma_ref": draw(st.floats(1.02, 3.0))}
    else:
        params |= {
            "latency": latency,
            "itl_objective_ms": latency.l_min_ms * draw(st.floats(1.1, 4.0)),
            "row_weight": draw(st.floats(0.01, 1.0)),
        }
    return LoopModel(
        latency=latency,
        lengths=draw(length_laws()),
        timing=LoopTiming(delay_steps=draw(st.integers(0, 4))),
        law=law,
        law_params=params,
        beta=draw(st.floats(0.05, 1.0)),
        prompt_tokens=draw(st.sampled_from([0.0, 50.0])),
    )


def _grows(matrix: np.ndarray, steps: int) -> tuple[float, float]:
    """Size of a random free motion of the linear loop in the middle and at the end."""
    state = np.random.default_rng(0).standard_normal(matrix.shape[0])
    sizes = np.zeros(steps)
    for t in range(steps):
        sizes[t] = np.linalg.norm(state)
        if sizes[t] > 1e100 or sizes[t] == 0.0:
            return 1.0, sizes[t]
        state = matrix @ state
    return float(sizes[steps // 4 : steps // 2].max()), float(sizes[3 * steps // 4 :].max())


@settings(max_examples=80, deadline=None)
@given(loops())
def test_prediction_agrees_with_simulating_the_linear_loop(loop):
    linear = linearise(loop)
    matrix = linear.closed_loop_matrix()
    radius = float(np.max(np.abs(np.linalg.eigvals(matrix))))
    assume(abs(radius - 1.0) > 3e-3)  # slower than a simulation of 4,000 steps can tell
    middle, end = _grows(matrix, 4000)
    assert is_stable(linear) == (end < middle)
    assert margins(loop).stable == (end < middle)


@settings(max_examples=80, deadline=None)
@given(loops())
def test_argument_principle_agrees_with_eigenvalues(loop):
    linear = linearise(loop)
    sizes = np.abs(linear.poles())
    assume(np.min(np.abs(sizes - 1.0)) > 1e-6)
    assert unstable_pole_count(linear) == int(np.sum(sizes > 1.0))


@settings(max_examples=60, deadline=None)
@given(loops(laws=("paper", "regulated")))
def test_gain_margin_puts_a_pole_on_the_circle(loop):
    linear = linearise(loop)
    omega, gain = linear.grid
    factors = critical_factors(omega, gain, linear.gain)
    assume(factors and factors[0] < 1e5)
    system = linear.open_loop()
    poles = np.linalg.eigvals(system.a - factors[0] * system.b @ system.c)
    assert np.min(np.abs(np.abs(poles) - 1.0)) < 1e-5


@settings(max_examples=60, deadline=None)
@given(loops())
def test_margins_are_consistent(loop):
    result = margins(loop)
    if result.stable:
        assert 0 < result.disk_margin_alpha <= 2 + 1e-9
        assert result.gain_margin is None or result.gain_margin > 1
    else:
        assert result.disk_margin_alpha == 0
        assert result.gain_margin < 1


@settings(max_examples=40, deadline=None)
@given(loops(laws=("paper",)))
def test_a_stable_paper_loop_stays_at_its_equilibrium(loop):
    point = equilibrium(loop)
    assume(point.regime in (Regime.ACTIVE, Regime.IDLE))
    run = simulate_fluid(
        loop,
        300,
        initial_window_tokens=point.window_tokens,
        initial_batch=point.batch,
        admit_negative=True,
    )
    assume(margins(loop).stable)
    np.testing.assert_allclose(run.window_tokens, point.window_tokens, rtol=1e-6)
    np.testing.assert_allclose(run.batch, point.batch, rtol=1e-6)


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.sampled_from(
        ["const:30", "uniform:1:40", "uniform:20:60", "geometric:20", "mix:5@0.4,20@0.4,60@0.2"]
    ),
    batch=st.floats(25.0, 60.0),
    b0=st.floats(1.0, 8.0),
    x=st.floats(0.1, 2.0),
    gamma=st.floats(0.02, 0.3),
    delay=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
def test_equilibrium_within_three_percent_of_requests(lengths, batch, b0, x, gamma, delay, seed):
    """Many requests, well above the knee, enough margin: where the theory holds."""
    latency = LatencyModel(l_min_ms=30.0, b0=b0, alpha_ms=x * 30.0 / b0)
    law = LengthLaw.parse(lengths)
    sigma = latency.step_ms(batch) / 30.0
    h0 = (batch + 1) * law.residual_mean * sigma / 2
    loop = LoopModel(
        latency=latency,
        lengths=law,
        timing=LoopTiming(delay_steps=delay),
        law_params={"h0_tokens": h0, "h_min_tokens": 1.0, "gamma": gamma},
        beta=0.5,
    )
    assume(margins(loop).disk_margin_alpha > 0.5)
    point = equilibrium(loop, gated=True)
    assert abs(point.batch / batch - 1) < 0.1
    run = simulate_requests(loop, 12_000, seed=seed).after(1000)
    assert abs(run.batch.mean() / point.batch - 1) < 0.03
