"""Workers of a parent that was killed end too."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection

from analysis.cells.worker_pool import end_with_parent, worker_pool


def _parent(says: Connection) -> None:
    pool = worker_pool(1)  # kept: one that nobody holds ends its workers itself
    says.send(pool.submit(os.getpid).result())
    time.sleep(60)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_ends_with_its_parent() -> None:
    context = multiprocessing.get_context("spawn")
    hears, says = context.Pipe(duplex=False)
    parent = context.Process(target=_parent, args=(says,))
    parent.start()
    assert hears.poll(60)
    worker = hears.recv()
    assert _runs(worker)
    assert parent.pid is not None
    os.kill(parent.pid, signal.SIGKILL)
    parent.join(10)
    end = time.monotonic() + 20
    while _runs(worker) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _runs(worker)


def test_a_process_without_a_parent_goes_on() -> None:
    end_with_parent()
