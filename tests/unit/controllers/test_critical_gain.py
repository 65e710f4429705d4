"""Critical gains: closed forms against roots of the characteristic polynomial, within 1e-6."""

import itertools
import math

import numpy as np
import pytest
from loop_cases import LENGTH_SPECS, make_loop

from controllers.critical_gain import (
    characteristic_polynomial,
    paper_critical_gain,
    regulated_critical_gain,
)
from controllers.linearisation import LinearLoop, linearise
from controllers.margins import margins

GAINS = [0.02, 0.15, 0.5, 1.0]


def _critical_by_bisection(spectral_radius) -> float:
    """Least gain with spectral radius 1; the radius exceeds 1 beyond it."""
    low, high = 0.0, 1.0
    while spectral_radius(high) < 1:
        low, high = high, 2 * high
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if spectral_radius(middle) < 1 else (low, middle)
    return 0.5 * (low + high)


def _radius(polynomial) -> float:
    return float(np.max(np.abs(np.roots(polynomial)), initial=0.0))


@pytest.mark.parametrize(("gamma", "beta"), itertools.product(GAINS, GAINS))
@pytest.mark.parametrize("delay", [0, 1, 2, 3, 5])
def test_paper_law_memoryless(gamma, beta, delay):
    by_roots = _critical_by_bisection(
        lambda g: _radius(characteristic_polynomial(gamma, beta, delay, g))
    )
    assert paper_critical_gain(gamma, beta, delay) == pytest.approx(by_roots, rel=1e-6)


def test_paper_law_closed_forms_as_written():
    gamma, beta = 0.3, 0.6
    assert paper_critical_gain(gamma, beta, 0) == pytest.approx((2 / gamma - 1) * (2 / beta - 1))
    assert paper_critical_gain(gamma, beta, 1) == pytest.approx(1 / gamma + 1 / beta - 1)
    s, b = 2 - gamma - beta, (1 - gamma) * (1 - beta)
    expected = (-s + math.sqrt(s**2 + 4 * (1 - b))) / (2 * gamma * beta)
    assert paper_critical_gain(gamma, beta, 2) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("delay", [0, 1, 2, 4])
def test_log_integral_memoryless(beta, delay):
    k = 0.05

    def radius(g: float) -> float:
        quadratic = [1.0, -(2 - beta), 1 - beta]
        if delay == 0:
            quadratic[1] += g * k * beta
            return _radius(quadratic)
        polynomial = quadratic + [0.0] * (delay - 1)
        polynomial[-1] += g * k * beta
        return _radius(polynomial)

    critical = regulated_critical_gain(k, beta, delay)
    assert critical == pytest.approx(_critical_by_bisection(radius), rel=1e-6)
    if beta == 1:
        assert k * critical == pytest.approx(2 * math.sin(math.pi / (2 * (2 * delay + 1))))


@pytest.mark.parametrize("spec", ["const:20", "uniform:1:39", "mix:5@0.5,40@0.5", "const:1"])
@pytest.mark.parametrize("delay", [0, 1, 2])
@pytest.mark.parametrize(
    "case", [{"law": "paper", "gamma": 0.3}, {"law": "regulated", "k": 0.1, "h_max_tokens": 1e4}]
)
def test_critical_gain_with_memory_agrees_with_eigenvalues(spec, delay, case):
    loop = make_loop(spec, delay_steps=delay, beta=0.5, h0_tokens=600.0, h_min_tokens=1.0, **case)
    linear = linearise(loop)
    result = margins(loop)

    def radius(factor: float) -> float:
        scaled = LinearLoop(loop, linear.point, linear.jacobian, linear.slope_ms * factor)
        return float(np.max(np.abs(scaled.poles())))

    low, high = 0.0, 1e-3
    while radius(high) < 1:
        low, high = high, 1.2 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if radius(middle) < 1 else (low, middle)
    assert result.critical_loop_gain == pytest.approx(low * linear.point.loop_gain, rel=1e-6)
    assert result.stable == (low > 1)


@pytest.mark.parametrize("delay", [0, 1, 2, 3])
def test_margins_of_geometric_lengths_are_the_memoryless_closed_form(delay):
    loop = make_loop(delay_steps=delay, beta=0.3, gamma=0.4, h0_tokens=900.0)
    expected = paper_critical_gain(0.4, 0.3, delay)
    assert margins(loop).critical_loop_gain == pytest.approx(expected, rel=1e-6)
    assert margins(loop).gain_margin == pytest.approx(expected / margins(loop).loop_gain, rel=1e-6)


@pytest.mark.parametrize("spec", LENGTH_SPECS)
def test_an_idle_loop_still_tells_its_critical_gain(spec):
    active = margins(make_loop(spec, h0_tokens=900.0, h_min_tokens=1.0, delay_steps=1))
    below = 4.0 if spec == "const:1" else 90.0
    idle = margins(make_loop(spec, h0_tokens=below, h_min_tokens=1.0, delay_steps=1))
    assert idle.regime == "idle"
    assert idle.gain_margin is None
    assert idle.critical_loop_gain == pytest.approx(active.critical_loop_gain, rel=1e-6)


@pytest.mark.parametrize("bad", [(0, 0.5, 0), (1.5, 0.5, 0), (0.5, 0, 0), (0.5, 0.5, -1)])
def test_bad_arguments(bad):
    with pytest.raises(ValueError, match=r"gamma|beta|delay"):
        paper_critical_gain(*bad)
