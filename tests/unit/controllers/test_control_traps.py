"""The traps of python-control 0.10.2 that docs/control.md names, and that ours avoid them.

Where a trap is gone after an upgrade, its test fails: then shorten the docs.
"""

import math

import control
import numpy as np
import pytest
from loop_cases import make_loop

from controllers.critical_gain import paper_critical_gain
from controllers.linearisation import linearise
from controllers.margins import margins


def test_margin_misses_the_crossing_at_pi():
    """A loop that first becomes unstable at pi: python-control says infinite."""
    loop = make_loop(gamma=0.15, beta=0.2, h0_tokens=800.0)
    result = margins(loop)
    expected = paper_critical_gain(0.15, 0.2, 0) / result.loop_gain
    assert result.gain_margin == pytest.approx(expected, rel=1e-6)

    g, gamma, beta = result.loop_gain, 0.15, 0.2
    numerator = [g * gamma * beta, 0.0]
    denominator = np.polymul([1, gamma - 1], [1, beta - 1])
    theirs, _, _, _ = control.margin(control.tf(numerator, denominator, 1))
    assert theirs == math.inf
    # The crossing is real: with that much gain the loop has a pole at -1.
    poles = np.roots(np.polyadd(denominator, expected * np.array(numerator)))
    assert np.min(np.abs(poles + 1)) < 1e-6


def test_disk_margins_are_positive_for_an_unstable_loop():
    loop = make_loop(
        "const:20", gamma=1.0, beta=1.0, delay_steps=3, alpha_ms=30.0, h_min_tokens=1.0
    )
    linear = linearise(loop)
    assert np.max(np.abs(linear.poles())) > 1
    theirs, _, _ = control.disk_margins(linear.to_control(), np.linspace(1e-3, np.pi, 500))
    assert theirs > 0
    assert margins(loop).disk_margin_alpha == 0.0


def test_disk_margins_reject_frequency_data():
    data = control.frd(np.array([0.5, 0.4, 0.3]), np.array([0.1, 0.2, 0.3]), dt=1)
    with pytest.raises((ValueError, TypeError, AttributeError, control.ControlMIMONotImplemented)):
        control.disk_margins(data, np.array([0.1, 0.2, 0.3]))


def test_disk_margins_give_the_gain_margin_in_decibels():
    system = control.tf([0.5], [1, -0.5], 1)
    alpha, gain, _ = control.disk_margins(system, np.linspace(1e-3, np.pi, 2000))
    factor = (2 + float(alpha)) / (2 - float(alpha))
    assert float(gain) == pytest.approx(20 * math.log10(factor), rel=1e-6)


def test_nlsys_takes_a_misspelt_parameter_silently():
    system = control.nlsys(
        lambda t, x, u, params: [params.get("gamma", 0.5) * x[0] + u[0]],
        None,
        inputs=1,
        outputs=1,
        states=1,
        dt=1,
        params={"gamma": 0.5},
    )
    response = control.input_output_response(system, np.arange(3), np.ones(3), params={"gama": 0.9})
    assert np.isfinite(response.outputs).all()
    with pytest.raises(ValueError, match="gama"):
        make_loop(gama=0.9)


def test_numeric_linearisation_takes_the_upper_slope_at_the_knee():
    """At B = B0 exactly forward differences see the slope above, ours the one below."""
    b0, alpha = 8.0, 4.3
    plant = control.nlsys(
        None,
        lambda t, x, u, params: [43.0 + alpha * max(u[0] - b0, 0.0)],
        inputs=1,
        outputs=1,
        dt=1,
    )
    numeric = control.linearize(plant, [], [b0])
    assert numeric.D[0, 0] == pytest.approx(alpha, rel=1e-3)
    loop = make_loop(h0_tokens=b0 * 50 / 2, alpha_ms=alpha, b0=b0)
    assert linearise(loop).slope_ms == 0.0


def test_high_order_models_give_wrong_margins():
    """The same stable loop as a state space and as frequency data: believe the data."""
    loop = make_loop("uniform:1:20", law="regulated", k=0.1, delay_steps=1, h_min_tokens=1.0)
    linear = linearise(loop)
    omega, gain = linear.grid
    dense = np.linspace(0.05, 0.1, 20001)
    crossing = dense[np.argmin(np.abs(np.abs(linear.gain(dense)) - 1))]
    true_phase = math.degrees(abs(np.angle(-linear.gain(crossing)[0])))
    assert margins(loop).phase_margin_deg == pytest.approx(true_phase, abs=0.01)

    gain_frd, phase_frd, _, _ = control.margin(control.frd(gain, omega))
    assert phase_frd == pytest.approx(true_phase, abs=0.1)
    assert margins(loop).gain_margin == pytest.approx(gain_frd, rel=1e-3)
    gain_ss, phase_ss, _, _ = control.margin(linear.to_control())
    assert abs(phase_ss - true_phase) > 30
    assert abs(gain_ss - gain_frd) > 1

    # And the gain margin found is the true one: that much gain puts a pole on the circle.
    critical = np.max(np.abs(_closed_poles(linear, margins(loop).gain_margin)))
    assert critical == pytest.approx(1.0, abs=1e-6)


def _closed_poles(linear, factor):
    system = linear.open_loop()
    return np.linalg.eigvals(system.a - factor * system.b @ system.c)
