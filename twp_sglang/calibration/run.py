"""One calibration from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.table import Table

from twp_sglang.benchmarking.prompts import PromptMaker, vocabulary_size
from twp_sglang.benchmarking.request_client import open_session
from twp_sglang.calibration.assemble import assemble
from twp_sglang.calibration.errors import EXIT_FAILED, CalibrationError, usage
from twp_sglang.calibration.launched import launched
from twp_sglang.calibration.load import Client
from twp_sglang.calibration.machine import remote_machine, this_machine
from twp_sglang.calibration.plan import make_plan
from twp_sglang.calibration.profile import Profile, write_profile
from twp_sglang.calibration.progress import SweepProgress
from twp_sglang.calibration.server import Server, auth_headers, inspect, requests_in, wait_idle
from twp_sglang.calibration.settings import CalibrationSettings
from twp_sglang.calibration.sources import StreamSource, TraceSource
from twp_sglang.calibration.sweep import Findings, Sweep

_IDLE_AT_START_S = 5.0


async def calibrate(settings: CalibrationSettings, console: Console, command: str) -> int:
    """Measure, fit, write; the exit status.

    Raises:
        CalibrationError: nothing could be measured; what to change is in the message.
    """
    _writable(settings.out)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, stop.set)
    findings = Findings()
    async with open_session() as session:
        work = asyncio.create_task(_measure(settings, session, console, findings, command))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([work, stopping], return_when=asyncio.FIRST_COMPLETED)
        interrupted = not work.done()
        if interrupted:
            findings.note("interrupted: only part of the plan was measured")
            work.cancel()
        stopping.cancel()
        try:
            return await work
        except asyncio.CancelledError:
            raise CalibrationError("interrupted before anything was measured") from None


async def _measure(
    settings: CalibrationSettings,
    session: aiohttp.ClientSession,
    console: Console,
    findings: Findings,
    command: str,
) -> int:
    headers = auth_headers(settings.api_key_env)
    failure: str | None = None
    async with _address(settings, console) as url:
        server = await inspect(session, url, headers)
        await _idle(session, server, settings)
        machine = (
            this_machine()
            if server.local
            else remote_machine(server.accelerator, server.accelerators)
        )
        plan = make_plan(settings, server)
        for note in plan.notes:
            findings.note(note)
        source = _source(settings, server)
        vocabulary = vocabulary_size(None, server.model if server.local else None)
        client = Client(
            session, server, PromptMaker(secrets.token_hex(8), vocabulary, None), settings.timeout_s
        )
        console.print(
            f"SGLang {server.version} at {url}: {server.model}, {server.device}, "
            f"{len(plan.tasks)} points x {settings.rounds} rounds, step times from the "
            f"{source.name}, at most {settings.budget_s:g} s",
            highlight=False,
            soft_wrap=True,
        )
        try:
            with SweepProgress(console, len(plan.tasks) * settings.rounds) as progress:
                await Sweep(client, settings, plan, source, progress, findings).run()
        except CalibrationError as error:
            if not findings.points:
                raise
            failure = str(error)
            findings.note(f"ended early: {failure}")
        except asyncio.CancelledError:
            failure = "interrupted"
            if not findings.points:
                raise CalibrationError("interrupted before anything was measured") from None
        finally:
            if isinstance(source, TraceSource):
                source.close()
    profile = assemble(findings, settings, server, machine, source.name, command)
    _deliver(profile, settings, console)
    if failure is not None:
        raise CalibrationError(f"{failure}; what was measured is in {settings.out}")
    return 0 if profile.decode is not None else EXIT_FAILED


@asynccontextmanager
async def _address(settings: CalibrationSettings, console: Console) -> AsyncIterator[str]:
    if settings.url is not None:
        yield settings.url
        return
    assert settings.launch is not None
    log = settings.out.with_suffix(".server.log")
    console.print(f"starting the server; its log: {log}", highlight=False, soft_wrap=True)
    async with launched(settings.launch, log, settings.start_timeout_s) as url:
        yield url


async def _idle(
    session: aiohttp.ClientSession, server: Server, settings: CalibrationSettings
) -> None:
    if settings.allow_busy or await wait_idle(session, server, _IDLE_AT_START_S) is not False:
        return
    inside = await requests_in(session, server)
    raise usage(
        f"{inside} requests run or wait on {server.url}: calibration needs the server to itself. "
        "Take it out of the load balancer, or give --allow-busy and distrust the numbers"
    )


def _source(settings: CalibrationSettings, server: Server) -> TraceSource | StreamSource:
    """The trace where it can be read here, else the streams."""
    reason = "the server writes no step trace (--twp-trace DIR)"
    if settings.source != "stream":
        if server.trace is not None and server.local:
            try:
                return TraceSource(Path(server.trace))
            except OSError as error:
                reason = f"its step trace {server.trace} cannot be read: {error.strerror}"
        elif server.trace is not None:
            reason = "its step trace lies on another machine"
        if settings.source == "trace":
            raise usage(f"--source trace: {reason}; use --source stream")
    return StreamSource(server.stream_interval)


def _deliver(profile: Profile, settings: CalibrationSettings, console: Console) -> None:
    _show(profile, console)
    try:
        write_profile(profile, settings.out)
        console.print(f"profile: {settings.out}", highlight=False, soft_wrap=True)
        if settings.png is not None:
            from twp_sglang.calibration.figure import draw  # matplotlib takes a second to load

            draw(profile, settings.png)
            console.print(f"picture: {settings.png}", highlight=False, soft_wrap=True)
    except OSError as error:
        raise CalibrationError(f"cannot write the result: {error}") from None


def _show(profile: Profile, console: Console) -> None:
    table = Table("", "value", "unit", title="Profile", title_justify="left")
    rows: list[tuple[str, float | None, str]] = [
        ("l_min (at b0)", profile.l_min_ms, "ms"),
        ("b0", profile.b0, "requests"),
        ("alpha (above b0)", profile.alpha_ms, "ms/request"),
        ("h0", profile.h0_tokens, "tokens"),
        ("step: constant c", profile.c_ms, "ms"),
        ("step: a", profile.a_ms, "ms/request"),
        ("step: kappa", profile.kappa_ms_per_token, "ms/KV token"),
        ("step: prefill", profile.prefill_ms_per_token, "ms/prompt token"),
        ("step: free", profile.prefill_free_tokens, "prompt tokens"),
    ]
    for name, value, unit in rows:
        table.add_row(name, "-" if value is None else f"{value:.4g}", unit)
    console.print(table)
    console.print(profile.window.explanation, highlight=False, markup=False)
    for warning in profile.warnings:
        console.print(f"note: {warning}", style="yellow", highlight=False, markup=False)


def _writable(out: Path) -> None:
    """Better now than after minutes of measuring."""
    folder = out.parent
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise usage(f"--out {out}: the folder {folder} cannot be written")
    if out.is_dir():
        raise usage(f"--out {out}: is a folder; name a file")
