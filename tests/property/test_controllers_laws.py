"""Random samples and length laws: what must hold for every law at every step."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controllers.laws.base import LawSample
from controllers.laws.registry import law_names, make_law
from controllers.models import LengthLaw
from controllers.plant import frequency_response, plant_state_space

samples = st.builds(
    LawSample,
    sigma=st.floats(0.0, 50.0),
    itl_ms=st.floats(0.0, 5000.0),
    step_ms=st.floats(0.0, 5000.0),  # down to denormals: a clock's noise must not raise
    queue=st.integers(0, 100_000),
    load_tokens=st.integers(0, 1_000_000),
    batch=st.integers(0, 4096),
    kv_tokens=st.integers(0, 10_000_000),
    prefill_tokens=st.integers(0, 100_000),
)


@pytest.mark.parametrize("name", law_names())
@settings(max_examples=40, deadline=None)
@given(st.lists(samples, min_size=1, max_size=30), st.floats(1.0, 1e6))
def test_window_stays_finite_and_inside_its_clamps(name, history, h0):
    law = make_law(name, {"h0_tokens": h0})
    state = law.initial()
    for sample in history:
        window, state = law.step(sample, state)
        assert math.isfinite(window)
        assert law.config.h_min <= window <= law.config.h_max
        assert all(math.isfinite(value) for value in state)
        assert np.isfinite(law.jacobian(sample, state).state).all()


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.integers(1, 120), st.integers(1, 50), min_size=1, max_size=8))
def test_plant_of_any_length_law(counts):
    law = LengthLaw.from_histogram(counts)
    total = sum(counts.values())
    mean = sum(n * c for n, c in counts.items()) / total
    second = sum(n * n * c for n, c in counts.items()) / total
    assert law.mean == pytest.approx(mean)
    assert law.residual_mean == pytest.approx((second / mean + 1) / 2)
    system = plant_state_space(law)
    assert np.max(np.abs(np.linalg.eigvals(system.a)), initial=0.0) < 1.0
    assert frequency_response(law, [0.0])[0].real == pytest.approx(1 / law.residual_mean)
    assert system.d[0, 0] == pytest.approx(1 / law.mean)
