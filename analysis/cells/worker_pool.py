"""A pool of worker processes that end with their parent.

Its workers wait for work on a pipe whose other end they hold themselves, so they never learn
that a parent which was killed is gone, and stay.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from concurrent.futures import ProcessPoolExecutor


def worker_pool(jobs: int) -> ProcessPoolExecutor:
    """A pool of ``jobs`` processes; not forked, because the caller may have started threads (a
    progress bar has)."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=end_with_parent)


def end_with_parent() -> None:
    """To be called in a worker process as it starts: a thread then ends the process once its parent
    has ended, however that came about. Nothing in the parent itself."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def watch() -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
