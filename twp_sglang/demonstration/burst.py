"""Plays the burst: sends, listens, watches the window, and shows it all meanwhile."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import aiohttp
from rich.console import Console

from twp_sglang.benchmarking import server_probe
from twp_sglang.benchmarking.prompts import FALLBACK_VOCABULARY, PromptMaker
from twp_sglang.benchmarking.replay import LagSampler, replay
from twp_sglang.benchmarking.request_client import Endpoint, measure, open_session
from twp_sglang.benchmarking.results import Header, RequestRecord, RunReport
from twp_sglang.benchmarking.run_command import client_description
from twp_sglang.benchmarking.summary import summarise_run
from twp_sglang.benchmarking.workload import PlannedRequest, Shape, describe, plan_shapes
from twp_sglang.demonstration.screen import Screen
from twp_sglang.demonstration.settings import DemoSettings, burst_of, replay_settings, traffic
from twp_sglang.demonstration.story import Point, Story
from twp_sglang.demonstration.watcher import watch
from twp_sglang.serving.child import ServerProcess

_TICK_S = 0.1


class NothingToSend(Exception):
    """The questions cannot be read; the message says why."""


async def play(
    settings: DemoSettings,
    server: ServerProcess,
    console: Console,
    command: str,
    stop: asyncio.Event,
) -> RunReport:
    """Send the demo's requests and return what came of them, interrupted or not.

    Raises:
        NothingToSend: the questions cannot be read.
        server_probe.Unreachable: the server stopped answering before the burst.
    """
    async with open_session() as session:
        probed = await server_probe.probe(session, server.url, {})
        device = str(probed.settings.get("device", "cpu"))
        sent = traffic(settings, device)
        run = replay_settings(settings, sent, server.url)
        try:
            shapes, source = plan_shapes(run)
        except ValueError as error:
            raise NothingToSend(str(error)) from None
        salt = secrets.token_hex(4)
        plan = _prompts(shapes, salt)
        peak = burst_of(sent)
        console.print(
            f"{len(plan)} requests ({source}) of up to {settings.max_tokens} tokens on {device}: "
            f"{sent.rate_rps:g}/s, then {peak.factor * sent.rate_rps:g}/s for "
            f"{peak.duration_s:.1f} s from {peak.start_s:.1f} s on",
            highlight=False,
            soft_wrap=True,
        )
        story = Story(
            len(plan),
            settings.max_tokens,
            settings.policy,
            f"{probed.model} on SGLang {probed.version}, policy {settings.policy}",
        )
        started = datetime.now(UTC)
        endpoint = Endpoint(
            server.url, run.api, probed.model, {}, run.temperature, False, run.timeout_s
        )
        records, lags_ms = await _watched(session, endpoint, server, plan, story, console, stop)
        after = await server_probe.twp_states(session, server.url, {})
    header = Header(
        label=run.label,
        date=started.isoformat(timespec="milliseconds"),
        command=command,
        url=server.url,
        api=run.api,
        client=client_description(),
        seed=run.seed,
        salt=salt,
        slos=(),
        warmup=run.warmup,
        timeout_s=run.timeout_s,
        concurrency_cap=None,
        flush="fresh server",
        interrupted=stop.is_set(),
        workload=describe(run, shapes, source, "text"),
        server=probed.model_copy(update={"twp_after": after}),
    )
    return RunReport(
        header=header,
        summary=summarise_run(records, header, lags_ms),
        requests=tuple(records),
    )


def _prompts(shapes: Sequence[Shape], salt: str) -> list[PlannedRequest]:
    """The questions as a person would ask them; one that comes twice is salted, because the
    server's prefix cache would answer it for nearly nothing."""
    maker = PromptMaker(salt, FALLBACK_VOCABULARY, None)
    seen: set[str] = set()
    plan = []
    for index, shape in enumerate(shapes):
        text = shape.question or ""
        plan.append(
            PlannedRequest(index, shape, maker.question(index, text) if text in seen else text)
        )
        seen.add(text)
    return plan


async def _watched(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    server: ServerProcess,
    plan: Sequence[PlannedRequest],
    story: Story,
    console: Console,
    stop: asyncio.Event,
) -> tuple[list[RequestRecord], list[float]]:
    """Records of the requests, and samples of this process's own lag."""
    over = asyncio.Event()

    async def send(planned: PlannedRequest, start_s: float) -> RequestRecord:
        index = planned.index
        story.sent(index, planned.shape.question or "")
        record = await measure(
            session,
            endpoint,
            planned,
            start_s,
            on_tokens=lambda count: story.tokens(index, count),
            on_text=lambda text: story.text(index, text),
        )
        story.done(record)
        return record

    def heard(state: Mapping[str, Any]) -> None:
        story.points.append(Point.read(story.now_s, state))

    async def heed() -> None:
        # Requests to a dead server would each wait for their own timeout.
        ended = asyncio.create_task(server.ended())
        asked = asyncio.create_task(stop.wait())
        await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, asked):
            task.cancel()
        over.set()

    async def tick(screen: Screen) -> None:
        while True:
            screen.tick()
            await asyncio.sleep(_TICK_S)

    with Screen(console, story) as screen:
        async with (
            LagSampler() as lag,
            _beside(watch(session, server.url, heard)),
            _beside(tick(screen)),
            _beside(heed()),
        ):
            records = await replay(plan, send, over)
    return records, lag.lags_ms


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``work`` while the block lasts."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
