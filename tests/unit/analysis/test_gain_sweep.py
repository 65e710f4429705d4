"""The sweep: grid, theory, backends, and what the command writes."""

import csv
import json

import numpy as np
import pytest

from analysis.cells.store import ResultFile
from analysis.gain_sweep import main
from analysis.sweeping.backends import Simulated
from analysis.sweeping.grid import make_grid, planes
from analysis.sweeping.served import Launched, config_flags, window_swing
from analysis.sweeping.sweep import sweep
from analysis.sweeping.theory import Engine, engine_of, loop_of, margin_map, predict
from controllers.critical_gain import paper_critical_gain
from controllers.models import LatencyModel, LengthLaw
from controllers.operating_point import equilibrium
from twp_sglang.config import TwpConfig
from twp_sglang.config_values import OptionsError
from twp_sglang.serving.options import parse

BASE = TwpConfig(policy="twp", h0_tokens=400.0)


# --------------------------------------------------------------------------------- grid


def test_points_are_every_combination_and_clamps_follow_h0():
    grid = make_grid({"h0_tokens": [400, 200], "h_max_share": [1.5], "gamma": [0.1, 0.2]}, BASE)
    assert len(grid.points()) == 4
    config = grid.config({"h0_tokens": 200, "h_max_share": 1.5, "gamma": 0.2})
    assert (config.h0_tokens, config.h_max_tokens, config.gamma) == (200, 300, 0.2)
    assert make_grid({"chunk_tokens": [64]}, BASE).config({"chunk_tokens": 64}).chunk_tokens == 64


def test_a_grid_that_cannot_be_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="nothing to sweep"):
        make_grid({}, BASE)
    with pytest.raises(ValueError, match="share of H0"):
        make_grid({"h_min_share": [0.5]}, TwpConfig())
    with pytest.raises(OptionsError, match="h_max"):
        make_grid({"h_max_share": [0.1], "h_min_share": [0.5]}, BASE)
    with pytest.raises(OptionsError, match="gamma"):
        make_grid({"gamma": [1.5]}, BASE)
    with pytest.raises(ValueError, match="points"):
        make_grid({"gamma": np.linspace(0.1, 1, 200), "beta": np.linspace(0.1, 1, 200)}, BASE)


def test_planes_hold_the_other_axes_fixed():
    grid = make_grid({"gamma": [0.1, 0.2], "beta": [0.1, 0.2], "h0_tokens": [200, 400]}, BASE)
    found = planes(grid, None, None)
    assert [(p.x, p.y, p.fixed) for p in found] == [
        ("beta", "gamma", {"h0_tokens": 200}),
        ("beta", "gamma", {"h0_tokens": 400}),
    ]
    assert planes(grid, "h0_tokens", "beta")[0].fixed == {"gamma": 0.1}
    assert planes(make_grid({"gamma": [0.1, 0.2]}, BASE), None, None) == []
    with pytest.raises(ValueError, match="two axes"):
        planes(grid, "beta", "beta")
    with pytest.raises(ValueError, match="not swept"):
        planes(grid, "k", None)


# ------------------------------------------------------------------------------- theory

MEMORYLESS = Engine(LatencyModel(alpha_ms=10.0), LengthLaw.geometric(50.0), 0.0)


def test_the_prediction_is_the_closed_form_of_a_memoryless_plant():
    """Geometric lengths: the gain margin is the critical gain over the loop's own."""
    for gamma, beta in ((0.1, 0.3), (0.5, 0.5), (1.0, 1.0)):
        config = TwpConfig(policy="twp", h0_tokens=400.0, h_min_tokens=1.0, gamma=gamma, beta=beta)
        g = equilibrium(loop_of(MEMORYLESS, config)).loop_gain
        margin = predict(MEMORYLESS, config).gain_margin
        assert margin == pytest.approx(paper_critical_gain(gamma, beta, 1) / g, rel=1e-3)


