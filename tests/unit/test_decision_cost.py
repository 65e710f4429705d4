"""The benchmark of the decision runs, and the decision does not grow with a closed queue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import decision_cost
from benchmarks.decision_cost import main, measure_case


def test_a_closed_gate_costs_the_same_whatever_waits(tmp_path: Path) -> None:
    few = measure_case("closed", 100, 16, 60, tmp_path)
    many = measure_case("closed", 10_000, 16, 60, tmp_path)
    # Far from what walking 10,000 requests would take, and far above this machine's noise.
    assert many.decision_us < 10 * few.decision_us + 100.0


def test_it_prints_a_table_writes_json_and_says_whether_targets_are_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decision_cost, "QUEUES", (100,))
    monkeypatch.setattr(decision_cost, "BATCHES", (8,))
    file = tmp_path / "cost.json"
    monkeypatch.setattr(decision_cost, "TARGET_US", {"closed": {100: 1e9}, "open": {}})
    assert main(["--passes", "40", "--json", str(file)]) == 0
    assert "closed" in capsys.readouterr().out
    rows = json.loads(file.read_text())["rows"]
    assert [row["gate"] for row in rows] == ["closed", "open"]
    assert all(row["met"] for row in rows)
    monkeypatch.setattr(decision_cost, "TARGET_US", {"closed": {100: 0.001}, "open": {}})
    assert main(["--passes", "40"]) == 1
    assert "MISSED" in capsys.readouterr().out


def test_sglangs_own_prefix_cache_can_be_asked(tmp_path: Path) -> None:
    pytest.importorskip("sglang.srt.mem_cache.unified_radix_cache", reason="needs SGLang installed")
    engine = decision_cost._Engine("open", 100, 8, tmp_path, "slo", prefix_cache=True)
    for _ in range(60):
        engine.run_pass()
    # Those that came first found an empty cache and were asked about again.
    assert engine.runtime.policy.queue.cached_tokens > 1_000


def test_too_few_passes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--passes", "3"])
    assert caught.value.code == 2
    assert "--passes 3" in capsys.readouterr().err
