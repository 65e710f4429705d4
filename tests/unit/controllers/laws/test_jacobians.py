"""Every law's analytic Jacobian against central differences, away from kinks."""

import itertools

import numpy as np
import pytest

from controllers.laws.base import LawSample
from controllers.laws.jacobian import SAMPLE_FIELDS
from controllers.laws.predictive import PredictiveState
from controllers.laws.registry import law_names, make_law

MODEL = {
    "l_min_ms": 20.0,
    "b0": 8.0,
    "alpha_ms": 1.5,
    "a_ms": 0.2,
    "kappa_ms_per_token": 1e-3,
    "prefill_ms_per_token": 0.02,
}
PARAMS = {
    "predictive": {"latency": MODEL, "itl_objective_ms": 55.0, "h_max_tokens": 5000.0},
    # Below the ratio of the two samples, so that the gradient is inside its clips.
    "gradient2": {"tolerance": 1.1},
}

BELOW_KNEE = LawSample(
    sigma=1.2, itl_ms=27.0, step_ms=30.0, queue=5, load_tokens=395, batch=6, kv_tokens=2000
)
ABOVE_KNEE = LawSample(
    sigma=1.7,
    itl_ms=36.0,
    step_ms=37.0,
    queue=9,
    load_tokens=390,
    batch=12,
    kv_tokens=4000,
    prefill_tokens=64,
)
OPEN_GATE = ABOVE_KNEE._replace(load_tokens=40, sigma=1.01)


def _states(law):
    yield law.initial()
    state = law.initial()
    for sample in (BELOW_KNEE, ABOVE_KNEE) * 3:
        _, state = law.step(sample, state)
    yield state
    if law.name == "predictive":
        # A corrected model with a wide margin and a prompt rate that the budget must carry.
        yield PredictiveState(420.0, 1.3, 0.8, 0.01, 40.0, 300.0, 60.0)
        # A prompt rate beyond its share of the budget.
        yield PredictiveState(420.0, 1.1, 1.2, 0.01, 40.0, 300.0, 4000.0)


def _vector(law, sample, state):
    window, after = law.step(sample, state)
    assert window == after[0] == law.window(after)
    return np.array(after, dtype=float)


@pytest.mark.parametrize("name", law_names())
@pytest.mark.parametrize("sample", [BELOW_KNEE, ABOVE_KNEE, OPEN_GATE])
def test_jacobian_matches_central_differences(name, sample):
    law = make_law(name, PARAMS.get(name))
    for state in _states(law):
        jacobian = law.jacobian(sample, state)
        assert np.shape(jacobian.state) == (len(state), len(state))
        assert np.shape(jacobian.sample) == (len(state), len(SAMPLE_FIELDS))
        for j, value in enumerate(state):
            step = 1e-6 * max(1.0, abs(value)) if value else 0.0
            if not step:  # 0 stands for "not seen yet": a switch, not a number
                continue
            up = type(state)(*[v + step * (i == j) for i, v in enumerate(state)])
            down = type(state)(*[v - step * (i == j) for i, v in enumerate(state)])
            numeric = (_vector(law, sample, up) - _vector(law, sample, down)) / (2 * step)
            np.testing.assert_allclose(
                np.array(jacobian.state)[:, j], numeric, rtol=1e-5, atol=1e-6, err_msg=f"{j}"
            )
        for j, field in enumerate(SAMPLE_FIELDS):
            step = 1e-6 * max(1.0, abs(sample[j]))
            up = sample._replace(**{field: sample[j] + step})
            down = sample._replace(**{field: sample[j] - step})
            numeric = (_vector(law, up, state) - _vector(law, down, state)) / (2 * step)
            np.testing.assert_allclose(
                np.array(jacobian.sample)[:, j], numeric, rtol=1e-5, atol=1e-6, err_msg=field
            )


def test_the_points_exercise_every_law_that_feeds_back():
    """Guard of the test above: the derivatives it compares are not all zero."""
    for name, field in [
        ("paper", "sigma"),
        ("paper", "queue"),
        ("regulated", "sigma"),
        ("gradient2", "itl_ms"),
    ]:
        law = make_law(name, PARAMS.get(name))
        slopes = [
            law.jacobian(sample, state).window_by(field)
            for sample, state in itertools.product((BELOW_KNEE, ABOVE_KNEE), _states(law))
        ]
        assert min(slopes) < 0 or field == "queue", name
        assert any(slopes), name
    law = make_law("predictive", PARAMS["predictive"])
    last = list(_states(law))[-2]
    jacobian = law.jacobian(ABOVE_KNEE, last)
    for field in ("step_ms", "load_tokens", "batch", "kv_tokens", "prefill_tokens"):
        assert jacobian.window_by(field) != 0, field
    assert all(jacobian.state[0][1:5]), "window by gains, margin and tokens per row"


@pytest.mark.parametrize("name", ["paper", "regulated", "gradient2", "predictive"])
def test_clamped_window_has_no_derivative(name):
    law = make_law(name, {"h0_tokens": 400, "h_min_tokens": 399, "h_max_tokens": 401})
    slow = ABOVE_KNEE._replace(load_tokens=400, sigma=5.0, itl_ms=200.0, step_ms=200.0)
    _, state = law.step(BELOW_KNEE, law.initial())
    for _ in range(30):
        _, state = law.step(slow, state)
    assert law.window(state) == 399.0
    assert not any(law.jacobian(slow, state).sample[0])
