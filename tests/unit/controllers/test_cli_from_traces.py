"""identify, tune and report as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_traces import Truth, request_trace, write_trace

from controllers.__main__ import main


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    records = request_trace(Truth(prefill_ms_per_token=0.02, delay_steps=1), steps=3000, seed=1)
    return str(write_trace(path, records))


@pytest.fixture(scope="module")
def idle_trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("trace") / "idle.jsonl"
    return str(write_trace(path, request_trace(Truth(), steps=1500, max_batch=7)))


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_identify_json(capsys: pytest.CaptureFixture[str], trace: str) -> None:
    code, out, _ = call(capsys, "identify", trace, "--json")
    answer: dict[str, Any] = json.loads(out)
    assert code == 0
    truth = {"l_min_ms": 43, "b0": 8, "alpha_ms": 4.3, "kappa_ms_per_token": 0}
    for name, value in (truth | {"prefill_ms_per_token": 0.02, "delay_steps": 1}).items():
        assert set(answer[name]) == {"value", "lo", "hi"}
        assert answer[name]["lo"] <= value <= answer[name]["hi"]
    assert answer["identifiable"] is True
    assert answer["fit_percent"] > 50


def test_identify_for_people_and_to_a_file(
    capsys: pytest.CaptureFixture[str], trace: str, tmp_path: Path
) -> None:
    target = tmp_path / "model.json"
    code, out, _ = call(capsys, "identify", trace, "--out", str(target))
    assert code == 0
    assert "identifiable yes" in out
    assert json.loads(target.read_text())["identifiable"] is True


def test_identify_says_no(capsys: pytest.CaptureFixture[str], idle_trace: str) -> None:
    code, out, _ = call(capsys, "identify", idle_trace, "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["identifiable"] is False
    assert answer["alpha_ms"] is None
    assert answer["refusals"][0]["code"] == "knee-not-reached"


def test_tune_writes_what_margins_reads(
    capsys: pytest.CaptureFixture[str], trace: str, tmp_path: Path
) -> None:
    target = tmp_path / "twp.toml"
    arguments = ("--json", "--out", str(target), "--date", "2026-01-31", "--models", "10")
    code, out, _ = call(capsys, "tune", trace, *arguments)
    answer = json.loads(out)
    assert code == 0
    assert answer["worst_case"]["disk_margin_alpha"] >= 0.67
    assert answer["configuration"]["law"] == "paper"
    assert answer["evidence"]["date"] == "2026-01-31"
    again = call(capsys, "tune", trace, *arguments)[1]
    assert again == out
    code, out, _ = call(
        capsys, "margins", "--config", str(target), "--set", "delay_steps=1", "--json"
    )
    assert code == 0
    assert json.loads(out)["stable"] is True


def test_tune_for_people(capsys: pytest.CaptureFixture[str], trace: str) -> None:
    arguments = ("--set", "law=regulated", "--set", "gamma=0.3", "--models", "8")
    code, out, err = call(capsys, "tune", trace, *arguments)
    assert code == 0
    assert "sigma_ref" in out
    assert "worst case over" in out
    assert "tune finds gamma itself" in err


def test_tune_refuses_in_one_line(capsys: pytest.CaptureFixture[str], idle_trace: str) -> None:
    code, out, err = call(capsys, "tune", idle_trace, "--json")
    assert code == 2
    assert json.loads(out)["configuration"] is None
    assert err.startswith("error: cannot tune: ")
    assert err.count("\n") == 1


def test_report(capsys: pytest.CaptureFixture[str], trace: str, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    code, out, _ = call(capsys, "report", trace, "--out", str(folder), "--models", "8", "--json")
    answer = json.loads(out)
    assert code == 0
    assert Path(answer["page"]).read_text().startswith("<!doctype html>")
    assert all(Path(path).stat().st_size > 5000 for path in answer["figures"])
    code, out, _ = call(capsys, "report", "--set", "law=aimd", "--out", str(folder))
    assert code == 0
    assert "report.html" in out


@pytest.mark.parametrize("command", ["identify", "tune", "report"])
@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["{folder}/none.jsonl"], "no such trace file"),
        (["{folder}/bad.jsonl"], "bad.jsonl, line 1"),
        (["{trace}", "--seed", "-1"], "--seed -1"),
        (["{trace}", "--set", "gama=1"], "did you mean gamma"),
        (["{trace}", "--config", "{folder}/none.toml"], "none.toml"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str],
    trace: str,
    tmp_path: Path,
    command: str,
    arguments: list[str],
    match: str,
) -> None:
    (tmp_path / "bad.jsonl").write_text("hello\n")
    words = [a.format(folder=tmp_path, trace=trace) for a in arguments]
    code, out, err = call(capsys, command, *words)
    assert code == 2
    assert out == ""
    assert match in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--out", "x.yaml"], ".toml or .json"),
        (["--disk-margin", "3"], "disk_margin = 3"),
        (["--slo-sigma", "0.5"], "slo_sigma = 0.5"),
        (["--slo-ms", "nan"], "slo_ms"),
        (["--set", "law=vegas"], "law = 'vegas'"),
        (["--set", "law=predictive"], "only paper and regulated have a gain to tune"),
        (["--batch-max", "100000000"], "batch_max = 100000000"),
        (["--date", "yesterday"], "ISO 8601"),
        (["--set", "lengths=const:x"], "lengths"),
        (["--out", "/nonexistent/folder/x.toml"], "No such file"),
    ],
)
def test_tune_bad_arguments(
    capsys: pytest.CaptureFixture[str], trace: str, arguments: list[str], match: str
) -> None:
    code, _, err = call(capsys, "tune", trace, *arguments)
    assert code == 2
    assert match in err
