"""The analytic linearisation against the closed form, numbers, and python-control."""

import control
import numpy as np
import pytest
from loop_cases import LENGTH_SPECS, make_loop

from controllers.linearisation import linearise
from controllers.operating_point import equilibrium
from controllers.plant import frequency_response
from controllers.simulation.fluid import simulate_fluid

OMEGA = np.array([0.01, 0.1, 0.5, 1.5, 2.5, np.pi])

CASES = [
    {"h0_tokens": 800.0},
    {"h0_tokens": 800.0, "delay_steps": 1},
    {"h0_tokens": 800.0, "delay_steps": 3, "beta": 0.7, "gamma": 0.4},
    {"h0_tokens": 800.0, "kappa": 2e-3, "a_ms": 0.3, "prompt_tokens": 100.0, "delay_steps": 1},
    {"law": "regulated", "h_max_tokens": 9000.0, "delay_steps": 1},
    {
        "law": "predictive",
        "itl_objective_ms": 70.0,
        "kappa": 2e-3,
        "prefill": 0.02,
        "prompt_tokens": 150.0,
        "delay_steps": 2,
        "h_max_tokens": 9000.0,
    },
]


@pytest.mark.parametrize("spec", LENGTH_SPECS[:4])
@pytest.mark.parametrize("delay", [0, 1, 2])
def test_loop_gain_closed_form(spec, delay):
    """g gamma/(z - 1 + gamma) beta z/(z - 1 + beta) z^-d rbar P(z)."""
    gamma, beta = 0.3, 0.4
    loop = make_loop(spec, beta=beta, delay_steps=delay, gamma=gamma, h0_tokens=800.0)
    linear = linearise(loop)
    z = np.exp(1j * OMEGA)
    plant = loop.lengths.residual_mean * frequency_response(loop.lengths, OMEGA)
    expected = (
        linear.point.loop_gain
        * (gamma / (z - 1 + gamma))
        * (beta * z / (z - 1 + beta))
        * z**-delay
        * plant
    )
    np.testing.assert_allclose(linear.gain(OMEGA), expected, rtol=1e-9)


@pytest.mark.parametrize("spec", ["const:12", "uniform:1:30", "geometric:3", "mix:3@0.5,30@0.5"])
@pytest.mark.parametrize("case", CASES)
def test_state_space_is_the_frequency_response(spec, case):
    linear = linearise(make_loop(spec, **case))
    system = linear.open_loop()
    eye = np.eye(system.a.shape[0])
    got = [
        (system.c @ np.linalg.solve(np.exp(1j * w) * eye - system.a, system.b))[0, 0] for w in OMEGA
    ]
    np.testing.assert_allclose(got, linear.gain(OMEGA), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("spec", ["const:12", "uniform:1:30", "geometric:3", "mix:3@0.5,30@0.5"])
@pytest.mark.parametrize("case", CASES)
def test_closed_loop_moves_as_the_nonlinear_simulation_does(spec, case):
    """Disturb the window a little: simulation minus rest must follow the poles' matrix."""
    loop = make_loop(spec, **case)
    point = equilibrium(loop)
    matrix = linearise(loop, point).closed_loop_matrix()
    law_states = len(loop.make_law().initial())
    settle, watched = 3000, 60
    small = 1e-5 * point.window_tokens
    common = {
        "initial_window_tokens": point.window_tokens,
        "initial_batch": point.batch,
        "admit_negative": True,
    }
    quiet = simulate_fluid(loop, settle + watched, **common)
    np.testing.assert_allclose(quiet.window_tokens[settle:], point.window_tokens, rtol=1e-5)
    moved = simulate_fluid(loop, settle + watched, disturbance=(settle, small), **common)
    state = np.zeros(matrix.shape[0])
    state[-law_states] = small  # the law's states come last, its window first among them
    predicted = np.zeros(watched)
    for t in range(watched):
        predicted[t] = state[-law_states]
        state = matrix @ state
    difference = (moved.window_tokens - quiet.window_tokens)[settle:]
    np.testing.assert_allclose(difference, predicted, rtol=1e-3, atol=1e-3 * small)


def test_python_control_finds_the_same_poles():
    linear = linearise(make_loop("uniform:1:20", delay_steps=1, h0_tokens=400.0))
    closed = control.feedback(linear.to_control(), 1)
    ours = np.sort(np.abs(linear.poles()))
    np.testing.assert_allclose(np.sort(np.abs(closed.poles())), ours, rtol=1e-6, atol=1e-6)


def test_python_control_linearises_the_whole_loop_to_the_same():
    """The loop written again as a nonlinear system: its rest and its numeric Jacobian."""
    gamma, beta, h0, c, b0, alpha = 0.4, 0.3, 15.0, 43.0, 8.0, 4.3
    loop = make_loop("const:1", gamma=gamma, beta=beta, h0_tokens=h0, h_min_tokens=1.0)
    point = equilibrium(loop)

    def update(t, x, u, params):
        filtered, window = x
        filtered = filtered + beta * (c + alpha * max(window - b0, 0.0) - filtered)
        target = 2 * h0 / max(0.5, filtered / c)
        return [filtered, window + gamma * (target - window)]

    system = control.nlsys(update, None, states=2, inputs=0, outputs=2, dt=1)
    found = control.find_operating_point(system, [50.0, 20.0])
    rest = found.states
    np.testing.assert_allclose(rest, [point.step_ms, point.window_tokens], rtol=1e-6)
    numeric = np.sort_complex(np.linalg.eigvals(control.linearize(system, rest).A))
    ours = np.sort_complex(linearise(loop).poles())
    np.testing.assert_allclose(ours, numeric, rtol=1e-4)


def test_switching_laws_have_no_linearisation():
    for law in ("vegas", "aimd"):
        with pytest.raises(ValueError, match=f"law = '{law}'.*step"):
            linearise(make_loop(law=law))


def test_a_clamped_or_idle_loop_has_no_gain():
    for loop in (make_loop(h_max_tokens=500.0), make_loop(h0_tokens=150.0), make_loop(law="fixed")):
        assert not np.any(linearise(loop).gain(OMEGA))
