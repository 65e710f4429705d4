"""Tuning keeps its goals in every plausible model, or refuses and says which data would do."""

from __future__ import annotations

import json
import time
import tomllib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from synthetic_traces import Truth, request_trace, write_trace

from controllers.identification import Identification, identify
from controllers.linearisation import linearise
from controllers.margins import disk_margin, margins
from controllers.models import LatencyModel, LengthLaw, LoopModel, LoopTiming, UncertaintySet
from controllers.operating_point import Regime, equilibrium
from controllers.settings import load_settings
from controllers.simulation.request_level import simulate_requests
from controllers.trace_reader import read_step_trace
from controllers.tuning import (
    TuningGoals,
    TuningProblem,
    TuningRefused,
    TuningResult,
    evidence,
    tune,
    write_configuration,
)
from controllers.tuning.configuration import to_toml
from controllers.tuning.loop_set import LoopSet, law_factor

TRUTH = Truth(kappa_ms_per_token=5e-4, prefill_ms_per_token=0.02, outliers=0.02, delay_steps=1)
LAWS: tuple[Literal["paper", "regulated"], ...] = ("paper", "regulated")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Identification:
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    return identify(read_step_trace(write_trace(path, request_trace(TRUTH, steps=6000, seed=2))))


@pytest.fixture(scope="module", params=LAWS)
def tuned(request: pytest.FixtureRequest, found: Identification) -> TuningResult:
    return tune(found, TuningGoals(law=request.param))


def test_goals_hold_in_the_worst_case(tuned: TuningResult) -> None:
    worst, goals = tuned.worst_case, tuned.problem.goals
    assert worst.stable
    assert worst.disk_margin_alpha >= 0.67
    assert worst.step_ms <= tuned.problem.slo_ms
    assert worst.batch_exceedance <= goals.exceed_probability
    assert worst.window_jitter <= goals.window_jitter * (1 + 1e-9)
    assert tuned.problem.violations(worst) == []


def test_exact_margins_of_every_plausible_loop(tuned: TuningResult) -> None:
    """Nothing taken on trust: each loop of the set by the plain analysis, at rest."""
    for loop in tuned.problem.loops(tuned.configuration):
        found = margins(loop)
        assert found.stable
        assert found.disk_margin_alpha >= 0.67 - 1e-9
        assert equilibrium(loop).step_ms <= tuned.problem.slo_ms * (1 + 1e-9)


def test_faster_gains_would_break_a_goal(tuned: TuningResult) -> None:
    """The constraint binds: the tuned gain is not merely timid."""
    name = tuned.problem.gain_name
    gain, beta = tuned.configuration[name], tuned.configuration["beta"]
    if gain > 0.95 and beta > 0.95:
        pytest.skip("both gains at their bound of 1: nothing faster exists")
    faster = {**tuned.configuration, name: min(1.0, gain * 1.3), "beta": min(1.0, beta * 1.3)}
    assert tuned.problem.violations(tuned.problem.assess(faster))


def test_clamps_are_ordered_and_derived(tuned: TuningResult, found: Identification) -> None:
    configuration = tuned.configuration
    low, start, high = (configuration[f"{k}_tokens"] for k in ("h_min", "h0", "h_max"))
    assert 0 < low <= start <= high
    assert found.latency is not None
    # At H_min no plausible engine is above its knee.
    for loop in tuned.problem.loops(configuration):
        assert low / loop.lengths.residual_mean <= loop.latency.b0 * (1 + 1e-9)


def test_tuned_loop_keeps_its_promises_in_simulation(tuned: TuningResult) -> None:
    """The true engine, request by request, saturated, with noise."""
    configuration = tuned.configuration
    keys = ("h0_tokens", "h_min_tokens", "h_max_tokens", "gamma", "queue_ref", "sigma_ref", "k")
    loop = LoopModel(
        latency=LatencyModel(l_min_ms=43, b0=8, alpha_ms=4.3, kappa_ms_per_token=5e-4),
        lengths=LengthLaw.geometric(50),
        timing=LoopTiming(delay_steps=1),
        law=configuration["law"],
        law_params={k: configuration[k] for k in keys if k in configuration},
        beta=configuration["beta"],
        prompt_tokens=200,
    )
    run = simulate_requests(loop, 6000, seed=3, noise=0.03).after(1000)
    assert np.mean(run.step_ms) <= tuned.problem.slo_ms
    assert np.mean(run.batch > tuned.problem.batch_max) <= tuned.problem.goals.exceed_probability
    swing = np.std(run.window_tokens) / np.mean(run.window_tokens)
    assert swing < 0.25


