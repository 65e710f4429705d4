"""The run kit: what is planned into the minutes, what is kept on disk, what the report says."""

from __future__ import annotations

import csv
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import flashinfer_run
from analysis.machine_run.commands import run_module
from analysis.machine_run.engine_set_up import engine_missing, engine_set_up
from analysis.machine_run.learning import _next_gain
from analysis.machine_run.report import comparison, write_report
from analysis.machine_run.results_folder import (
    FolderError,
    ResultsFolder,
    RunRecord,
    StageResult,
)
from analysis.machine_run.run import objectives
from analysis.machine_run.settings import RunSettings
from analysis.machine_run.stages import STAGES, Costs, Planned, plan
from analysis.machine_run.traffic import Traffic
from twp_sglang.benchmarking.arguments import build_parser, settings_from
from twp_sglang.serving import options

COSTS = Costs(profile_s=20, start_s=40, calibrate_s=20, traffic_s=20, learn_s=5)
RECORD = RunRecord(
    model="dummy:tiny",
    platform="cpu",
    attention_backend="torch_native",
    seed=0,
    engine_flags=(),
)


def planned(seconds: float, **settled: bool) -> Planned:
    return plan(STAGES, lambda name: settled.get(name.replace("-", "_")), COSTS, seconds)


def test_all_is_planned_when_there_is_time() -> None:
    everything = planned(10_000)
    assert everything.run == tuple(stage.name for stage in STAGES)
    assert everything.left_out == {}


def test_short_of_time_the_rivals_go_first() -> None:
    # profile 20, stock 80, learn 5, paper 60, tuned 60
    short = planned(230)
    assert short.run == ("profile", "stock", "learn", "paper", "tuned")
    assert "takes about 60 s, of which 5 s are left" in short.left_out["static-b0"]


def test_what_failed_takes_its_dependants_with_it() -> None:
    after = planned(1000, profile=True, stock=True, paper=True, learn=False)
    assert "tuned" not in after.run
    assert after.left_out["tuned"] == "needs learn, which failed"
    assert after.left_out["neighbour"] == "needs learn, which failed"
    assert {"static-b0", "regulated"} <= set(after.run)
    nothing = planned(1000, profile=True, stock=False)
    assert nothing.run == ()
    assert nothing.left_out["paper"] == "needs stock, which failed"


@given(
    seconds=st.floats(0, 3000),
    settled=st.dictionaries(st.sampled_from([s.name for s in STAGES]), st.booleans()),
)
def test_a_plan_fits_and_accounts_for_every_stage(seconds: float, settled: dict[str, bool]) -> None:
    found = plan(STAGES, settled.get, COSTS, seconds)
    cost = sum(COSTS.of(stage) for stage in STAGES if stage.name in found.run)
    assert cost <= seconds
    assert {*found.run, *found.left_out, *settled} == {stage.name for stage in STAGES}
    assert not set(found.run) & set(found.left_out)
    for stage in STAGES:
        if stage.name in found.run:
            place = found.run.index(stage.name)
            assert all(settled.get(n) is True or n in found.run[:place] for n in stage.needs)


def test_a_folder_goes_on_only_when_asked_and_only_with_the_same_run(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="no run to go on with"):
        ResultsFolder(tmp_path / "a", RECORD, resume=True)
    ResultsFolder(tmp_path / "a", RECORD, resume=False)
    with pytest.raises(FolderError, match="go on with --resume"):
        ResultsFolder(tmp_path / "a", RECORD, resume=False)
    ResultsFolder(tmp_path / "a", RECORD, resume=True)
    other = RECORD.model_copy(update={"model": "dummy:llama-3.2-3b"})
    with pytest.raises(FolderError, match=r"model = 'dummy:tiny', asked for is 'dummy:llama"):
        ResultsFolder(tmp_path / "a", other, resume=True)


def test_a_cut_stage_starts_clean_and_a_finished_one_is_known(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path, RECORD, resume=False)
    place = folder.fresh("stock")
    (place / "half.json").write_text("{")
    assert folder.ok("stock") is None
    assert list(folder.fresh("stock").iterdir()) == []
    folder.finish(StageResult(name="stock", ok=True, seconds=1.5, content={"a": [1]}))
    folder.fresh("paper")
    folder.finish(StageResult(name="paper", ok=False, seconds=1.0, error="no server"))
    again = ResultsFolder(tmp_path, RECORD, resume=True)
    assert again.ok("stock") is True
    assert again.ok("paper") is False
    again.forget_failures()
    assert again.ok("paper") is None
    assert again.ok("stock") is True


def traffic(**changes: Any) -> Traffic:
    values = {
        "rate_rps": 2.0,
        "seconds": 40.0,
        "burst_factor": 4.0,
        "input_tokens": "16-96",
        "output_tokens": "16-48",
        "seed": 3,
        "how": "stated",
    }
    return Traffic.model_validate({**values, **changes})


def test_traffic_is_an_ordinary_bench_run(tmp_path: Path) -> None:
    words = ["run", "--json", str(tmp_path / "r.json"), *traffic().bench_words("ttft=2s")]
    asked = settings_from(build_parser().parse_args(words))
    assert asked.requests == traffic().requests == 140  # 2/s x 40 s x (1 + 3 x 0.25)
    assert asked.bursts == (traffic().burst,)
    assert traffic().burst.end_s < 40.0


