"""The second stage stays inside the safe region, keeps its budget and finds what is there."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
from synthetic_traces import Truth, request_trace, write_trace

from controllers.identification import identify
from controllers.trace_reader import read_step_trace
from controllers.tuning import SafeRegion, TuningGoals, safe_region, search, tune


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> SafeRegion:
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    write_trace(path, request_trace(Truth(delay_steps=1), steps=4000, seed=1))
    return safe_region(tune(identify(read_step_trace(path)), TuningGoals(models=8)))


class Recorder:
    """An objective that pulls towards a reckless corner, and remembers what it was asked."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def __call__(self, configuration: dict[str, Any]) -> dict[str, float]:
        self.seen.append(configuration)
        return {"reward": math.log(configuration["gamma"]) + math.log(configuration["beta"])}


SAMPLERS = [
    "pattern",
    pytest.param(
        "optuna",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("optuna") is None, reason="optuna is not installed"
        ),
    ),
]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_never_leaves_the_region(region: SafeRegion, sampler: Any) -> None:
    record = Recorder()
    found = search(record, region, 12, objective="reward", seed=1, sampler=sampler)
    assert len(record.seen) == len(found.trials) <= 12
    assert record.seen[0] == region.start
    for configuration in record.seen:
        assert region.refusal(configuration) is None
        worst = region.problem.assess(configuration)
        assert region.problem.violations(worst) == []
    assert found.best.score >= found.trials[0].score
    assert found.sampler == sampler


def test_improves_where_the_region_allows(region: SafeRegion) -> None:
    """Fewest tokens in the window: free to fall by half, so the search must find some of it."""
    found = search(
        lambda c: {"window": c["h_max_tokens"]}, region, 25, objective="window", maximise=False
    )
    assert found.best.configuration["h_max_tokens"] < 0.95 * region.start["h_max_tokens"]


def test_seeded(region: SafeRegion) -> None:
    runs = [
        search(Recorder(), region, 6, objective="reward", seed=s, sampler="pattern")
        for s in (3, 3, 4)
    ]
    assert runs[0].trials == runs[1].trials
    assert runs[0].trials != runs[2].trials


def test_failing_trials_lose_and_do_not_stop_the_search(region: SafeRegion) -> None:
    calls = []

    def evaluate(configuration: dict[str, Any]) -> dict[str, float]:
        calls.append(1)
        if len(calls) % 2 == 0:
            raise RuntimeError("server died")
        return {"reward": math.nan if len(calls) == 3 else 1.0}

    found = search(evaluate, region, 6, objective="reward", sampler="pattern")
    assert len(found.trials) == 6
    assert found.best is found.trials[0]
    assert found.trials[1].error == "RuntimeError: server died"
    assert found.trials[2].score == -math.inf


def test_unsafe_configurations_are_refused_with_the_reason(region: SafeRegion) -> None:
    start = region.start
    assert "outside" in (region.refusal(start | {"gamma": 5.0}) or "")
    wild = SafeRegion(start, {"beta": (1e-3, 1.0), "gamma": (1e-3, 1.0)}, region.problem)
    assert wild.refusal(start | {"gamma": 1.0, "beta": 1.0})
    assert "h_min" in (wild.refusal(start | {"h_min_tokens": 1e6}) or "")
    with pytest.raises(ValueError, match="start is not safe"):
        search(
            Recorder(),
            SafeRegion(start | {"gamma": 1.0, "beta": 1.0}, wild.bounds, region.problem),
            3,
            objective="reward",
        )


def test_bad_arguments(region: SafeRegion) -> None:
    with pytest.raises(ValueError, match="budget = 0"):
        search(Recorder(), region, 0, objective="reward")
    with pytest.raises(ValueError, match="'speed' is not among the metrics: reward"):
        search(Recorder(), region, 2, objective="speed")
    with pytest.raises(ValueError, match="no trial could be scored"):
        search(lambda c: {"reward": math.inf}, region, 2, objective="reward", sampler="pattern")


def test_region_bounds(tmp_path: Path, region: SafeRegion) -> None:
    assert region.bounds["h_max_tokens"][1] == region.start["h_max_tokens"]
    for low, high in region.bounds.values():
        assert 0 < low <= high
