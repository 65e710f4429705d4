"""What each law does, in its own words."""

import math

import pytest

from controllers.laws.base import Law, LawSample
from controllers.laws.predictive import PredictiveLaw, PredictiveLawConfig, largest_batch
from controllers.laws.registry import LAWS, law_names, make_law
from controllers.models import LatencyModel

SAMPLE = LawSample(sigma=1.2, itl_ms=24, step_ms=24, queue=5, load_tokens=400, batch=8)


@pytest.mark.parametrize("name", law_names())
def test_interface(name):
    law = make_law(name)
    assert isinstance(law, Law)
    assert law.name == name
    state = law.initial()
    before = law.window(state)
    window, after = law.step(SAMPLE, state)
    assert law.window(state) == before, "a law changed the state it was given"
    assert law.window(after) == window
    assert law.config.h_min <= window <= law.config.h_max
    assert (window, after) == law.step(SAMPLE, state), "same sample and state, other window"


@pytest.mark.parametrize("name", law_names())
def test_configurations_refuse_what_they_do_not_know(name):
    with pytest.raises(ValueError, match="windowsize"):
        make_law(name, {"windowsize": 1})
    with pytest.raises(ValueError, match="h_min_tokens"):
        make_law(name, {"h_min_tokens": 900, "h_max_tokens": 800})
    with pytest.raises(ValueError, match="h0_tokens"):
        make_law(name, {"h0_tokens": float("nan")})
    for field in LAWS[name].config.model_fields.values():
        assert field.description, "every default has a reason beside it"


def test_unknown_law_lists_those_there_are():
    with pytest.raises(ValueError, match="use one of paper, regulated"):
        make_law("pid")


def test_paper_equations_three_and_four():
    law = make_law("paper", {"h0_tokens": 400, "gamma": 0.15, "queue_ref": 10})
    window, _ = law.step(SAMPLE._replace(queue=5, sigma=1.25), law.initial())
    assert window == pytest.approx(400 + 0.15 * (400 * 1.5 / 1.25 - 400))


def test_regulated_formula_slew_and_anti_windup():
    law = make_law("regulated", {"k": 0.05, "sigma_ref": 1.1, "slew": 0.05})
    window, _ = law.step(SAMPLE._replace(sigma=1.3), law.initial())
    assert window == pytest.approx(400 * (1.1 / 1.3) ** 0.05)
    window, _ = law.step(SAMPLE._replace(sigma=50.0), law.initial())
    assert window == pytest.approx(400 * math.exp(-0.05))
    for sigma in (1.0, 3.0):
        window, _ = law.step(SAMPLE._replace(sigma=sigma, load_tokens=319), law.initial())
        assert window == 400
    assert law.step(SAMPLE._replace(sigma=0.0), law.initial())[0] == 400


def test_aimd_and_vegas_and_gradient2_branches():
    aimd = make_law("aimd", {"request_tokens": 25, "backoff": 0.9})
    assert aimd.step(SAMPLE._replace(sigma=1.2), aimd.initial())[0] == pytest.approx(360)
    assert aimd.step(SAMPLE._replace(sigma=1.05), aimd.initial())[0] == 425
    assert aimd.step(SAMPLE._replace(sigma=1.05, load_tokens=199), aimd.initial())[0] == 400

    vegas = make_law("vegas", {"request_tokens": 25})
    unit = math.log10(16) * 25  # 16 requests
    assert vegas.step(SAMPLE._replace(sigma=1.0), vegas.initial())[0] == pytest.approx(
        400 + 6 * unit
    )
    for sigma, move in ((1.15, 1), (1.4, 0), (2.5, -1)):
        got = vegas.step(SAMPLE._replace(sigma=sigma), vegas.initial())[0]
        assert got == pytest.approx(400 + move * unit), sigma
    assert vegas.step(SAMPLE._replace(sigma=2.5, load_tokens=199), vegas.initial())[0] == 400

    gradient = make_law("gradient2", {"tolerance": 1.0})
    _, state = gradient.step(SAMPLE._replace(itl_ms=20.0), gradient.initial())
    assert state.long_itl_ms == 20.0
    window, after = gradient.step(SAMPLE._replace(itl_ms=40.0), state)
    long_itl = 20 + 20 / 600
    assert after.long_itl_ms == pytest.approx(long_itl)
    expected = state.window_tokens * long_itl / 40 + 100
    assert window == pytest.approx(0.8 * state.window_tokens + 0.2 * expected)


