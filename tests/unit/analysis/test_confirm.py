"""Confirming a simulated cell on the emulated engine: what the server is told, what is read."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from analysis.cells.machines import machine
from analysis.cells.traffic import cell_traffic
from analysis.comparing.contenders import CATALOGUE, Setting, setting
from analysis.comparing.contest import Cell, Outcome
from analysis.confirm import main
from analysis.confirming.launching import machine_flags, setting_flags
from analysis.confirming.measuring import metrics_of, write_requests
from analysis.confirming.report import Confirmed, rows, write
from twp_sglang.benchmarking.results import (
    Failure,
    Header,
    RequestRecord,
    RunReport,
    ServerRecord,
)
from twp_sglang.benchmarking.slo_argument import parse_slos
from twp_sglang.benchmarking.summary import summarise_run
from twp_sglang.benchmarking.workload import WorkloadRecord
from twp_sglang.serving.options import parse
from twp_sglang.step_profiles import read_profile

SLO = "ttft=2s,itl_p99=100ms"


def _setting(name: str, **choice: Any) -> Setting:
    return setting(CATALOGUE[name], choice, machine("paper-v100"), 60.0, SLO)


@pytest.mark.parametrize("name", ["slo", "twp-as-printed", "static-spf"])
def test_server_gets_the_simulated_configuration(name: str) -> None:
    choice = {"slo": {"step_model": "machine"}, "static-spf": {"max_running_requests": 16}}
    chosen = _setting(name, **choice.get(name, {}))
    options = parse([*setting_flags(chosen), "--model-path", "m"])
    told = options.config.model_dump()
    for field, value in chosen.config.items():
        assert told[field] == value, field
    assert "--enable-mixed-chunk" in options.engine_argv


def test_stock_gets_nothing_of_twp() -> None:
    assert setting_flags(_setting("stock")) == [
        "--twp-policy", "off", "--chunked-prefill-size", "8192",
    ]  # fmt: skip


def test_chunk_and_cap_are_sglangs_flags() -> None:
    flags = setting_flags(_setting("static", chunk_tokens=512, max_running_requests=16))
    assert flags == [
        "--twp-policy", "off", "--enable-mixed-chunk",
        "--chunked-prefill-size", "512", "--max-running-requests", "16",
    ]  # fmt: skip


def test_interval_between_prompt_steps() -> None:
    flags = setting_flags(_setting("interval", prefill_decode_interval=4, chunk_tokens=64))
    assert flags[flags.index("--prefill-decode-interval") + 1] == "4"


def test_setting_without_a_flag_is_refused() -> None:
    with pytest.raises(ValueError, match="page_size: cannot be told to the emulated engine"):
        setting_flags(Setting({"policy": "off"}, {"page_size": 16}))


def test_changed_machine_becomes_a_file(tmp_path: Path) -> None:
    flags = machine_flags(machine("paper-v100,alpha_ms=8.6"), tmp_path)
    assert flags[0] == "--twp-emulate"
    profile = read_profile(Path(flags[1]))
    assert profile.step == machine("paper-v100,alpha_ms=8.6").step
    named = machine_flags(machine("paper-v100"), tmp_path)
    assert named[1] == "paper-v100"


def test_same_requests_as_simulated(tmp_path: Path) -> None:
    traffic = cell_traffic("paper-mixture", machine("paper-v100"), "test", 0.5, 0, 20)
    write_requests(traffic, tmp_path / "r.csv")
    with (tmp_path / "r.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [int(row["input_tokens"]) for row in written] == [
        request.input_tokens for request in traffic.requests
    ]
    assert float(written[-1]["t_s"]) == pytest.approx(traffic.requests[-1].arrival_s, abs=1e-6)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--machine", "none-such"], "none-such"),
        (["--traffic", "nothing"], "traffic nothing"),
        (["--contender", "nobody"], "--contender nobody"),
        (["--slo", "speed=1"], "speed"),
        (["--requests", "0"], "--requests"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main([*words, "--out", str(tmp_path)])
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert len(said.strip().splitlines()) == 1


def _run(fraction: float) -> dict[str, Any]:
    return {
        "requests": 10, "completed": 10, "tokens_per_s": 5.0, "itl_ms_p99": 90.0,
        "goodput": {SLO: {"fraction": fraction, "long_fraction": 0.5}},
    }  # fmt: skip


def test_row_tells_engine_and_simulation_apart(tmp_path: Path) -> None:
    cell = Cell(machine="paper-v100", traffic="paper-mixture", load=0.5, slo=SLO)
    outcome = Outcome(cell, CATALOGUE["stock"], True, {}, [_run(0.8), _run(0.9)], 1)
    found = [Confirmed(outcome, ("--x",), (_run(0.2), _run(0.4)))]
    (row,) = rows(found)
    assert row["goodput_fraction"] == pytest.approx(0.3)
    assert row["goodput_simulated"] == pytest.approx(0.85)
    assert row["goodput_runs"] == "0.200 0.400"
    write(found, "command", tmp_path)
    assert json.loads((tmp_path / "confirm.json").read_text())["rows"][0]["flags"] == "--x"


def _record(index: int, itl_ms: tuple[float, ...], error: Failure | None) -> RequestRecord:
    return RequestRecord(
        index=index, arrival_s=float(index), lateness_ms=0.0, ttft_ms=50.0, itl_ms=itl_ms,
        chunk_tokens=(1,) * (len(itl_ms) + 1), e2e_ms=50.0 + sum(itl_ms),
        planned_input_tokens=10 * index, planned_output_tokens=len(itl_ms) + 1, prompt_tokens=None,
        cached_tokens=None, output_tokens=len(itl_ms) + 1, count_source="server",
        finish_reason="length", error=error, ended_s=index + 1.0,
    )  # fmt: skip


def _report() -> RunReport:
    server = ServerRecord(
        kind="sglang",
        emulated=True,
        twp_after=({"emulated_steps": 200, "emulated_starved_steps": 20},),
    )
    workload = WorkloadRecord(
        name="csv", source="r.csv", requests=3, rate_rps=None, arrivals="trace", bursts=(),
        input_tokens="r.csv", output_tokens="r.csv", prompts="ids", ignore_eos=True, span_s=2.0,
        fingerprint="f",
    )  # fmt: skip
    header = Header(
        label="x", date="2026-01-01", command="bench", url="u", api="sglang", client="c", seed=0,
        salt="s", slos=parse_slos(SLO), warmup=0, timeout_s=1.0, concurrency_cap=None,
        flush="done", interrupted=False, workload=workload, server=server,
    )  # fmt: skip
    records = (
        _record(0, (90.0, 90.0), None),
        _record(1, (90.0, 300.0), None),
        _record(2, (90.0,), Failure(kind="http_500", message="no", status=500)),
    )
    return RunReport(
        header=header, summary=summarise_run(records, header, [0.1, 0.2]), requests=records
    )


def test_metrics_of_a_clients_file() -> None:
    """One request in time, one too slow, one failed: a failure is a miss."""
    found = metrics_of(_report(), SLO)
    assert found["goodput"][SLO]["fraction"] == pytest.approx(1 / 3)
    assert found["failed"] == {"http_500": 1}
    assert found["starved_share"] == pytest.approx(0.1)
    assert found["itl_ms_max"] == 300.0
