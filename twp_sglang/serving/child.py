"""``launch_server`` as a child process: started, awaited, stopped with all it started."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp

_POLL_S = 0.5
_STOP_S = 20.0
"""SGLang drains within seconds; what is still there then is killed."""

_MAX_THREADS = 8
"""More threads than that do not speed up a 135M model's matrix products."""

_PR_SET_PDEATHSIG = 1


class ServerFailed(Exception):
    """The server did not get ready; the message says why, ``tail`` what it wrote last."""

    def __init__(self, message: str, tail: str) -> None:
        super().__init__(message)
        self.tail = tail


def free_port() -> int:
    """A port of this machine that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_taken(port: int) -> bool:
    """Whether somebody listens on ``port`` already."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def environment() -> dict[str, str]:
    """The child's environment: offline, and with threads for the cores it can have.

    One core is left to the client, the tokenizer and the detokenizer. A thread that has to
    share its core stalls all the others at every barrier: two threads took 0.2 s for a chunk
    of 64 tokens on two idle cores, and 7 s when other work ran on them.
    """
    cores = len(os.sched_getaffinity(0))
    return {
        "OMP_NUM_THREADS": str(min(max(1, cores - 1), _MAX_THREADS)),
        "OMP_WAIT_POLICY": "PASSIVE",
        **os.environ,  # the person's own settings win
        "HF_HUB_OFFLINE": "1",  # the model is a local folder
        "PYTHONUNBUFFERED": "1",
    }


class ServerProcess:
    """One server in its own process group, its output in a log file."""

    def __init__(self, url: str, log: Path, process: asyncio.subprocess.Process) -> None:
        self.url = url
        self.log = log
        self._process = process

    @classmethod
    async def start(
        cls,
        flags: Sequence[str],
        url: str,
        log: Path,
        *,
        thread_defaults: bool = True,
        module: str = "twp_sglang.launch_server",
    ) -> ServerProcess:
        """Start ``python -m twp_sglang.launch_server`` with ``flags``, which serves ``url``.

        Args:
            module: what to run; SGLang's own launcher where the two are compared.
            thread_defaults: set :func:`environment`'s thread counts; a measurement leaves
                them as the person has them.

        Raises:
            OSError: the log cannot be written.
        """
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                *flags,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=asyncio.subprocess.STDOUT,
                env=environment() if thread_defaults else None,
                # Its own group: Ctrl-C in the terminal is ours to act on, not the server's.
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        return cls(url, log, process)

    @property
    def exit_code(self) -> int | None:
        """Exit code of the launcher, None while it lives."""
        return self._process.returncode

    @property
    def running(self) -> bool:
        """Whether the launcher still lives."""
        return self._process.returncode is None

    def tail(self, lines: int = 25) -> str:
        """The last lines of the log."""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 256 * lines))
            text = file.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    async def ready(self, timeout_s: float, say: Callable[[float, str], None]) -> None:
        """Wait until requests are served.

        Args:
            timeout_s: at most so long.
            say: told now and then: seconds waited, last line of the log.

        Raises:
            ServerFailed: it ended, or was not ready in time.
        """
        begun = time.monotonic()
        async with aiohttp.ClientSession(trust_env=False) as session:
            while (waited := time.monotonic() - begun) < timeout_s:
                if not self.running:
                    raise ServerFailed(
                        f"the server ended with exit code {self._process.returncode} before it "
                        f"was ready (whole log: {self.log})",
                        self.tail(),
                    )
                if await _healthy(session, self.url):
                    return
                say(waited, self.tail(1))
                await asyncio.sleep(_POLL_S)
        raise ServerFailed(
            f"the server was not ready after {timeout_s:g} s (whole log: {self.log}); "
            "allow more time to start",
            self.tail(),
        )

    async def ended(self) -> int:
        """Wait until the launcher ends by itself; its exit code."""
        return await self._process.wait()

    async def ask_to_end(self) -> bool:
        """SIGTERM, and wait a while; whether the launcher has ended.

        It goes to the launcher alone: SGLang then ends its own children, while a signal to
        the whole group would look to it like a crashed scheduler.
        """
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._process.wait()
        return not self.running

    async def stop(self) -> bool:
        """End the server and all its children; whether it went without being killed."""
        in_time = await self.ask_to_end()
        # Children that outlived their launcher, and a launcher that did not listen.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        return in_time


def die_with_parent() -> None:
    """A killed parent must not leave an engine behind (Linux; elsewhere nothing happens)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(
            url + "/health", timeout=aiohttp.ClientTimeout(total=5.0)
        ) as response:
            return response.status == 200
    except (TimeoutError, aiohttp.ClientError, OSError):
        return False
