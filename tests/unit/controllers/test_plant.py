"""The plant from window to batch: gains, closed forms, and agreement of its three shapes."""

import numpy as np
import pytest
from loop_cases import LENGTH_SPECS, make_loop

from controllers.models import LengthLaw
from controllers.plant import (
    admission_state_space,
    frequency_response,
    grid_response,
    plant_response,
    plant_state_space,
    polynomial_on_circle,
)
from controllers.simulation.fluid import simulate_fluid

OMEGA = np.array([1e-4, 0.03, 0.4, 1.0, 2.0, 3.0, np.pi])


@pytest.mark.parametrize("spec", LENGTH_SPECS)
def test_transfer_function_closed_form(spec):
    """P(z) = S(z)(z - 1)/(z E[L] - S(z)) away from z = 1."""
    law = LengthLaw.parse(spec)
    z = np.exp(1j * OMEGA)
    s = np.array([np.sum(law.survival_array * w ** -np.arange(law.longest)) for w in z])
    expected = s * (z - 1) / (z * law.mean - s)
    np.testing.assert_allclose(frequency_response(law, OMEGA), expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("spec", LENGTH_SPECS)
def test_dc_gain_and_initial_gain(spec):
    law = LengthLaw.parse(spec)
    assert frequency_response(law, [0.0])[0].real == pytest.approx(1 / law.residual_mean, rel=1e-9)
    system = plant_state_space(law)
    assert system.d[0, 0] == pytest.approx(1 / law.mean, rel=1e-12)


def test_geometric_lengths_make_a_memoryless_plant():
    law = LengthLaw.geometric(50)
    np.testing.assert_allclose(frequency_response(law, OMEGA), 1 / 50, rtol=1e-9)


@pytest.mark.parametrize("spec", LENGTH_SPECS[:2] + LENGTH_SPECS[3:])
def test_plant_is_stable(spec):
    poles = np.linalg.eigvals(plant_state_space(LengthLaw.parse(spec)).a)
    assert np.max(np.abs(poles), initial=0.0) < 1.0


@pytest.mark.parametrize("spec", LENGTH_SPECS)
def test_state_space_and_frequency_response_agree(spec):
    law = LengthLaw.parse(spec if not spec.startswith("geometric") else "geometric:5")
    system = admission_state_space(law)
    response = plant_response(law, OMEGA)
    for i, omega in enumerate(OMEGA):
        resolvent = np.linalg.solve(
            np.exp(1j * omega) * np.eye(system.a.shape[0]) - system.a, system.b
        )
        got = (system.c @ resolvent + system.d)[:, 0]
        expected = [response.admissions[i], response.batch[i], response.output_kv[i]]
        np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("spec", LENGTH_SPECS)
def test_step_response_is_the_fluid_simulation(spec):
    """A fixed window from an empty engine is a step of H through P."""
    if spec.startswith("geometric"):
        spec = "geometric:5"
    loop = make_loop(spec, law="fixed", h0_tokens=1000.0, h_max_tokens=1000.0)
    system = plant_state_space(loop.lengths)
    run = simulate_fluid(loop, 300)
    state = np.zeros((system.a.shape[0], 1))
    for t in range(300):
        batch = system.c @ state + system.d * 1000.0
        assert run.batch[t] == pytest.approx(batch[0, 0], rel=1e-9)
        state = system.a @ state + system.b * 1000.0


def test_grid_matches_direct_evaluation_and_folds_long_laws():
    for spec in ("mix:20@0.5,50@0.3,200@0.2", "geometric:800"):
        law = LengthLaw.parse(spec)
        grid = grid_response(law)
        assert grid.omega[-1] == pytest.approx(np.pi)
        assert np.all(np.diff(grid.omega) > 0)
        picks = np.linspace(0, grid.omega.size - 1, 23).astype(int)
        direct = plant_response(law, grid.omega[picks])
        for got, expected in zip(grid.plant, direct, strict=True):
            np.testing.assert_allclose(got[picks], expected, rtol=1e-7, atol=1e-10)


def test_polynomial_blocks():
    coefficients = np.random.default_rng(3).standard_normal(700)
    expected = [np.sum(coefficients * np.exp(-1j * w * np.arange(700))) for w in OMEGA]
    np.testing.assert_allclose(polynomial_on_circle(coefficients, OMEGA), expected, rtol=1e-9)


def test_dense_matrices_are_refused_for_long_laws():
    with pytest.raises(ValueError, match="2000 states"):
        plant_state_space(LengthLaw.geometric(500))
