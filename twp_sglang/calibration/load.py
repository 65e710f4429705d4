"""Requests held in the engine: all sent at once, of one length, none like another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

from twp_sglang.benchmarking.prompts import PromptMaker
from twp_sglang.benchmarking.request_client import Endpoint, measure
from twp_sglang.benchmarking.results import RequestRecord
from twp_sglang.benchmarking.workload import PlannedRequest, Shape
from twp_sglang.calibration.errors import CalibrationError
from twp_sglang.calibration.samples import FloatArray
from twp_sglang.calibration.server import Server


@dataclass
class Client:
    """Sends requests of random token ids, which no prefix cache has seen."""

    session: aiohttp.ClientSession
    server: Server
    prompts: PromptMaker
    timeout_s: float
    clock: Callable[[], float] = time.perf_counter
    _sent: int = field(default=0, init=False)

    def start(
        self,
        prompt_tokens: int,
        output_tokens: int,
        on_tokens: Callable[[int], None] = lambda count: None,
    ) -> asyncio.Task[Timed]:
        """Send one request now."""
        self._sent += 1
        shape = Shape(arrival_s=0.0, output_tokens=output_tokens, input_tokens=prompt_tokens)
        planned = PlannedRequest(self._sent, shape, self.prompts.token_ids(prompt_tokens))
        endpoint = Endpoint(
            url=self.server.url,
            api="sglang",
            model=None,
            headers=self.server.headers,
            temperature=0.0,
            ignore_eos=True,
            timeout_s=self.timeout_s,
        )
        start_s = self.clock()
        sending: Coroutine[Any, Any, RequestRecord] = measure(
            self.session, endpoint, planned, start_s, on_tokens=on_tokens, clock=self.clock
        )
        return asyncio.create_task(_timed(sending, start_s))


@dataclass(frozen=True)
class Timed:
    """A finished request: when it was sent and when each token came, seconds on one clock."""

    record: RequestRecord
    sent_s: float
    token_s: FloatArray


async def _timed(sending: Coroutine[Any, Any, RequestRecord], start_s: float) -> Timed:
    record = await sending
    sent_s = start_s + record.submitted_ms / 1e3
    return Timed(record, sent_s, start_s + record.token_times().token_ms / 1e3)


class Held:
    """``batch`` requests on their way, and how far they have come."""

    def __init__(self, client: Client, batch: int, context: int, output_tokens: int) -> None:
        self.context_tokens = context
        self._tokens = np.zeros(batch, dtype=np.int64)
        self._moved = asyncio.Event()
        self.tasks = [
            client.start(context, output_tokens, self._counter(place)) for place in range(batch)
        ]

    def _counter(self, place: int) -> Callable[[int], None]:
        def count(tokens: int) -> None:
            self._tokens[place] += tokens
            self._moved.set()

        return count

    async def steps_together(self, steps: int) -> None:
        """Return once every request has joined and then made ``steps`` tokens.

        Returns early if a request ended: ``finish`` will tell why.
        """
        while not (self._tokens.min() > steps or any(task.done() for task in self.tasks)):
            self._moved.clear()
            waiter = asyncio.create_task(self._moved.wait())
            await asyncio.wait([waiter, *self.tasks], return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()

    async def finish(self) -> list[Timed]:
        """Wait for all.

        Raises:
            CalibrationError: one failed.
        """
        done = await asyncio.gather(*self.tasks)
        check([item.record for item in done])
        return done

    def cancel(self) -> None:
        """Hang up; SGLang then ends the requests."""
        for task in self.tasks:
            task.cancel()


def check(records: list[RequestRecord]) -> None:
    """Raise a CalibrationError if a request failed or brought fewer tokens than asked."""
    failed = [record for record in records if record.error is not None]
    if failed:
        error = failed[0].error
        assert error is not None
        refused = error.status is not None and 400 <= error.status < 500
        raise CalibrationError(
            f"{len(failed)} of {len(records)} requests failed, the first with {error.kind}: "
            f"{error.message}",
            2 if refused else 1,
        )
    cached = sum(record.cached_tokens or 0 for record in records)
    prompt = sum(record.prompt_tokens or 0 for record in records)
    if prompt and cached > 0.1 * prompt:
        raise CalibrationError(
            f"{cached} of {prompt} prompt tokens came from a prefix cache, though every prompt is "
            "new: prefill times would mean nothing"
        )