def test_deterministic(found: Identification, tuned: TuningResult) -> None:
    again = tune(found, tuned.problem.goals)
    assert again.configuration == tuned.configuration
    assert again.worst_case == tuned.worst_case


def test_tighter_slo_gives_a_smaller_window(found: Identification) -> None:
    loose = tune(found, TuningGoals(slo_sigma=1.4))
    tight = tune(found, TuningGoals(slo_sigma=1.15))
    assert tight.configuration["h0_tokens"] < loose.configuration["h0_tokens"]
    assert tight.worst_case.step_ms < loose.worst_case.step_ms
    assert tight.worst_case.tokens_per_second <= loose.worst_case.tokens_per_second


def test_larger_delay_gives_a_slower_loop(found: Identification) -> None:
    fast = tune(found, TuningGoals(window_jitter=0.2), delay_steps=0)
    slow = tune(found, TuningGoals(window_jitter=0.2), delay_steps=4)
    assert slow.worst_case.bandwidth_rad_per_step < fast.worst_case.bandwidth_rad_per_step


def test_a_knee_with_x_above_one_is_not_passed(tmp_path: Path) -> None:
    """B/l(B) peaks at B0 when x > 1: more window would cost latency and tokens alike."""
    truth = Truth(alpha_ms=10.75)
    path = write_trace(tmp_path / "t.jsonl", request_trace(truth, steps=5000, seed=1))
    result = tune(identify(read_step_trace(path)), TuningGoals(slo_sigma=2.0))
    assert result.worst_case.batch == pytest.approx(8, rel=0.15)


@pytest.mark.parametrize(
    ("goals", "match"),
    [
        (TuningGoals(slo_ms=40), "no window keeps the decode step within 40.0 ms"),
        (TuningGoals(window_jitter=1e-6), "window jitter"),
    ],
)
def test_infeasible_goals_are_refused(
    found: Identification, goals: TuningGoals, match: str
) -> None:
    with pytest.raises(TuningRefused, match=match) as caught:
        tune(found, goals)
    assert caught.value.refusals[0].wanted


