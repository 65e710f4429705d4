"""Latency model: the formula, vectorised, and where bandwidth peaks."""

import numpy as np
import pytest

from controllers.models import LatencyModel, LengthLaw, LoopModel, LoopTiming, UncertaintySet

MODEL = LatencyModel(
    l_min_ms=20,
    b0=8,
    alpha_ms=2,
    a_ms=0.5,
    kappa_ms_per_token=1e-3,
    prefill_ms_per_token=0.02,
)


def test_step_time_is_the_formula():
    assert MODEL.step_ms(10, 3000, 64) == pytest.approx(20 + 5 + 4 + 3 + 1.28)
    assert MODEL.step_ms(8) == pytest.approx(24)
    assert isinstance(MODEL.step_ms(8), float)


def test_step_time_broadcasts():
    batch = np.array([[0.0], [10.0]])
    kv = np.array([0.0, 1000.0, 2000.0])
    got = MODEL.step_ms(batch, kv)
    assert got.shape == (2, 3)
    assert got[1, 2] == MODEL.step_ms(10, 2000)


@pytest.mark.parametrize("alpha", [2.0, 5.3, 5.4, 9.0])
def test_bandwidth_has_an_inner_optimum_only_above_x_of_one(alpha):
    """B/l(B) rises for ever when x <= 1 and peaks at B0 when x > 1."""
    model = LatencyModel(l_min_ms=43, b0=8, alpha_ms=alpha)
    batch = np.linspace(0.5, 200, 4000)
    bandwidth = batch / model.step_ms(batch)
    best = batch[np.argmax(bandwidth)]
    if model.x > 1:
        assert best == pytest.approx(8, abs=0.1)
    else:
        assert best == 200


@pytest.mark.parametrize(
    "bad", [{"l_min_ms": 0}, {"alpha_ms": -1}, {"b0": float("nan")}, {"alpha": 3}]
)
def test_bad_parameters_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        LatencyModel(**bad)


def test_loop_model_checks_law_queue_and_beta():
    with pytest.raises(ValueError, match="unknown"):
        LoopModel(law="pid")
    with pytest.raises(ValueError, match="gamma"):
        LoopModel(law_params={"gamma": 2})
    with pytest.raises(ValueError, match="saturated"):
        LoopModel(queue="full")
    with pytest.raises(ValueError, match="negative"):
        LoopModel(queue=-1)
    with pytest.raises(ValueError, match="beta"):
        LoopModel(beta=0)


def test_uncertainty_set_goes_through_every_combination():
    uncertain = UncertaintySet(
        latencies=(MODEL, MODEL.model_copy(update={"b0": 9.0})),
        lengths=(LengthLaw.const(5), LengthLaw.geometric(5), LengthLaw.uniform(1, 9)),
        delays_steps=(0, 1),
    )
    loops = list(uncertain.loops(LoopModel(timing=LoopTiming(delay_steps=3))))
    assert len(loops) == len(uncertain) == 12
    assert {m.timing.delay_steps for m in loops} == {0, 1}
    assert len({(m.latency.b0, m.lengths.name, m.timing.delay_steps) for m in loops}) == 12