def test_the_map_changes_sign_where_the_points_change_verdict():
    base = TwpConfig(policy="twp", h0_tokens=400.0, h_min_tokens=1.0)
    grid = make_grid({"gamma": [0.02, 1.0], "beta": [0.02, 1.0]}, base)
    engine = engine_of("paper-v100,alpha_ms=10", "paper-mixture")
    found = margin_map(engine, grid, planes(grid, "beta", "gamma")[0])
    assert found.margin.min() < 0 < found.margin.max()
    for j, i in ((0, 0), (-1, -1), (12, 18)):
        point = {"gamma": float(found.y[j]), "beta": float(found.x[i])}
        assert predict(engine, grid.config(point)).stable == (found.margin[j, i] > 0)


def test_theory_refuses_laws_that_switch():
    with pytest.raises(ValueError, match="theory covers"):
        loop_of(MEMORYLESS, TwpConfig(policy="twp", law="vegas", h0_tokens=400.0))


# ----------------------------------------------------------------------------- backends


def _simulated(**changes):
    values = {
        "machine": "paper-v100",
        "traffic": "paper-mixture",
        "load": 1.2,
        "requests": 60,
        "seeds": 2,
        "noise": 0.0,
        "slo": "ttft=2s",
    }
    return Simulated(**{**values, **changes})


def test_one_point_alone_and_in_a_sweep_are_the_same(tmp_path):
    grid = make_grid({"h0_tokens": [200, 800]}, TwpConfig(policy="twp", l_min_ms=43.0))
    backend = _simulated()
    with ResultFile(tmp_path / "runs.jsonl") as kept:
        found = sweep(grid, backend, kept, 1)
    for h0 in (200.0, 800.0):
        assert found[(h0,)] == backend.evaluate(grid.config({"h0_tokens": h0}))
    # A larger window lets more run at once: slower tokens, more of them.
    assert found[(800.0,)]["itl_ms_p99"] > found[(200.0,)]["itl_ms_p99"]
    assert found[(800.0,)]["tokens_per_s"] > found[(200.0,)]["tokens_per_s"]


def test_flags_of_a_server_give_the_configuration_back():
    config = TwpConfig(
        gamma=0.3, h0_tokens=123.5, chunk_tokens=64, forced_per_step=None, law="regulated"
    )
    assert parse(config_flags(config)).config == config


def test_flags_that_the_backend_sets_itself_are_refused(tmp_path):
    with pytest.raises(ValueError, match="--port"):
        Launched(["--port", "3"], [], tmp_path, 1.0)
    with pytest.raises(ValueError, match="--json"):
        Launched([], ["--json=x"], tmp_path, 1.0)


def test_an_emulated_backend_says_so(tmp_path):
    backend = Launched([], [], tmp_path, 1.0, emulated="h100-llama31-8b")
    assert backend.caption.startswith("EMULATED")
    assert backend.flags == ["--twp-emulate", "h100-llama31-8b"]
    assert Launched(["--tp", "2"], [], tmp_path, 1.0).caption == "measured: launch_server --tp 2"


def test_a_server_that_does_not_start_is_an_error_of_its_point(tmp_path, monkeypatch):
    from twp_sglang.serving.child import ServerProcess

    start = ServerProcess.start

    async def broken(flags, url, log, **kwargs):
        return await start(flags, url, log, **{**kwargs, "module": "this_module_does_not_exist"})

    monkeypatch.setattr(ServerProcess, "start", broken)
    found = Launched([], [], tmp_path, 20.0).evaluate(TwpConfig())
    assert "exit code 1" in found["error"]


