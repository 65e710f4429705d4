"""Runs plans over processes.

A plan is a generator: it yields tasks that may run at the same time, is sent their results in
the same order, and returns its outcome. So a search that needs results before it can go on
reads as a plain loop, while tasks of many plans fill the processes.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from analysis.cells.measure import Metrics, Task, run_task
from analysis.cells.store import ResultFile, task_key
from analysis.cells.worker_pool import worker_pool

T = TypeVar("T")
Plan = Generator[list[Task], list[Metrics], T]


class Progress(NamedTuple):
    """How far a run is.

    ``waiting`` are the tasks that were asked for and have no result yet; a plan that searches
    asks for more of them later.
    """

    plans_done: int
    plans: int
    simulated: int
    reused: int
    waiting: int = 0


def run_plans(
    plans: Sequence[Plan[T]],
    store: ResultFile,
    jobs: int,
    tell: Callable[[Progress], None] | None = None,
) -> list[T]:
    """Outcomes of ``plans``, in their order.

    Args:
        plans: started nowhere else.
        store: answers tasks that it knows and keeps the results of the others.
        jobs: processes; 1 computes in this one.
        tell: called once before the first result and after each.
    """
    return _Runner(plans, store, tell).run(jobs)


class _Runner:
    def __init__(
        self,
        plans: Sequence[Plan[Any]],
        store: ResultFile,
        tell: Callable[[Progress], None] | None,
    ) -> None:
        self._plans = plans
        self._store = store
        self._tell = tell
        self._outcomes: list[Any] = [None] * len(plans)
        self._wanted: list[list[str]] = [[] for _ in plans]
        self._asking: dict[str, list[int]] = {}
        """Plans that wait for the result of a key."""
        self._todo: list[tuple[str, Task]] = []
        self._done = self._simulated = self._reused = 0
        self._begun = False

    def run(self, jobs: int) -> list[Any]:
        for index, plan in enumerate(self._plans):
            self._advance(index, lambda plan=plan: next(plan))  # type: ignore[misc]
        # All plans have asked: how much there is to do, before the first result of it.
        self._begun = True
        self._say()
        if jobs == 1:
            while self._todo:
                key, task = self._todo.pop(0)
                self._result(key, task, run_task(task))
            return self._outcomes
        pool = worker_pool(jobs)
        try:
            running: dict[concurrent.futures.Future[Metrics], tuple[str, Task]] = {}
            while self._todo or running:
                # No more in the pool than run or come next, so that Ctrl-C ends soon.
                while self._todo and len(running) < 2 * jobs:
                    key, task = self._todo.pop(0)
                    running[pool.submit(run_task, task)] = (key, task)
                ready, _ = concurrent.futures.wait(
                    running, return_when=concurrent.futures.FIRST_COMPLETED
                )
                for future in ready:
                    key, task = running.pop(future)
                    self._result(key, task, future.result())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return self._outcomes

    def _advance(self, index: int, resume: Callable[[], list[Task]]) -> None:
        """Let a plan go on until it waits for results that are not there yet."""
        while True:
            try:
                tasks = resume()
            except StopIteration as end:
                self._outcomes[index] = end.value
                self._done += 1
                self._say()
                return
            keys = [task_key(task) for task in tasks]
            self._wanted[index] = keys
            missing = {k: t for k, t in zip(keys, tasks, strict=True) if k not in self._store.known}
            self._reused += len(set(keys)) - len(missing)
            for key, task in missing.items():
                if key not in self._asking:
                    self._asking[key] = []
                    self._todo.append((key, task))
                self._asking[key].append(index)
            if missing:
                return
            resume = self._answer(index)

    def _answer(self, index: int) -> Callable[[], list[Task]]:
        answers = [self._store.known[key] for key in self._wanted[index]]
        return lambda: self._plans[index].send(answers)

    def _result(self, key: str, task: Task, metrics: Metrics) -> None:
        self._store.add(key, {"task": task.model_dump(mode="json")}, metrics)
        self._simulated += 1
        self._say()
        for index in self._asking.pop(key):
            if all(wanted in self._store.known for wanted in self._wanted[index]):
                self._advance(index, self._answer(index))

    def _say(self) -> None:
        if self._tell is not None and self._begun:
            self._tell(
                Progress(
                    self._done, len(self._plans), self._simulated, self._reused, len(self._asking)
                )
            )
