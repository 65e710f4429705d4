"""Regimes over arrival rate and H0, against request-level simulation."""

import numpy as np
import pytest
from loop_cases import make_loop

from controllers.regime_map import LoadRegime, free_batch, regime_at, regime_map
from controllers.simulation.request_level import simulate_requests


def _arrivals(loop, rate_per_s, steps, seed):
    """Poisson arrivals per step while the engine runs at the free batch's step time."""
    step_s = loop.steady_step_ms(free_batch(loop, rate_per_s)) / 1000
    return np.random.default_rng(seed).poisson(rate_per_s * step_s, steps)


@pytest.mark.parametrize("rate", [1.0, 2.5, 3.7, 4.2])
def test_little_law(rate):
    loop = make_loop(alpha_ms=3.0, h0_tokens=4000.0)
    batch = free_batch(loop, rate)
    step_s = loop.steady_step_ms(batch) / 1000
    assert batch == pytest.approx(rate * loop.lengths.mean * step_s, rel=1e-9)
    run = simulate_requests(
        loop, 30_000, seed=1, arrivals=_arrivals(loop, rate, 30_000, 2).tolist()
    )
    assert run.after(2000).batch.mean() == pytest.approx(batch, rel=0.05)


def test_free_batch_is_infinite_beyond_capacity():
    flat_limit = make_loop(alpha_ms=3.0)  # B/l tends to 1/alpha = 333 tokens/s
    assert np.isfinite(free_batch(flat_limit, 6.0))
    assert free_batch(flat_limit, 7.0) == np.inf
    peaked = make_loop(alpha_ms=10.0)  # B/l peaks at B0/c = 186 tokens/s
    assert free_batch(peaked, 3.7) < 8
    assert free_batch(peaked, 3.8) == np.inf


def test_each_regime_occurs():
    loop = make_loop(alpha_ms=10.0, h0_tokens=800.0)
    assert regime_at(loop, 0.5).regime is LoadRegime.BELOW_KNEE
    assert regime_at(loop, 5.0).regime is LoadRegime.SATURATED
    assert regime_at(make_loop(h0_tokens=100.0), 5.0).regime is LoadRegime.SATURATED_IDLE
    assert regime_at(make_loop(alpha_ms=3.0, h0_tokens=4000.0), 4.2).regime is LoadRegime.LOADED
    # x = 1.86: at rest the engine carries 3.2 requests/s, after a burst it serves less.
    assert regime_at(loop, 3.2).regime is LoadRegime.METASTABLE


def test_metastable_load_recovers_at_first_and_not_after_a_burst():
    loop = make_loop(alpha_ms=10.0, h0_tokens=800.0)
    rate, steps = 3.2, 6000
    point = regime_at(loop, rate)
    assert point.regime is LoadRegime.METASTABLE

    def last_queue(burst: int) -> float:
        # Arrivals per step follow the step's duration, as they do in time: a saturated
        # engine takes longer steps and so receives more of them.
        calm = rate * loop.steady_step_ms(point.batch) / 1000
        slow = rate * loop.latency.step_ms(15.0) / 1000
        rng = np.random.default_rng(3)
        arrivals = rng.poisson(slow if burst else calm, steps)
        arrivals[200] += burst
        return float(simulate_requests(loop, steps, seed=4, arrivals=arrivals.tolist()).queue[-1])

    assert last_queue(0) < 5
    assert last_queue(300) > 100


def test_map_has_a_cell_for_every_pair():
    result = regime_map(make_loop(alpha_ms=10.0), [100.0, 400.0, 1600.0], [0.5, 3.0, 3.2, 6.0])
    assert result.regime.shape == result.batch.shape == (3, 4)
    assert set(result.regime[:, 0]) == {"below_knee"}
    assert result.regime[0, 3] == "saturated_idle"
    assert result.regime[2, 3] == "saturated"
    # Larger windows let the saturated engine further past its best batch.
    assert result.batch[2, 3] > result.batch[1, 3]


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_bad_rate(rate):
    with pytest.raises(ValueError, match="arrivals_per_s"):
        regime_at(make_loop(), rate)