def test_results_of_a_server_are_kept_and_failures_tried_again(tmp_path):
    class Fake:
        caption = "measured: fake"

        def __init__(self):
            self.calls = []

        def evaluate(self, config):
            self.calls.append(config.gamma)
            if config.gamma == 0.2 and len(self.calls) < 3:
                return {"error": "no"}
            return {"itl_ms_p99": config.gamma}

    grid, backend = make_grid({"gamma": [0.1, 0.2]}, BASE), Fake()
    with ResultFile(tmp_path / "runs.jsonl") as kept:
        sweep(grid, backend, kept, 1)
    with ResultFile(tmp_path / "runs.jsonl") as kept:
        found = sweep(grid, backend, kept, 1)
    assert backend.calls == [0.1, 0.2, 0.2]
    assert found[(0.2,)] == {"itl_ms_p99": 0.2}


def test_window_swing_is_read_from_a_step_trace(tmp_path):
    from twp_sglang.simulator.settings import EngineSettings
    from twp_sglang.simulator.simulate import simulate
    from twp_sglang.simulator.step_sources import step_source
    from twp_sglang.simulator.steps import StepFile, header_for
    from twp_sglang.workloads.request import Request

    settings = EngineSettings(kv_tokens=10_000, step_kind="mixed", chunk_tokens=64)
    config = TwpConfig(policy="twp", h0_tokens=200.0, l_min_ms=43.0, h_min_tokens=1.0)
    path = tmp_path / "steps.jsonl"
    model = step_source("paper-v100").model
    with StepFile(path, header_for(settings, config, "paper-v100")) as sink:
        requests = [Request(0.1 * i, 50, 40) for i in range(60)]
        simulate(requests, settings, lambda: model, config, sinks=[sink])
    assert 0 < window_swing(path)["window_cv"] < 1
    assert window_swing(tmp_path / "nothing") == {}


# ------------------------------------------------------------------------------ command


def _words(out, *more):
    return [
        *("--gamma", "0.05", "1", "--beta", "0.05", "1", "--h0-tokens", "400"),
        *("--machine", "paper-v100,alpha_ms=10", "--set", "h_min_tokens=10"),
        *("--requests", "60", "--seeds", "1", "--jobs", "1", "--slo", "ttft=2s"),
        *("--out", str(out), *more),
    ]


def test_the_command_writes_table_and_heat_maps_and_goes_on(tmp_path, capsys):
    assert main(_words(tmp_path)) == 0
    assert "unstable" in capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "sweep.csv").open()))
    assert len(rows) == 4
    assert {(r["gamma"], r["beta"]): r["theory_stable"] for r in rows} == {
        ("0.05", "0.05"): "True",
        ("0.05", "1.0"): "True",
        ("1.0", "0.05"): "True",
        ("1.0", "1.0"): "False",
    }
    assert all(float(r["window_cv"]) > 0 for r in rows)
    names = {path.name for path in tmp_path.glob("*.png")}
    assert {"itl-ms-p99.png", "window-cv.png", "goodput-fraction.png"} <= names
    kept = (tmp_path / "runs.jsonl").read_text()
    assert main(_words(tmp_path, "--no-png")) == 0
    assert (tmp_path / "runs.jsonl").read_text() == kept
    assert json.loads((tmp_path / "sweep.json").read_text())["what"].startswith("simulated")


@pytest.mark.parametrize(
    "words",
    [
        ["--gamma", "1.5"],
        ["--gamma", "x"],
        ["--machine", "nowhere"],
        ["--traffic", "nowhere"],
        ["--x", "k"],
        ["--slo", "ttft"],
        ["--set", "gama=1"],
        ["--bench", "--workload gsm8k"],
        ["--backend", "server"],
        ["--backend", "server", "--bench", "--workload gsm8k"],
        ["--backend", "emulated", "--bench", "--workload gsm8k"],
        ["--backend", "server", "--bench", "--workload gsm8k", "--url", "http://127.0.0.1:9"],
    ],
)
def test_bad_input_ends_with_status_2_and_one_message(words, tmp_path, capsys):
    try:
        status = main(_words(tmp_path, *words))
    except SystemExit as end:
        status = end.code
    assert status == 2
    said = capsys.readouterr().err.strip()
    assert "error:" in said
    assert len(said.splitlines()) == 1
