"""``bench run``: one measured run from first probe to the written file."""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import aiohttp
from rich.console import Console
from rich.markup import escape

from twp_sglang.benchmarking import server_probe
from twp_sglang.benchmarking.progress import RunProgress
from twp_sglang.benchmarking.prompts import PromptMaker, load_tokenizer, vocabulary_size
from twp_sglang.benchmarking.replay import LagSampler, replay
from twp_sglang.benchmarking.request_client import Endpoint, measure, open_session
from twp_sglang.benchmarking.results import (
    Header,
    RunReport,
    ServerRecord,
    write_report,
)
from twp_sglang.benchmarking.settings import RunSettings
from twp_sglang.benchmarking.summary import summarise_run
from twp_sglang.benchmarking.tables import print_run
from twp_sglang.benchmarking.workload import (
    PlannedRequest,
    Shape,
    describe,
    make_prompts,
    plan_shapes,
)

EXIT_OK, EXIT_NOTHING_COMPLETED, EXIT_INTERRUPTED = 0, 1, 130


class RunError(Exception):
    """The run cannot start; the message says why and what to do."""


async def run(settings: RunSettings, console: Console, command: str) -> int:
    """Make one run: probe, flush, warm up, replay, report.

    Args:
        settings: what to do.
        console: where the user looks.
        command: as typed, for the record.

    Returns:
        The exit status: 0, or 1 where no request completed, or 130 after Ctrl-C (the
        file is written in each case).

    Raises:
        RunError: nothing was measured, because it could not be.
    """
    try:
        shapes, source = plan_shapes(settings)
        tokenizer = load_tokenizer(settings.tokenizer) if settings.tokenizer else None
    except ValueError as error:
        raise RunError(str(error)) from None
    headers = _auth_headers(settings)
    salt = secrets.token_hex(4)
    stop = asyncio.Event()

    async with open_session() as session:
        server = await _probe(session, settings, headers)
        form = _prompt_form(settings, server)
        model_path = server.settings.get("model_path")
        vocabulary = settings.vocab_size or vocabulary_size(
            tokenizer, model_path if isinstance(model_path, str) else None
        )
        endpoint = Endpoint(
            url=settings.url,
            api=settings.api,
            model=settings.model or server.model,
            headers=headers,
            temperature=settings.temperature,
            ignore_eos=settings.generates_to_length,
            timeout_s=settings.timeout_s,
        )
        if settings.api != "sglang" and endpoint.model is None:
            raise RunError("the server does not name its model; give --model NAME")
        try:
            plan = make_prompts(shapes, form, PromptMaker(salt, vocabulary, tokenizer))
            # Other prompts than the run's, or the warm-up would fill the cache for it.
            warm = make_prompts(
                [replace(shape, arrival_s=0.0) for shape in shapes[: settings.warmup]],
                form,
                PromptMaker(f"{salt}w", vocabulary, tokenizer),
            )
        except ValueError as error:
            raise RunError(str(error)) from None
        _announce(console, settings, server, shapes, source, form)

        loop = asyncio.get_running_loop()
        for sign in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(sign, stop.set)
        try:
            await _warm_up(session, endpoint, warm, stop, console)
            flushed = "skipped by --no-flush"
            if settings.flush and not stop.is_set():
                flushed = await server_probe.flush_cache(session, settings.url, headers)
            started = datetime.now(UTC)
            with RunProgress(console, len(plan)) as progress:
                async with LagSampler() as lag:
                    records = await replay(
                        plan,
                        lambda planned, start_s: measure(
                            session, endpoint, planned, start_s, progress.tokens
                        ),
                        stop,
                        concurrency_cap=settings.concurrency_cap,
                        on_sent=progress.sent,
                        on_done=progress.done,
                    )
            after = await server_probe.twp_states(session, settings.url, headers)
        finally:
            for sign in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(sign)

    header = Header(
        label=settings.label or settings.json_path.stem,
        date=started.isoformat(timespec="seconds"),
        command=command,
        url=settings.url,
        api=settings.api,
        client=client_description(),
        seed=settings.seed,
        salt=salt,
        slos=settings.slos,
        warmup=settings.warmup,
        timeout_s=settings.timeout_s,
        concurrency_cap=settings.concurrency_cap,
        flush=flushed,
        interrupted=stop.is_set(),
        workload=describe(settings, shapes, source, form),
        server=server.model_copy(update={"twp_after": after}),
    )
    report = RunReport(
        header=header,
        summary=summarise_run(records, header, lag.lags_ms),
        requests=tuple(records),
    )
    _deliver(report, settings, console)
    if stop.is_set():
        return EXIT_INTERRUPTED
    return EXIT_OK if report.summary.completed else EXIT_NOTHING_COMPLETED


