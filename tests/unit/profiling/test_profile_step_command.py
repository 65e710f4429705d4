"""``python -m twp_sglang.profile_step`` on a CPU: from the command to those who read its files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from controllers.__main__ import main as controllers_main
from controllers.trace_reader import read_step_trace
from twp_sglang.profile_step import main
from twp_sglang.simulator.step_sources import step_source
from twp_sglang.step_profiles import read_profile

QUICK = ["--model", "tiny", "--backend", "sdpa", "--device", "cpu", "--threads", "1"]
GRID = ["--batches", "1,2,4,8", "--contexts", "16,64", "--chunks", "8,32", "--repeats", "25"]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("profile") / "step.json"
    assert main([*QUICK, *GRID, "--out", str(out)]) == 0
    return out


def test_the_model_is_a_step_profile_that_says_how_it_was_made(profiled: Path) -> None:
    profile = read_profile(profiled)
    assert profile.step.kind == "affine"
    assert profile.step.l_min_ms > 0
    assert profile.kv_tokens is not None
    made: dict[str, Any] = profile.measured or {}
    assert made["complete"] is True
    assert made["agreement"]["good"] is True
    assert set(made["fit"]["held_out_error_percent"]) >= {"all", "decode"}
    assert made["headline"]["point"].startswith("decode B 8 x 64")
    assert made["headline"]["over_roofline"] > 0
    for row in made["points"]:
        assert row["ms"] > 0
        assert row["over_roofline"] == pytest.approx(row["ms"] / row["roofline_ms"], rel=0.02)
    assert any(row["held_out"] for row in made["points"])


def test_the_trace_holds_every_timed_step(profiled: Path) -> None:
    trace = read_step_trace(profiled.with_suffix(".jsonl"))
    rows = json.loads(profiled.read_text())["measured"]["points"]
    assert len(trace) == 25 * len(rows)
    assert trace.header.model == "tiny, random weights"
    medians: dict[tuple[float, ...], list[float]] = {}
    for batch, kv, prompt, ms in zip(
        *(trace[name] for name in ("batch", "kv_tokens", "prefill_tokens", "duration_ms")),
        strict=True,
    ):
        medians.setdefault((batch, kv, prompt), []).append(ms)
    for row in rows:
        key = (row["batch"], row["batch"] * row["context"] + row["prefix"], row["chunk"])
        values = sorted(medians[key])
        if len(values) == 25:  # two points may hold the same KV tokens
            assert values[12] == pytest.approx(row["ms"], abs=1e-3)


def test_controllers_identify_reads_the_trace(
    profiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert controllers_main(["identify", str(profiled.with_suffix(".jsonl")), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    trace = read_step_trace(profiled.with_suffix(".jsonl"))
    assert answer["steps_used"] == int(trace.is_kind("decode", "mixed").sum()) >= 200
    assert answer["model"] == "tiny, random weights"
    assert answer["batch_range"] == [1.0, 8.0]
    assert answer["l_min_ms"]["value"] > 0
    # Whether a knee is there is this machine's affair; that no request finished is known.
    assert "no-lengths" in {refusal["code"] for refusal in answer["refusals"]}


def test_the_simulator_takes_both_files(profiled: Path) -> None:
    model = step_source(str(profiled)).model
    point = json.loads(profiled.read_text())["measured"]["points"][0]
    predicted = model.step_ms(point["batch"], point["batch"] * point["context"], point["chunk"])
    error = 100 * (predicted / point["ms"] - 1)
    assert error == pytest.approx(point["model_error_percent"], abs=0.1)
    replay = step_source(str(profiled.with_suffix(".jsonl"))).model
    assert replay.step_ms(1, 16, 0) > 0


def test_a_spent_budget_keeps_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "step.json"
    assert main([*QUICK, "--budget-s", "0.05", "--no-check", "--out", str(out)]) == 1
    assert "--budget-s 0.05 ran out after" in capsys.readouterr().err
    assert len(read_step_trace(out.with_suffix(".jsonl"))) > 0


def test_a_killed_run_leaves_files_that_can_be_read(tmp_path: Path) -> None:
    out = tmp_path / "step.json"
    command = [sys.executable, "-m", "twp_sglang.profile_step", *QUICK, "--no-check"]
    process = subprocess.Popen(
        [*command, *GRID, "--repeats", "200", "--out", str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if " 6/" in line:
                break
        else:
            pytest.fail("the run ended before its sixth step")
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()
    assert len(read_step_trace(out.with_suffix(".jsonl"))) >= 5 * 200
    profile = read_profile(out)
    assert (profile.measured or {})["complete"] is False


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("profile_step: ")
    assert "Traceback" not in "".join(said)
    return said[-1]


def test_without_flashinfer_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real where FlashInfer is not installed, as on any machine without a GPU."""
    try:
        import flashinfer  # noqa: F401
    except ModuleNotFoundError:
        pass
    else:
        pytest.skip("FlashInfer is installed here")
    out = tmp_path / "step.json"
    line = refused(capsys, "--model", "llama-3.2-3b", "--backend", "flashinfer", "--out", str(out))
    assert "FlashInfer is not installed: pip install flashinfer-python" in line
    assert list(tmp_path.iterdir()) == []


def test_a_shape_beyond_memory_is_refused_before_it_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absurd = json.loads(
        (Path(__file__).parents[3] / "twp_sglang/profiling/model_shapes/tiny.json").read_text()
    )
    absurd |= {"hidden_size": 10**6, "layers": 100}
    path = tmp_path / "absurd.json"
    path.write_text(json.dumps(absurd))
    begun = time.monotonic()
    line = refused(
        capsys, "--model", str(path), "--backend", "sdpa", "--out", str(tmp_path / "step.json")
    )
    assert "out of memory: the weights of tiny take" in line
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "no-such"], "--model no-such: no such shape"),
        (["--model", "tiny", "--batches", "0,1"], "--batches"),
        (["--model", "tiny", "--contexts", "9999999"], "longer than the model's 4096"),
        (["--model", "tiny", "--repeats", "1"], "--repeats 1"),
        (["--model", "tiny", "--out", "step.txt"], "must end in .json"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--backend", "sdpa", "--device", "cpu", "--out", str(tmp_path / "s.json"), *words]
    if "--contexts" in words:
        given += ["--chunks", "99999"]
    assert says in refused(capsys, *given)


def test_an_unwritable_place_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "step.json"
    assert "--out" in refused(capsys, *QUICK, "--no-check", "--out", str(out))
