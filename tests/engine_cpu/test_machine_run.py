"""The run kit on the CPU engine, killed and resumed."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
START_LIMIT_S = 240.0


def kit(out: Path, minutes: str, *flags: str) -> list[str]:
    return [
        *(sys.executable, "-m", "analysis.flashinfer_run", "--model", "dummy:tiny"),
        *("--platform", "cpu", "--minutes", minutes, "--out", str(out), *flags),
    ]


def processes_with(text: str) -> list[str]:
    """Command lines of this machine that hold ``text``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in words:
            found.append(words)
    return found


@pytest.mark.timeout(600)
def test_killed_halfway_it_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    stock = out / "stages" / "stock" / "stage.json"
    process = subprocess.Popen(kit(out, "3"), env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + START_LIMIT_S
        while not stock.exists():
            assert process.poll() is None, "it ended before the stock stage did"
            assert time.monotonic() < end, "the stock stage took too long"
            time.sleep(0.2)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    # What was done is reported already, or at the next stage at the latest.
    first = json.loads(stock.read_text())
    assert first["ok"], first["error"]
    assert (out / "report.md").exists()
    end = time.monotonic() + 60
    while processes_with(str(out)) and time.monotonic() < end:
        time.sleep(0.5)
    assert processes_with(str(out)) == []

    written = stock.stat().st_mtime_ns
    # Time for one more server, by what the first one took; it may take longer on a busy machine.
    one = first["content"]["timing"]
    minutes = (1.5 * (one["start_s"] + one["traffic_s"]) + 30.0) / 60.0
    done = subprocess.run(
        kit(out, f"{minutes:.2f}", "--resume"),
        env=ENVIRONMENT, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert stock.stat().st_mtime_ns == written

    rows = {row["setting"]: row for row in csv.DictReader((out / "comparison.csv").open())}
    assert {"stock", "paper"} <= set(rows)
    for row in rows.values():
        assert int(row["completed"]) > 0
        assert int(row["failed"]) == 0
    # The same requests: as many, of the same lengths, whatever the setting.
    assert rows["stock"]["completed"] == rows["paper"]["completed"]
    paper = json.loads((out / "stages" / "paper" / "stage.json").read_text())["content"]
    assert paper["deciding"] is True
    assert paper["fallbacks"] == 0
    assert paper["config"]["law"] == "paper"

    text = (out / "report.md").read_text()
    for part in ("**Dummy weights**", "**CPU reference platform**", "## The engine", "- tuned: "):
        assert part in text
    assert (out / "report.png").stat().st_size > 10_000
    # Tuned, or the reason why this machine's steps carry no tuning: never silence.
    learnt = json.loads((out / "stages" / "learn" / "stage.json").read_text())
    assert learnt["ok"] == ("tuned" in learnt["content"])
    assert learnt["ok"] or learnt["content"]["refusals"]
    profile = json.loads((out / "stages" / "profile" / "step.json").read_text())
    assert profile["measured"]["agreement"]["good"] is True
