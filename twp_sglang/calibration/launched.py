"""A server of our own for the length of one calibration."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from twp_sglang.calibration.errors import CalibrationError, usage
from twp_sglang.calibration.server import FREE_POLICIES

_POLL_S = 0.5
_STOP_S = 20.0
_TAIL_LINES = 12
_HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


def complete(flags: Sequence[str], trace_dir: Path) -> tuple[list[str], str]:
    """The server's flags with what calibration needs, and its address.

    Raises:
        CalibrationError: the policy asked for would not let a batch be held.
    """
    words = list(flags)
    policy = _value(words, "--twp-policy")
    if policy is None:
        # Admits whoever fits, with the chunking that TWP will serve with.
        policy = "fcfs"
        words += ["--twp-policy", policy]
    elif policy not in FREE_POLICIES:
        raise usage(
            f"--launch -- --twp-policy {policy}: its gate would change the batch under "
            f"measurement; leave it out, or give one of {', '.join(FREE_POLICIES)}"
        )
    if policy != "off" and _value(words, "--twp-trace") is None:
        words += ["--twp-trace", str(trace_dir)]
    host = _value(words, "--host")
    if host is None:
        host = "127.0.0.1"
        words += ["--host", host]
    port = _value(words, "--port")
    if port is None:
        port = str(_free_port())
        words += ["--port", port]
    reached = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return words, f"http://{f'[{reached}]' if ':' in reached else reached}:{port}"


@asynccontextmanager
async def launched(
    flags: Sequence[str], log: Path, start_timeout_s: float, session: aiohttp.ClientSession
) -> AsyncIterator[str]:
    """Start ``launch_server`` with ``flags``; yield its address once it serves; stop it.

    Raises:
        CalibrationError: it ended before serving, or did not serve in time.
    """
    with tempfile.TemporaryDirectory(prefix="twp-calibrate-") as folder:
        words, url = complete(flags, Path(folder))
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            # Its own session: Ctrl-C must reach calibrate first, which then stops it.
            process = subprocess.Popen(
                [sys.executable, "-m", "twp_sglang.launch_server", *words],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            await _until_serving(process, url, log, start_timeout_s, session)
            yield url
        finally:
            _stop(process)


async def _until_serving(
    process: subprocess.Popen[bytes],
    url: str,
    log: Path,
    limit_s: float,
    session: aiohttp.ClientSession,
) -> None:
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        status = process.poll()
        if status is not None:
            raise CalibrationError(
                f"the server ended with status {status} before it served; {_tail(log)}",
                # launch_server's own word for a wrong command line.
                2 if status == 2 else 1,
            )
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with session.get(url + "/health", timeout=_HEALTH_TIMEOUT) as response:
                if response.status == 200:
                    return
        await asyncio.sleep(_POLL_S)
    raise CalibrationError(
        f"the server did not serve within {limit_s:g} s (--start-timeout-s); {_tail(log)}"
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL, to the session that was started here."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        lines = []
    return f"the end of its log, {log}:\n" + "\n".join(f"  {line}" for line in lines)


def _value(words: Sequence[str], flag: str) -> str | None:
    """Value of ``flag`` in ``words``, the last one given."""
    found = None
    for place, word in enumerate(words):
        if word == flag and place + 1 < len(words):
            found = words[place + 1]
        elif word.startswith(flag + "="):
            found = word.partition("=")[2]
    return found


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