MODEL = LatencyModel(
    l_min_ms=20, b0=8, alpha_ms=1.5, a_ms=0.2, kappa_ms_per_token=1e-3, prefill_ms_per_token=0.02
)


@pytest.mark.parametrize("step_ms", [10.0, 20.0, 22.0, 26.0, 40.0])
def test_largest_batch_inverts_the_model(step_ms):
    batch = largest_batch(MODEL, step_ms, 300.0).batch
    if step_ms <= 20:
        assert batch == 0
    else:
        assert MODEL.step_ms(batch, 300.0 * batch) == pytest.approx(step_ms, rel=1e-12)


def test_largest_batch_stops_where_more_rows_cost_bandwidth():
    steep = MODEL.model_copy(update={"alpha_ms": 3.0})
    assert largest_batch(steep, 100.0, 0.0).batch == 8.0
    flat = LatencyModel(l_min_ms=20, b0=8, alpha_ms=0.0)
    assert largest_batch(flat, 30.0, 0.0).batch == math.inf


def _predictive(**params) -> PredictiveLaw:
    return PredictiveLaw(PredictiveLawConfig(latency=MODEL, h_max_tokens=9000.0, **params))


def test_chunk_fills_the_budget_that_decoding_leaves():
    law = _predictive(itl_objective_ms=60.0)
    state = law.initial()
    theta = math.exp(-3.3 * 0.05)
    decode = MODEL.step_ms(6, 2000 + 500)
    expected = int((theta * 60.0 - decode) / 0.02)
    assert law.chunk_tokens(state, 6, 2000, prefix_tokens=500) == expected
    assert law.chunk_tokens(state, 0, 0) == 8192
    assert law.chunk_tokens(state, 40, 40_000) == 32
    corrected = state._replace(gain_prefill=2.0)
    assert law.chunk_tokens(corrected, 6, 2000, 500) == int((theta * 60 - decode) / 0.04)


def test_predictive_window_keeps_the_objective_and_room_for_prompts():
    law = _predictive(itl_objective_ms=60.0)
    sample = SAMPLE._replace(step_ms=MODEL.step_ms(8, 2400), kv_tokens=2400)
    window, state = law.step(sample, law.initial())
    batch = window / (400 / 8)
    assert MODEL.step_ms(batch, 300 * batch) == pytest.approx(law.theta(state.residual_var) * 60)
    busy, _ = law.step(sample, law.initial()._replace(prefill_per_step=200.0))
    assert busy < window


def test_predictive_learns_its_margin_and_its_gains_one_step_late():
    law = _predictive(itl_objective_ms=60.0)
    exact = MODEL.step_ms(8, 2400)
    slow = SAMPLE._replace(step_ms=1.2 * exact, kv_tokens=2400)
    first, state = law.step(slow, law.initial())
    assert state.gain_decode > 1
    same_margin = law.initial()._replace(residual_var=state.residual_var)
    unlearned, _ = law.step(slow._replace(step_ms=0.0), same_margin)
    assert first == pytest.approx(unlearned), "the newest gains must not be in this window yet"
    for _ in range(3000):
        window, state = law.step(slow, state)
    assert state.gain_decode == pytest.approx(1.2, abs=0.005)
    assert window < first
    assert law.theta(0.0) == 0.97


def test_predictive_keeps_its_window_before_any_row_was_seen():
    law = _predictive()
    window, state = law.step(SAMPLE._replace(batch=0, load_tokens=0), law.initial())
    assert window == law.window(law.initial())
    assert state.row_tokens == 0


def test_predictive_admits_row_by_row_within_the_budget():
    law = _predictive(itl_objective_ms=60.0)
    state = law.initial()
    rows = 0
    while law.admits(state, rows, 300 * rows):
        rows += 1
    assert state.gain_decode * MODEL.step_ms(rows, 300 * (rows - 1)) <= law.budget_ms(state)
    assert MODEL.step_ms(rows + 1, 300 * rows) > law.budget_ms(state)
    slower = state._replace(gain_decode=1.5)
    assert not law.admits(slower, rows - 1, 300 * (rows - 1))
    steep = PredictiveLaw(
        PredictiveLawConfig(
            latency=MODEL.model_copy(update={"alpha_ms": 3.0}), itl_objective_ms=500.0
        )
    )
    assert steep.admits(state, 7, 0)
    assert not steep.admits(state, 8, 0)
