"""A demo from the model to the plot; whatever happens, the server is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.markup import escape

from twp_sglang.benchmarking.server_probe import Unreachable
from twp_sglang.demonstration import burst, outcome, smollm2
from twp_sglang.demonstration.settings import DemoSettings
from twp_sglang.serving.child import ServerFailed, ServerProcess, free_port, port_taken

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130

_LOG_CHARS = 90
_LINE_EVERY_S = 10.0

Result = TypeVar("Result")


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to do."""

    def __init__(self, message: str, detail: str = "", code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.detail = detail
        self.code = code


class Interrupted(Exception):
    """Ctrl-C or SIGTERM came."""


async def run(settings: DemoSettings, console: Console, command: str) -> int:
    """Run a demo; the exit status.

    0 when every request was answered, TWP decided throughout and the admission audit is
    clean; 1 otherwise; 130 after Ctrl-C.

    Raises:
        DemoError: no burst was run, because something was missing or failed.
    """
    stop = asyncio.Event()
    with _signals_set(stop):
        try:
            return await _run(settings, console, command, stop)
        except Interrupted:
            console.print("interrupted; everything started was stopped")
            return EXIT_INTERRUPTED


async def _run(settings: DemoSettings, console: Console, command: str, stop: asyncio.Event) -> int:
    model = await _model(console, stop)
    server = await _started(settings, model)
    try:
        await _ready(server, settings, console, stop)
        report = await burst.play(settings, server, console, command, stop)
    except (burst.NothingToSend, Unreachable) as error:
        raise DemoError(str(error), server.tail()) from None
    finally:
        with console.status("stopping the server"):
            orderly = await server.stop()
        if not orderly:
            console.print("[yellow]note:[/yellow] the server did not stop by itself: killed")
    try:
        sound = outcome.tell(report, settings, server, console)
    except OSError as error:
        raise DemoError(f"--out {settings.out}: cannot be written ({error})") from None
    if stop.is_set():
        return EXIT_INTERRUPTED
    return EXIT_OK if sound else EXIT_FAILED


@contextmanager
def _signals_set(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    signs = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for sign in signs:
        loop.add_signal_handler(sign, stop.set)
    try:
        yield
    finally:
        for sign in signs:
            loop.remove_signal_handler(sign)


async def _or_stop(work: Awaitable[Result], stop: asyncio.Event) -> Result:
    """``work``'s result.

    Raises:
        Interrupted: ``stop`` was set first; ``work`` was cancelled.
    """
    task = asyncio.ensure_future(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Interrupted
        return task.result()
    finally:
        for one in (task, stopped):
            one.cancel()
        await asyncio.gather(task, stopped, return_exceptions=True)


async def _model(console: Console, stop: asyncio.Event) -> Path:
    try:
        if smollm2.is_ready():
            return smollm2.folder()
    except smollm2.ModelUnavailable as error:
        raise DemoError(str(error), code=EXIT_USAGE) from None
    # In a process of its own: torch would stay in this one, which is to measure latency.
    console.print(f"preparing {smollm2.MODEL_NAME} (once, about half a minute)")
    with console.status("dequantising the weights"):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "twp_sglang.demo_model",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        try:
            out, errors = await _or_stop(child.communicate(), stop)
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()  # its partial folder is removed by the next one
                await child.wait()
    if child.returncode != 0:
        *before, last = errors.decode(errors="replace").strip().splitlines() or ["no word why"]
        raise DemoError(last.removeprefix("demo_model: "), "\n".join(before[-15:]), code=EXIT_USAGE)
    return Path(out.decode().strip().splitlines()[-1])


async def _started(settings: DemoSettings, model: Path) -> ServerProcess:
    port = settings.port or free_port()
    if settings.port is not None and port_taken(port):
        raise DemoError(
            f"port {port} is in use: give another --port, or leave it at auto", code=EXIT_USAGE
        )
    flags = (
        "--host", "127.0.0.1",
        "--port", str(port),
        "--model-path", str(model),
        "--served-model-name", smollm2.MODEL_NAME,
        "--max-total-tokens", str(settings.kv_tokens),
        "--twp-policy", settings.policy,
        "--twp-trace", str(settings.out / "trace"),
        *settings.engine_flags,
    )  # fmt: skip
    try:
        settings.out.mkdir(parents=True, exist_ok=True)
        return await ServerProcess.start(
            flags, f"http://127.0.0.1:{port}", settings.out / "server.log"
        )
    except OSError as error:
        raise DemoError(
            f"--out {settings.out}: cannot be written ({error.strerror or error})", code=EXIT_USAGE
        ) from None


async def _ready(
    server: ServerProcess, settings: DemoSettings, console: Console, stop: asyncio.Event
) -> None:
    began_s = time.monotonic()
    if not console.is_terminal:
        console.print(f"starting SGLang at {server.url} (log: {server.log})", soft_wrap=True)
    with console.status("starting SGLang") as status:
        next_line_s = _LINE_EVERY_S

        def say(waited_s: float, last: str) -> None:
            nonlocal next_line_s
            status.update(f"starting SGLang: {waited_s:.0f} s · {escape(last[:_LOG_CHARS])}")
            if not console.is_terminal and waited_s >= next_line_s:
                next_line_s += _LINE_EVERY_S
                console.print(f"still starting after {waited_s:.0f} s", highlight=False)

        try:
            await _or_stop(server.ready(settings.start_timeout_s, say), stop)
        except ServerFailed as error:
            raise DemoError(str(error), error.tail) from None
    took_s = time.monotonic() - began_s
    console.print(f"SGLang serves at {server.url} after {took_s:.0f} s", highlight=False)
