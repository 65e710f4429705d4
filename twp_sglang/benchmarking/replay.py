"""Open-loop pacing: each request leaves at its time, whatever became of the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from twp_sglang.benchmarking.results import RequestRecord
from twp_sglang.benchmarking.workload import PlannedRequest

Send = Callable[[PlannedRequest, float], Awaitable[RequestRecord]]


async def replay(
    plan: Sequence[PlannedRequest],
    send: Send,
    stop: asyncio.Event,
    *,
    concurrency_cap: int | None = None,
    on_sent: Callable[[float], None] = lambda late_ms: None,
    on_done: Callable[[RequestRecord], None] = lambda record: None,
) -> list[RequestRecord]:
    """Send every request at its time and wait until all are over.

    Args:
        plan: in order of arrival.
        send: sends one request; gets it and the start of the run (``time.perf_counter``)
            and returns a record, also when cancelled.
        stop: when set, nothing more is sent and what is in flight is cancelled.
        concurrency_cap: at most this many in flight; further ones wait in the client and
            their lateness grows. None is open loop.
        on_sent: called at each submission with its lateness in ms.
        on_done: called with each record.

    Returns:
        The records of all requests that were sent, in order of the plan.
    """
    slots = asyncio.Semaphore(concurrency_cap) if concurrency_cap else None
    records: list[RequestRecord] = []
    start_s = time.perf_counter()

    async def one(planned: PlannedRequest) -> None:
        async with AsyncExitStack() as stack:
            if slots is not None:
                await stack.enter_async_context(slots)
            on_sent((time.perf_counter() - start_s - planned.shape.arrival_s) * 1000.0)
            record = await send(planned, start_s)
            records.append(record)
            on_done(record)

    stopped = asyncio.create_task(stop.wait())
    tasks: set[asyncio.Task[None]] = set()
    try:
        for planned in plan:
            delay_s = start_s + planned.shape.arrival_s - time.perf_counter()
            if delay_s > 0:
                await asyncio.wait({stopped}, timeout=delay_s)
            elif len(tasks) % 64 == 0:
                # A client that is behind must still read its streams.
                await asyncio.sleep(0)
            if stop.is_set():
                break
            tasks.add(asyncio.create_task(one(planned)))
        if tasks and not stop.is_set():
            # One waiter for all: waiting on the set anew at each reply would cost the
            # client time that grows with the square of the requests in flight.
            everyone = asyncio.create_task(asyncio.wait(tasks))
            await asyncio.wait({stopped, everyone}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()  # without effect on those that are over
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        stopped.cancel()
    for outcome in outcomes:
        # A request that waited for a slot when the run was stopped was never sent.
        if isinstance(outcome, Exception):
            raise outcome
    return sorted(records, key=lambda record: record.index)


class LagSampler:
    """Samples how late the event loop wakes: the resolution of every token time.

    Use as an async context manager around a run; ``lags_ms`` holds the samples.
    """

    period_s = 0.02
    """Often enough to catch a stall of one token gap, rare enough to cost nothing."""

    def __init__(self) -> None:
        self.lags_ms: list[float] = []

    async def __aenter__(self) -> LagSampler:
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()

    async def _sample(self) -> None:
        while True:
            due_s = time.perf_counter() + self.period_s
            await asyncio.sleep(self.period_s)
            self.lags_ms.append(round((time.perf_counter() - due_s) * 1000.0, 3))
