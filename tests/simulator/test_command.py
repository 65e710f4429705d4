"""``python -m twp_sglang.simulate``: flags, files, errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from controllers.trace_reader import read_step_trace
from twp_sglang.config import POLICY_NAMES
from twp_sglang.simulator.command import main

PROMISED = {
    *("requests", "completed", "output_tokens_per_s", "ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"),
    *("itl_cv", "decode_gap_ms", "goodput_rps", "goodput_fraction", "retractions", "forced"),
    *("window_tokens", "wall_s"),
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    rows = [f"{0.05 * i:.3f},{40 + i % 90},{5 + i % 30}" for i in range(120)]
    path.write_text("t_s,input_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    return path


def run(trace: Path, out: Path, *more: str, policy: str = "twp") -> int:
    traffic = ["--trace", str(trace), "--format", "csv", "--policy", policy]
    return main([*traffic, "--step-model", "paper-v100", "--json", str(out), *more])


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_runs_and_reports_what_was_promised(
    trace: Path, tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.json"
    assert run(trace, out, "--slo", "ttft=2s,itl_p99=100ms", policy=policy) == 0
    result: dict[str, Any] = json.loads(out.read_text())
    assert set(result) >= PROMISED
    for group in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "decode_gap_ms"):
        assert {"p50", "p95", "p99", "max"} <= set(result[group])
    assert result["requests"] == result["completed"] == 120
    assert result["simulated"] is True
    assert 0 <= result["goodput_fraction"] <= 1
    shown = capsys.readouterr()
    assert "simulated" in shown.out
    assert "120 requests" in " ".join(shown.err.split())


def test_equal_commands_write_equal_bytes(trace: Path, tmp_path: Path) -> None:
    results = []
    for name in ("a", "b"):
        out, steps = tmp_path / f"{name}.json", tmp_path / f"{name}.jsonl"
        assert run(trace, out, "--steps", str(steps), "--noise", "0.1", "--seed", "3") == 0
        result = json.loads(out.read_text())
        del result["wall_s"]
        results.append((json.dumps(result), steps.read_bytes()))
    assert results[0] == results[1]


def test_objectives_are_stated_as_to_the_server(trace: Path, tmp_path: Path) -> None:
    model = ("l_min_ms=43", "alpha_ms=4.3", "prefill_ms_per_token=0.1")
    itl = []
    # 5 baseline steps of 43 ms are 215 ms.
    for name, objective in enumerate(("itl_slo=auto", "itl_slo=0.215s", "itl_slo_ms=60")):
        out = tmp_path / f"{name}.json"
        settings = [word for item in (*model, objective) for word in ("--set", item)]
        assert run(trace, out, *settings, policy="slo") == 0
        itl.append(json.loads(out.read_text())["itl_ms"])
    assert itl[0] == itl[1] != itl[2]


def test_policy_slo_holds_what_it_is_judged_by(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o.json"
    judged = ("--slo", "ttft=5s,itl_p99=86ms")
    assert run(trace, out, *judged, policy="slo") == 0
    held = json.loads(out.read_text())["config"]
    assert (held["itl_slo_ms"], held["ttft_slo_ms"], held["itl_delivery_ms"]) == (86, 5000, 0)
    assert "itl_slo_ms = 86, ttft_slo_ms = 5000" in capsys.readouterr().err
    # What is stated stays as it is stated.
    assert run(trace, out, *judged, "--set", "itl_slo=60ms", policy="slo") == 0
    held = json.loads(out.read_text())["config"]
    assert (held["itl_slo_ms"], held["ttft_slo_ms"], held["itl_delivery_ms"]) == (60, 5000, 10)
    assert "itl_slo_ms" not in capsys.readouterr().err
    assert run(trace, out, *judged, policy="twp") == 0
    assert json.loads(out.read_text())["config"]["itl_slo_ms"] == 50


def test_a_seed_is_no_negative_number(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(trace, tmp_path / "o.json", "--seed", "-1")
    assert "argument --seed: -1: must be at least 0" in capsys.readouterr().err


def test_steps_are_read_by_the_controllers(trace: Path, tmp_path: Path) -> None:
    steps = tmp_path / "s.jsonl"
    assert run(trace, tmp_path / "o.json", "--steps", str(steps)) == 0
    read = read_step_trace(steps)
    assert read.header.emulated
    assert len(read) == json.loads((tmp_path / "o.json").read_text())["steps"]
    assert len(read.finished) == 120


def test_each_replica_writes_its_own_steps(trace: Path, tmp_path: Path) -> None:
    steps = tmp_path / "s.jsonl"
    assert run(trace, tmp_path / "o.json", "--steps", str(steps), "--replicas", "2") == 0
    assert sum(len(read_step_trace(tmp_path / f"s-{i}.jsonl").finished) for i in range(2)) == 120


def test_a_recorded_trace_can_be_the_step_model(trace: Path, tmp_path: Path) -> None:
    steps, out = tmp_path / "s.jsonl", tmp_path / "o.json"
    assert run(trace, out, "--steps", str(steps)) == 0
    replayed = [
        *("--trace", str(trace), "--format", "csv", "--policy", "twp", "--json", str(out)),
        *("--step-model", str(steps), "--kv-tokens", "32768"),
        *("--chunk-tokens", "64"),
    ]
    assert main(replayed) == 0
    assert json.loads(out.read_text())["steps_off_record"] >= 1


def test_configuration_comes_from_file_and_set(trace: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "c.toml", tmp_path / "o.json"
    file.write_text("gamma = 0.3\nh0_tokens = 800\n")
    assert run(trace, out, "--config", str(file), "--set", "gamma=0.2", "--set", "b0=4") == 0
    config = json.loads(out.read_text())["config"]
    assert (config["gamma"], config["h0_tokens"], config["b0"]) == (0.2, 800.0, 4)


def test_declared_limits_reach_the_scheduler(trace: Path, tmp_path: Path) -> None:
    out, steps = tmp_path / "o.json", tmp_path / "s.jsonl"
    assert run(trace, out, "--max-new-tokens", "20", "--steps", str(steps)) == 0
    result = json.loads(out.read_text())
    assert "are cut" in result["workload"]["notes"][-1]
    first = json.loads(steps.read_text().splitlines()[1])
    assert first["admissions"][0]["expected_tokens"] == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "gama=0.1"], "(--set gama=0.1): no such field; did you mean gamma?"),
        (["--set", "gamma=7"], "gamma = 7 (--set gamma=7)"),
        (["--set", "gamma"], "write KEY=VALUE"),
        (["--slo", "ttft=2"], "'ttft=2': give it with its unit, for example 50ms or 2s"),
        (["--step-model", "b200"], "'b200': no such profile"),
        (["--step-model", "table:x/y"], "table:x/y"),
        (["--time-stretch", "-1"], "--time-stretch -1"),
        (["--time-stretch", "1e308"], "--time-stretch 1e+308"),
        (["--steps", "{out}"], "would write over --json"),
        (["--noise", "-1"], "noise = -1"),
        (["--page-size", "16", "--kv-tokens", "10"], "kv_tokens = 10 is less than one page"),
        (["--page-size", "16", "--chunk-tokens", "40"], "multiple of page_size"),
        (["--config", "absent.toml"], "absent.toml: cannot be read"),
        (["--json", "absent/o.json"], "--json absent/o.json: its folder does not exist"),
        (["--steps", "absent/s.jsonl"], "--steps absent/s.jsonl: its folder does not exist"),
        (["--trace", "absent.csv"], "absent.csv: no such file"),
    ],
)
def test_bad_input_is_one_message_and_status_2(
    trace: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "o.json"
    assert run(trace, out, *(word.format(out=out) for word in arguments)) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert not out.exists()


@pytest.mark.parametrize("flag", ["--policy", "--kv-tokens", "--limit", "--seed"])
def test_the_parser_refuses_unknown_values(
    trace: Path, tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        run(trace, tmp_path / "o.json", flag, "nonsense")
    assert stop.value.code == 2
    assert "nonsense" in capsys.readouterr().err


def test_the_module_runs_and_has_help() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twp_sglang.simulate", "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "--step-model" in done.stdout


@pytest.mark.parametrize("policy", ["round-robin", "serverlessllm", "twp"])
def test_a_pool_is_reported_with_its_cold_starts(
    trace: Path, tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pool, out = tmp_path / "pool.toml", tmp_path / "o.json"
    pool.write_text('gpus_per_node = 1\n[[models]]\nname = "m"\non_nvme = [1]\n')
    assert run(trace, out, "--pool", str(pool), policy=policy) == 0
    result = json.loads(out.read_text())
    assert set(result) >= PROMISED
    assert result["policy"] == policy
    assert result["completed"] == result["pool"]["requests"]["m"] == 120
    assert sum(result["pool"]["cold_starts"].values()) >= 1
    # The first request at least waited for its container, and its TTFT holds that.
    assert result["ttft_ms"]["max"] > result["pool"]["loading_ms"]["p50"] > 500
    assert "cold starts" in capsys.readouterr().out


def test_container_policies_bring_a_pool(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.json"
    assert run(trace, out, policy="serverlessllm") == 0
    assert json.loads(out.read_text())["pool"]["settings"]["nodes"] == 2


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("nodes = 0", [], "nodes = 0: Input should be greater than or equal to 1"),
        ("nods = 1", [], "nods = 1: Extra inputs are not permitted"),
        ("nodes =", [], "is neither TOML nor .json"),
        ("[rates]\nnvme_gb_per_s = 0", [], "rates.nvme_gb_per_s = 0"),
        ("[[models]]\nname = 'a'\nin_dram = [5]", [], "names node 5"),
        ("", ["--pool", "absent.toml"], "absent.toml: cannot be read"),
        ("", ["--replicas", "2"], "--replicas 2: a pool starts its containers itself"),
        ("", ["--steps", "s.jsonl"], "--steps s.jsonl: a step trace is of one engine"),
    ],
)
def test_bad_pools_are_one_message_and_status_2(
    trace: Path,
    tmp_path: Path,
    text: str,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pool = tmp_path / "pool.toml"
    pool.write_text(text + "\n")
    assert run(trace, tmp_path / "o.json", "--pool", str(pool), *arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