async def _probe(
    session: aiohttp.ClientSession, settings: RunSettings, headers: dict[str, str]
) -> ServerRecord:
    try:
        server = await server_probe.probe(session, settings.url, headers)
    except server_probe.Unreachable as error:
        raise RunError(
            f"no server answers at {settings.url} ({error}); start one or mend --url"
        ) from None
    if server.takes_token_ids_only and settings.api != "sglang":
        raise RunError(
            f"the server at {settings.url} runs with --skip-tokenizer-init and answers in token "
            "ids only; use --api sglang"
        )
    return server


def _prompt_form(settings: RunSettings, server: ServerRecord) -> Literal["ids", "text"]:
    """Token ids give exact lengths; text goes wherever ids may not be understood."""
    if server.takes_token_ids_only:
        if settings.prompts == "text":
            raise RunError(
                "--prompts text: the server runs with --skip-tokenizer-init and takes token ids "
                "only; leave --prompts at auto"
            )
        return "ids"
    if settings.prompts != "auto":
        return settings.prompts
    exact = settings.workload != "gsm8k" and settings.api == "sglang" and not settings.tokenizer
    return "ids" if exact else "text"


async def _warm_up(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    warm: Sequence[PlannedRequest],
    stop: asyncio.Event,
    console: Console,
) -> None:
    failures: Counter[str] = Counter()
    last = ""
    for planned in warm:
        records = await replay(
            [planned], lambda p, start_s: measure(session, endpoint, p, start_s), stop
        )
        if stop.is_set():
            return
        for record in records:
            if record.error is not None:
                failures[record.error.kind] += 1
                last = f"{record.error.kind}: {' '.join(record.error.message.split())}"
    # The server's refusal of the form of every request will not go away in the run.
    refused = sum(
        failures[f"{how}_{status}"]
        for how in ("http", "stream", "abort")
        for status in (400, 401, 403, 404, 405, 422)
    )
    if warm and refused + failures["bad_stream"] == len(warm):
        raise RunError(
            f"every warm-up request was refused ({last}); check --api, --model and lengths "
            "(--warmup 0 measures all the same)"
        )
    if failures:
        console.print(
            f"[yellow]warning:[/yellow] {failures.total()} of {len(warm)} warm-up requests failed "
            f"({escape(last)})",
            highlight=False,
        )


def _deliver(report: RunReport, settings: RunSettings, console: Console) -> None:
    try:
        write_report(report, settings.json_path)
    except OSError as error:
        print_run(console, report)
        raise RunError(f"--json {settings.json_path}: cannot be written: {error}") from None
    print_run(console, report)
    for caution in report.summary.cautions:
        console.print(f"[yellow]note:[/yellow] {escape(caution)}", highlight=False)
    console.print(f"result: {escape(str(settings.json_path))}", highlight=False, soft_wrap=True)
    if settings.png_path is not None:
        from twp_sglang.benchmarking.figures import draw  # matplotlib takes a second to load

        try:
            draw([report], [report.header.label], settings.png_path)
        except OSError as error:
            raise RunError(f"--png {settings.png_path}: cannot be written: {error}") from None
        console.print(f"figure: {escape(str(settings.png_path))}", highlight=False, soft_wrap=True)


def _announce(
    console: Console,
    settings: RunSettings,
    server: ServerRecord,
    shapes: Sequence[Shape],
    source: str,
    form: str,
) -> None:
    what = f"SGLang {server.version}" if server.kind == "sglang" else "server"
    policies = sorted({str(state.get("policy")) for state in server.twp_before})
    twp = f", TWP policy {', '.join(policies)}" if policies else ""
    emulated = " [yellow](EMULATED step times)[/yellow]" if server.emulated else ""
    console.print(
        f"[bold]{what}[/bold] at {escape(settings.url)}: "
        f"{escape(server.model or 'unknown model')}{escape(twp)}{emulated}",
        highlight=False,
    )
    console.print(
        f"{len(shapes)} requests over {shapes[-1].arrival_s:.1f} s, {settings.workload} "
        f"({escape(source)}), prompts as {'token ids' if form == 'ids' else 'text'}",
        highlight=False,
    )


def _auth_headers(settings: RunSettings) -> dict[str, str]:
    if settings.api_key_env is None:
        return {}
    key = os.environ.get(settings.api_key_env)
    if not key:
        raise RunError(f"--api-key-env {settings.api_key_env}: that variable is not set")
    return {"Authorization": f"Bearer {key}"}


def client_description() -> str:
    """This client in words, for the record of a run."""
    try:
        own = version("twp-sglang")
    except PackageNotFoundError:
        own = "uninstalled"
    return (
        f"twp-sglang {own}, aiohttp {aiohttp.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} CPUs"
    )