def test_unexcited_trace_is_refused_with_the_data_that_would_do(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.jsonl", request_trace(Truth(), max_batch=7))
    with pytest.raises(TuningRefused, match=r"never left B <= B0.*Record a burst"):
        tune(identify(read_step_trace(path)))


def test_lengths_may_be_stated_where_the_trace_has_none(tmp_path: Path) -> None:
    records = [record | {"finished": []} for record in request_trace(Truth(), steps=3000)]
    found = identify(read_step_trace(write_trace(tmp_path / "t.jsonl", records)))
    with pytest.raises(TuningRefused, match="requests finished"):
        tune(found)
    assert tune(found, lengths=LengthLaw.geometric(50)).worst_case.stable


def test_fifty_thousand_steps_within_a_minute(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.jsonl", request_trace(TRUTH, steps=50_000, seed=1))
    start = time.process_time()
    tune(identify(read_step_trace(path)))
    assert time.process_time() - start < 60


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_configuration_file_round_trip(
    tmp_path: Path, found: Identification, tuned: TuningResult, suffix: str
) -> None:
    path = tmp_path / f"twp{suffix}"
    write_configuration(path, tuned.configuration, evidence(found, tuned, "2026-01-31"))
    text = path.read_text()
    data = tomllib.loads(text) if suffix == ".toml" else json.loads(text)
    proof = data.pop("evidence")
    assert data == tuned.configuration
    own = {"gamma", "queue_ref"} if data["law"] == "paper" else {"k", "sigma_ref"}
    assert set(data) == own | {
        *("policy", "law", "h0_tokens", "h_min_tokens", "h_max_tokens", "beta"),
        *("l_min_ms", "b0", "alpha_ms"),
        *("a_ms", "kappa_ms_per_token", "prefill_ms_per_token"),
    }
    assert proof["trace"] == "t.jsonl"
    assert proof["date"] == "2026-01-31"
    assert proof["worst_case"]["disk_margin_alpha"] == tuned.worst_case.disk_margin_alpha
    assert proof["model"]["b0"]["lo"] <= 8 <= proof["model"]["b0"]["hi"]
    # For a policy that plans with the step, the whole of it.
    for name in ("a_ms", "kappa_ms_per_token", "prefill_ms_per_token"):
        assert data[name] == pytest.approx(proof["model"][name]["value"], rel=1e-3, abs=1e-12)
    assert data["kappa_ms_per_token"] == pytest.approx(TRUTH.kappa_ms_per_token, rel=0.3)
    assert data["prefill_ms_per_token"] == pytest.approx(TRUTH.prefill_ms_per_token, rel=0.1)
    loop = load_settings(path).loop()
    assert loop.law == tuned.configuration["law"]


def test_other_suffix_is_refused(tmp_path: Path, found: Identification) -> None:
    with pytest.raises(ValueError, match=r"\.toml or \.json"):
        write_configuration(tmp_path / "x.yaml", {}, {})


def test_toml_of_awkward_values() -> None:
    data: dict[str, Any] = {
        "text": 'a "quoted" \\ line\nand another',
        "yes": True,
        "gone": None,
        "endless": float("inf"),
        "list": [1, 2.5, "x"],
        "table": {"deep": {"value": 1e-12}},
    }
    back = tomllib.loads(to_toml(data))
    assert back == {
        "text": data["text"],
        "yes": True,
        "list": [1, 2.5, "x"],
        "table": {"deep": {"value": 1e-12}},
    }


@pytest.mark.parametrize("law", LAWS)
def test_loop_set_agrees_with_the_plain_analysis(law: Literal["paper", "regulated"]) -> None:
    """The factorised loop gain is the loop gain, at gains other than the reference."""
    params: dict[str, Any] = {"h0_tokens": 300.0}
    gain = "gamma" if law == "paper" else "k"
    base = LoopModel(
        lengths=LengthLaw.uniform(1, 60), law=law, law_params=params | {gain: 0.1}, beta=0.3
    )
    base = base.model_copy(update={"timing": LoopTiming(delay_steps=1)})
    for value, beta in ((0.02, 0.9), (0.4, 0.25)):
        verdict = LoopSet([base]).verdict(value, beta)
        changed = base.model_copy(update={"law_params": params | {gain: value}, "beta": beta})
        every = [
            disk_margin(*linear.grid)
            for linear in LoopSet([changed]).linear
            if margins(changed).stable
        ]
        assert verdict.disk_margin == pytest.approx(min(every), rel=1e-9)
        at_rest = linearise(changed)
        if equilibrium(changed).regime is Regime.ACTIVE:
            assert verdict.disk_margin <= disk_margin(*at_rest.grid) * (1 + 1e-4)


def test_the_integrator_is_one_at_every_operating_point() -> None:
    """Linearised away from its reference the regulated law must not show its drift as a pole."""
    loop = LoopModel(law="regulated", law_params={"h0_tokens": 400.0, "sigma_ref": 1.5, "k": 0.4})
    for linear in LoopSet([loop]).linear:
        np.testing.assert_allclose(np.abs(linear.law_eigenvalues), 1.0, atol=1e-8)


def test_an_unstable_pair_of_gains_is_seen() -> None:
    base = LoopModel(
        latency=LatencyModel(l_min_ms=43, b0=8, alpha_ms=10.75),
        lengths=LengthLaw.const(50),
        law_params={"h0_tokens": 400.0},
        timing=LoopTiming(delay_steps=4),
    )
    problem = LoopSet([base])
    verdict = problem.verdict(1.0, 1.0)
    assert not verdict.stable
    assert verdict.disk_margin == 0
    assert problem.verdict(0.02, 0.5).stable


def test_law_factor_at_rest_is_one_for_the_proportional_law() -> None:
    z = np.array([1.0 + 0j])
    assert law_factor("paper", 0.3, 0.2, z)[0] == pytest.approx(1)


def test_problem_reports_each_broken_goal() -> None:
    uncertainty = UncertaintySet(
        latencies=(LatencyModel(),), lengths=(LengthLaw.geometric(50),), delays_steps=(1,)
    )
    problem = TuningProblem(
        uncertainty, TuningGoals(slo_sigma=1.1), batch_max=9, noise=0.3, prompt_tokens=0
    )
    reckless = {
        "h0_tokens": 900.0,
        "h_min_tokens": 100.0,
        "h_max_tokens": 1800.0,
        "queue_ref": 16.0,
        "gamma": 1.0,
        "beta": 1.0,
    }
    broken = " ".join(problem.violations(problem.assess(reckless)))
    for word in ("step at rest", "P(B > 9)", "window jitter"):
        assert word in broken
    assert "disk margin" in broken or "unstable" in broken
