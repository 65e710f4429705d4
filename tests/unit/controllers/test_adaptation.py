"""The predictive law's correction: stability range, bias, and lost excitation."""

import numpy as np
import pytest

from controllers.adaptation import (
    Estimator,
    analyse_adaptation,
    excitation_matrix,
    gains_at_rest,
    largest_step_size,
    run_closed_loop,
)
from controllers.laws.two_gain import TwoGainConfig, update_gains

CONFIG = TwoGainConfig()
RICH = np.array([[30.0, 0.0], [30.0, 20.0], [20.0, 40.0], [35.0, 5.0]] * 50)
POOR = np.array([[30.0, 20.0]] * 200)


def _run(config, regressors, truth, steps=60_000, start=(1.0, 1.0)):
    gains, phi = start, regressors
    for t in range(steps):
        decode, prefill = phi[t % len(phi)]
        gains = update_gains(config, gains, truth[0] * decode + truth[1] * prefill, decode, prefill)
    return gains


@pytest.mark.parametrize(("mu", "stable"), [(0.02, True), (1.0, True), (1.9, True), (1.999, False)])
def test_stability_range(mu, stable):
    """0 < mu < 2 - leak, seen on the update itself (clamps and drop bound wide open)."""
    config = TwoGainConfig(step_size=mu, leak=2e-3, decode_min=1e-9, decode_max=1e9, drop_above=1.0)
    assert analyse_adaptation(config, POOR).stable is stable
    assert (mu < largest_step_size(config.leak)) is stable
    gains = (1.05, 1.0)
    errors = []
    for _ in range(3000):
        gains = update_gains(config, gains, 30.0, 30.0, 0.0)
        errors.append(abs(gains[0] - 1.0))
    assert (errors[-1] < 1e-3) is stable


@pytest.mark.parametrize("regressors", [RICH, POOR])
@pytest.mark.parametrize("truth", [(1.2, 0.8), (0.8, 1.3), (1.0, 1.0)])
def test_rest_point_is_where_the_update_rests(regressors, truth):
    expected = gains_at_rest(CONFIG, regressors, truth)
    assert _run(CONFIG, regressors, truth) == pytest.approx(expected, abs=4e-3)


def test_bias_is_the_leaks_share():
    """One direction, fully excited: leak/(mu + leak), about 1 % of the model's error."""
    decode_only = np.array([[30.0, 0.0]] * 10)
    analysis = analyse_adaptation(CONFIG, decode_only)
    assert analysis.uncorrected[1] == pytest.approx(2e-4 / (0.02 + 2e-4))
    rest = gains_at_rest(CONFIG, decode_only, (1.4, 2.0))
    assert rest[0] == pytest.approx(1 + 0.4 * (1 - analysis.uncorrected[1]))
    assert rest[1] == pytest.approx(1.0)


def test_constant_steps_excite_one_direction_only():
    analysis = analyse_adaptation(CONFIG, POOR)
    assert analysis.excitation[0] == pytest.approx(0.0, abs=1e-9)
    assert not analysis.identifiable
    assert analysis.memory_steps[0] == pytest.approx(1 / CONFIG.leak, rel=1e-3)
    # The sum is right even so: what the controller uses is what it has excited.
    rest = np.array(gains_at_rest(CONFIG, POOR, (1.3, 0.7)))
    assert rest @ POOR[0] == pytest.approx(1.3 * 30 + 0.7 * 20, rel=0.005)
    assert analyse_adaptation(CONFIG, RICH).identifiable


def test_unexcited_direction_returns_to_the_calibration():
    along = np.array([30.0, 20.0]) / np.hypot(30.0, 20.0)
    across = np.array([-along[1], along[0]])
    start = tuple(1.0 + 0.3 * across)
    after = np.array(_run(CONFIG, POOR, (1.0, 1.0), steps=5000, start=start)) - 1.0
    assert after @ across == pytest.approx(0.3 * np.exp(-5000 * CONFIG.leak), rel=0.01)


def test_outliers_do_not_move_the_gains():
    assert update_gains(CONFIG, (1.1, 0.9), 500.0, 30.0, 20.0) == (1.1, 0.9)
    assert update_gains(CONFIG, (1.1, 0.9), 0.0, 30.0, 20.0) == (1.1, 0.9)
    assert update_gains(CONFIG, (1.1, 0.9), 55.0, 30.0, 20.0) != (1.1, 0.9)


def test_clamps_bound_the_gains():
    assert _run(CONFIG, RICH, (1.9, 5.0), steps=20_000)[1] == CONFIG.prefill_max
    with pytest.raises(ValueError, match="enclose 1"):
        TwoGainConfig(decode_max=0.9)


STEPS = 20_000
LOAD = np.full(STEPS, 30.0)
LOAD[10_000:15_000] = 20.0
LOAD[15_000:] = 35.0
DRIFT = np.ones((STEPS, 2))
DRIFT[5_000:, 0] = 1.3  # the decode part becomes 30 % slower than calibrated


def _late(run):
    """Share of steps beyond 110 % of the objective, start-up aside."""
    return float(np.mean(run.step_ms[1000:] > 55.0))


def test_forgetting_least_squares_winds_up_where_nlms_stays():
    """Constant load, exact prior: the controller's success removes the excitation."""
    constant, truth = np.full(STEPS, 30.0), np.ones((STEPS, 2))
    nlms = run_closed_loop(Estimator.NLMS, constant, truth, objective_ms=50.0, seed=1)
    rls = run_closed_loop(Estimator.RLS_FORGETTING, constant, truth, objective_ms=50.0, seed=1)
    assert np.max(np.abs(nlms.gains - 1)) < 0.05
    # Gains of engines that do not exist: negative, and several times the truth.
    assert rls.gains.min() < 0
    assert rls.gains.max() > 2
    assert rls.covariance_trace.max() > 20 * rls.covariance_trace[0]


def test_least_squares_without_forgetting_stops_following_the_engine():
    nlms = run_closed_loop(Estimator.NLMS, LOAD, DRIFT, objective_ms=50.0, seed=1)
    rls = run_closed_loop(Estimator.RLS, LOAD, DRIFT, objective_ms=50.0, seed=1)
    assert _late(nlms) < 0.01
    assert _late(rls) > 0.05
    assert np.percentile(nlms.step_ms, 99) < 55.0 < np.percentile(rls.step_ms, 99)


def test_nlms_holds_the_objective_under_a_wrong_model():
    """+-50 % errors in the model, within the clamps: the step ends within 2 % of the goal."""
    for wrong in ((1.5, 1.0), (1.0, 1.5), (0.6, 1.0), (1.3, 0.7)):
        truth = np.tile(wrong, (STEPS, 1)).astype(float)
        run = run_closed_loop(Estimator.NLMS, LOAD, truth, objective_ms=60.0, seed=2)
        assert np.mean(run.step_ms[2000:]) == pytest.approx(60.0, rel=0.02), wrong


@pytest.mark.parametrize("bad", [np.zeros((3, 2)), np.ones((3, 3)), np.ones(4), np.ones((0, 2))])
def test_regressors_are_checked(bad):
    with pytest.raises(ValueError, match="regressors"):
        excitation_matrix(bad)
