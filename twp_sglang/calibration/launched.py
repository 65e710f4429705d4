"""A server of our own for the length of one calibration."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import indent

from twp_sglang.calibration.errors import CalibrationError, usage
from twp_sglang.calibration.server import FREE_POLICIES
from twp_sglang.serving.child import ServerFailed, ServerProcess, free_port


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
        port = str(free_port())
        words += ["--port", port]
    reached = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return words, f"http://{f'[{reached}]' if ':' in reached else reached}:{port}"


@asynccontextmanager
async def launched(flags: Sequence[str], log: Path, start_timeout_s: float) -> AsyncIterator[str]:
    """Start ``launch_server`` with ``flags``; yield its address once it serves; stop it.

    Raises:
        CalibrationError: it ended before serving, or did not serve in time.
    """
    with tempfile.TemporaryDirectory(prefix="twp-calibrate-") as folder:
        words, url = complete(flags, Path(folder))
        log.parent.mkdir(parents=True, exist_ok=True)
        server = await ServerProcess.start(words, url, log, thread_defaults=False)
        try:
            await server.ready(start_timeout_s, lambda waited_s, line: None)
            yield url
        except ServerFailed as error:
            # launch_server's own word for a wrong command line.
            code = 2 if server.exit_code == 2 else 1
            raise CalibrationError(
                f"{error}; the end of its log:\n" + indent(error.tail, "  "), code
            ) from None
        finally:
            await server.stop()


def _value(words: Sequence[str], flag: str) -> str | None:
    """Value of ``flag`` in ``words``, the last one given."""
    found = None
    for place, word in enumerate(words):
        if word == flag and place + 1 < len(words):
            found = words[place + 1]
        elif word.startswith(flag + "="):
            found = word.partition("=")[2]
    return found