@pytest.mark.parametrize(("gain", "beside"), [(0.1, 0.2), (0.5, 1.0), (0.6, 0.3), (1.0, 0.5)])
def test_the_neighbour_is_one_octave_away_and_a_gain(gain: float, beside: float) -> None:
    assert _next_gain(gain) == beside


def test_objectives_reach_the_policy_that_holds_them() -> None:
    flags = objectives("ttft=2s,itl_p99=50ms,e2e=10s")
    assert flags == ("--twp-ttft-slo", "2000ms", "--twp-itl-slo", "50ms")
    config = options.parse(["--twp-policy", "slo", *flags]).config
    assert (config.ttft_slo_ms, config.itl_slo_ms) == (2000.0, 50.0)
    assert objectives("") == ()


def served(name: str, itl: float, **content: Any) -> StageResult:
    metrics = {"itl_ms_p99": itl, "ttft_ms_p99": 100.0, "tokens_per_s": 1000.0, "completed": 140}
    found = {
        "metrics": metrics,
        "traffic": traffic().model_dump(),
        "cautions": [],
        "calibration": {
            "l_min_ms": 5.0,
            "b0": 8,
            "alpha_ms": None,
            "prefill_ms_per_token": 0.01,
            "shape": "line",
            "warnings": ["a warning"],
        },
    }
    return StageResult(name=name, ok=True, seconds=50.0, content={**found, **content})


def test_the_best_static_is_marked() -> None:
    results = {
        name: served(name, itl)
        for name, itl in (("stock", 9.0), ("static-b0", 30.0), ("static-2b0", 20.0))
    }
    rows = {row["setting"]: row for row in comparison(results)}
    assert [row["setting"] for row in rows.values()] == ["stock", "static-b0", "static-2b0"]
    assert rows["static-2b0"]["best_static"]
    assert not rows["static-b0"]["best_static"]
    assert not rows["stock"]["best_static"]


def test_the_report_says_dummy_what_is_left_out_and_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The picture is drawn from bench files, which a unit test has none of.
    monkeypatch.setattr("analysis.machine_run.report._draw", lambda root, rows: False)
    settings = RunSettings(model="dummy:tiny", out=tmp_path, platform="cpu")
    set_up = engine_set_up(settings, tmp_path, gpu=False)
    results = {
        "stock": served("stock", 9.0),
        "paper": served("paper", 8.0, fallbacks=1),
        "learn": StageResult(
            name="learn",
            ok=False,
            seconds=1.0,
            error="not tuned: no knee",
            content={"refusals": ["no knee was seen"], "identified": {}},
        ),
    }
    left = Planned(run=("static-b0",), left_out={"tuned": "needs learn, which failed"})
    write_report(tmp_path, settings, set_up, results, left)
    text = (tmp_path / "report.md").read_text()
    for part in (
        "**Dummy weights**",
        "**CPU reference platform**",
        "**paper: TWP fell back to stock scheduling.**",
        "| stock | 100 | 9 | 1,000 | 140 |",
        "a warning",
        "- no knee was seen",
        "- tuned: needs learn, which failed",
        "- static-b0: still to do",
        "- learn failed: not tuned: no knee",
    ):
        assert part in text, part
    rows = list(csv.DictReader((tmp_path / "comparison.csv").open()))
    assert [row["setting"] for row in rows] == ["stock", "paper"]


def test_a_dummy_model_is_a_folder_that_sglang_can_build(tmp_path: Path) -> None:
    settings = RunSettings(model="dummy:llama-3.2-3b", out=tmp_path)
    gpu = engine_set_up(settings, tmp_path, gpu=True)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_hidden_layers"], config["vocab_size"]) == (28, 128256)
    for flag, value in (
        ("--load-format", "dummy"),
        ("--attention-backend", "flashinfer"),
        ("--model-path", str(tmp_path / "model")),
    ):
        assert gpu.flags[gpu.flags.index(flag) + 1] == value
    assert "--skip-tokenizer-init" in gpu.flags
    assert "--backend flashinfer" in " ".join(gpu.profile_words)


def test_without_flashinfer_the_engine_is_refused_in_one_line(tmp_path: Path) -> None:
    settings = RunSettings(model="dummy:tiny", out=tmp_path)
    if find_spec("sglang") is None or find_spec("flashinfer") is not None:
        pytest.skip("SGLang is missing, or FlashInfer is there")
    line = engine_missing(settings, gpu=True)
    assert line is not None
    assert "FlashInfer is not installed: pip install flashinfer-python" in line
    assert engine_missing(settings, gpu=False) is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "dummy:nonsense"], "--model nonsense: no such shape"),
        (["--model", "dummy:tiny", "--minutes", "0"], "--minutes 0"),
        (["--model", "dummy:tiny", "--slo", "ttft=fast"], "ttft=fast"),
        (["--model", "dummy:tiny", "--resume"], "holds no run to go on with"),
    ],
)
def test_bad_input_is_status_2_with_one_line(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--platform", "cpu", "--out", str(tmp_path / "run"), *words]
    assert flashinfer_run.main(given) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert says in said[0]


async def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        # A module of the standard library that waits for a connection.
        await run_module("http.server", ["0", "--bind", "127.0.0.1"], tmp_path / "log", 1.0)
    ended = await run_module("platform", [], tmp_path / "log", 60.0)
    assert ended.status == 0
    assert sys.platform.capitalize() in ended.last_line
