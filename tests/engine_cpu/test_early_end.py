"""SIGTERM to a launcher whose children are still importing leaves none of them behind."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import psutil

from tests.engine_cpu.server import START_TIMEOUT_S, command, free_port


def test_sigterm_during_the_start(model: Path, tmp_path: Path) -> None:
    with (tmp_path / "server.log").open("wb") as log:
        launcher = subprocess.Popen(
            command(model, free_port(), "--max-total-tokens", "2048"),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    watched = psutil.Process(launcher.pid)
    children: list[psutil.Process] = []
    try:
        end = time.monotonic() + START_TIMEOUT_S
        # The scheduler, the detokenizer, and multiprocessing's own helper.
        while len(children) < 3:
            assert time.monotonic() < end
            assert launcher.poll() is None, (tmp_path / "server.log").read_text()[-2000:]
            children = watched.children(recursive=True)
            time.sleep(0.02)
        launcher.terminate()
        assert launcher.wait(30) == 128 + signal.SIGTERM
        _, left = psutil.wait_procs(children, timeout=10)
        assert left == []
    finally:
        for process in [watched, *children]:
            if process.is_running():
                process.kill()
        launcher.wait(20)
