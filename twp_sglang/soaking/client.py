"""Sends one request of the plan, behaves as its kind says, and returns how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import NamedTuple

import aiohttp

from twp_sglang.benchmarking.sse import SseDecoder
from twp_sglang.soaking.endings import Outcome, Progress, of_reply, of_stream
from twp_sglang.soaking.traffic import PATIENCE_S, Act
from twp_sglang.soaking.wire import PATHS, Facts, body, headers, request_id


class Target(NamedTuple):
    """Where requests go."""

    session: aiohttp.ClientSession
    url: str
    headers: dict[str, str]
    facts: Facts
    run: str
    """Part of every request id, so that two soaks do not abort each other's."""


class _Gone(Exception):
    """The client went, as its kind says."""


async def send(target: Target, act: Act, bound_s: float) -> Outcome:
    """Send ``act`` and see it to its end. Never raises; a fault is an outcome.

    Args:
        target: where to.
        act: what to send.
        bound_s: a request without its end after so long is lost.
    """
    try:
        async with asyncio.timeout(bound_s):
            return await _behave(target, act)
    except _Gone:
        return Outcome(act, "left")
    except TimeoutError:
        return Outcome(act, "lost", f"no end within {bound_s:g} s")
    except asyncio.CancelledError:
        return Outcome(act, "lost", "no end while the server said that it was idle")
    except (aiohttp.ClientError, OSError) as error:
        return Outcome(act, "wrong", f"connection: {type(error).__name__} {error}"[:200])
    except ValueError as error:
        return Outcome(act, "wrong", f"stream: {error}"[:200])


async def _behave(target: Target, act: Act) -> Outcome:
    if act.kind == "leave_waiting":
        patience = asyncio.timeout(act.patience * PATIENCE_S)
        try:
            async with patience:
                return await _exchange(target, act)
        except TimeoutError:
            if patience.expired():
                raise _Gone from None
            raise
    if act.kind != "abort":
        return await _exchange(target, act)
    aborting = asyncio.create_task(_abort_later(target, act))
    try:
        return await _exchange(target, act)
    finally:
        aborting.cancel()
        with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError, OSError):
            await aborting


async def _abort_later(target: Target, act: Act) -> None:
    await asyncio.sleep(act.patience * PATIENCE_S)
    async with target.session.post(
        target.url + "/abort_request",
        json={"rid": request_id(act, target.run)},
        headers=target.headers,
    ) as response:
        await response.read()


async def _exchange(target: Target, act: Act) -> Outcome:
    sent = body(act, target.facts, target.run)
    data = sent if isinstance(sent, str) else json.dumps(sent)
    leaves_after = (
        1 + int(act.patience * act.output_tokens) if act.kind == "leave_streaming" else None
    )
    async with target.session.post(
        target.url + PATHS[act.api],
        data=data.encode(),
        headers={"Content-Type": "application/json", **target.headers, **headers(act)},
    ) as response:
        if response.content_type != "text/event-stream" or response.status != 200:
            return of_reply(act, response.status, response.headers, await response.read())
        decoder = SseDecoder()
        progress = Progress(act)
        events = 0
        async for chunk in response.content.iter_any():
            for data_of_event in decoder.feed(chunk):
                progress.take(data_of_event)
                events += 1
            if leaves_after is not None and events >= leaves_after and not progress.closed:
                raise _Gone
        return of_stream(progress)
