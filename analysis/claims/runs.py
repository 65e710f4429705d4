"""All simulations of a report, over processes, kept on disk so that a stopped run goes on."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from analysis.cells.store import ResultFile, code_fingerprint
from analysis.cells.worker_pool import worker_pool
from analysis.claims import experiment, published
from analysis.claims.experiment import (
    SETUPS,
    WORKLOADS,
    SetupName,
    Task,
    WorkloadName,
    run_task,
)
from analysis.claims.published import SCHEDULERS, Scheduler

Tell = Callable[[int, int], None]
"""Called with the simulations done and all of them."""


def tasks(runs: int, requests: int) -> list[Task]:
    """Every simulation of a report."""
    return [
        Task(setup=setup, workload=workload, scheduler=scheduler, run=run, requests=requests)
        for setup in SETUPS
        for workload in WORKLOADS
        for run in range(runs)
        for scheduler in SCHEDULERS
    ]


class Results:
    """Metrics of finished tasks, asked for by set-up, workload and scheduler."""

    def __init__(self, finished: Sequence[tuple[Task, dict[str, float]]]) -> None:
        self._found: dict[tuple[str, str, str], dict[int, dict[str, float]]] = {}
        for task, metrics in finished:
            key = (task.setup, task.workload, task.scheduler)
            self._found.setdefault(key, {})[task.run] = metrics

    def values(
        self, setup: SetupName, workload: WorkloadName, scheduler: Scheduler, metric: str
    ) -> list[float]:
        """``metric`` of each run, in order of runs."""
        runs = self._found[setup, workload, scheduler]
        return [runs[run][metric] for run in sorted(runs)]

    @property
    def runs(self) -> int:
        """Runs per combination."""
        return len(next(iter(self._found.values())))


def task_key(task: Task) -> str:
    """Names the result of a task by this code; other code gives another key."""
    digest = hashlib.sha256(code_fingerprint().encode())
    for module in (experiment, published):
        assert module.__file__ is not None
        digest.update(Path(module.__file__).read_bytes())
    digest.update(json.dumps(task.model_dump(mode="json"), sort_keys=True).encode())
    return digest.hexdigest()[:24]


def run_all(
    wanted: Sequence[Task], store: ResultFile, jobs: int, tell: Tell | None = None
) -> Results:
    """Results of ``wanted``: those in ``store`` as they are, the others simulated and kept.

    Args:
        wanted: tasks.
        store: where results are kept.
        jobs: processes; 1 computes in this one.
        tell: progress.
    """
    keys = [task_key(task) for task in wanted]
    missing = [(k, t) for k, t in zip(keys, wanted, strict=True) if k not in store.known]
    done = len(wanted) - len(missing)

    def add(key: str, task: Task, metrics: dict[str, float]) -> None:
        nonlocal done
        store.add(key, {"task": task.model_dump(mode="json")}, metrics)
        done += 1
        if tell is not None:
            tell(done, len(wanted))

    if tell is not None:
        tell(done, len(wanted))
    if jobs == 1 or len(missing) < 2:
        for key, task in missing:
            add(key, task, run_task(task))
    else:
        pool = worker_pool(jobs)
        try:
            todo = iter(missing)
            running: dict[concurrent.futures.Future[dict[str, float]], tuple[str, Task]] = {}
            while True:
                # Few more than run at a time, so that Ctrl-C ends soon.
                while len(running) < 4 * jobs and (following := next(todo, None)) is not None:
                    running[pool.submit(run_task, following[1])] = following
                if not running:
                    break
                ready, _ = concurrent.futures.wait(
                    running, return_when=concurrent.futures.FIRST_COMPLETED
                )
                for future in ready:
                    add(*running.pop(future), future.result())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return Results([(t, store.known[k]) for k, t in zip(keys, wanted, strict=True)])
