"""A real server as backend: SGLang on its accelerator, or the emulated engine.

With launch flags a server is started for each configuration (``launch_server FLAGS
--twp-...``), measured with ``twp_sglang.bench run`` from a process of its own, and stopped.
Everything SGLang knows is in those flags, the attention backend for instance
(``--attention-backend flashinfer``). A server that somebody else runs has its
configuration fixed at its start, so it can be measured as it is, at one point of a grid.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from analysis.cells.measure import Metrics
from controllers.trace_reader import TraceError, read_step_trace
from twp_sglang.benchmarking import server_probe
from twp_sglang.benchmarking.results import RunReport, read_report
from twp_sglang.config import TwpConfig
from twp_sglang.serving.child import ServerFailed, ServerProcess, free_port
from twp_sglang.serving.options import flag_of

_TAIL_CHARACTERS = 400
"""Of a failed command's output in its message: its last lines."""

_OURS = ("--host", "--port", "--twp-trace", "--json", "--url")


class Launched:
    """Starts a server per configuration."""

    def __init__(
        self,
        flags: Sequence[str],
        bench: Sequence[str],
        folder: Path,
        start_timeout_s: float,
        emulated: str | None = None,
    ) -> None:
        """A backend of ``launch_server`` with ``flags``.

        Args:
            flags: of launch_server, without those that this backend sets.
            bench: arguments of ``twp_sglang.bench run``, likewise.
            folder: for logs and results.
            start_timeout_s: until a server must answer.
            emulated: step model that stands in for the accelerator.

        Raises:
            ValueError: a flag that is set here.
        """
        for word in (*flags, *bench):
            if word.partition("=")[0] in _OURS:
                raise ValueError(f"{word}: is set for each server here; leave it out")
        self.flags = list(flags)
        if emulated is not None:
            self.flags += ["--twp-emulate", emulated]
        self.bench = list(bench)
        self._folder = folder
        self._timeout_s = start_timeout_s
        what = f"EMULATED: stock SGLang, step times of {emulated}" if emulated else "measured"
        self.caption = f"{what}: launch_server {' '.join(flags)}".rstrip(": ")

    def evaluate(self, config: TwpConfig) -> Metrics:
        """See :class:`~analysis.sweeping.backends.Backend`."""
        return asyncio.run(self._evaluate(config))

    async def _evaluate(self, config: TwpConfig) -> Metrics:
        url = f"http://127.0.0.1:{free_port()}"
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / "server.log"
        with tempfile.TemporaryDirectory(prefix="twp-sweep-") as folder:
            trace = Path(folder) / "steps"
            flags = [
                *self.flags,
                *config_flags(config),
                *("--twp-trace", str(trace), "--host", "127.0.0.1"),
                *("--port", url.rpartition(":")[2]),
            ]
            server = await ServerProcess.start(flags, url, log, thread_defaults=False)
            try:
                await server.ready(self._timeout_s, lambda waited_s, line: None)
                metrics = await asyncio.to_thread(measure, url, self.bench)
            except ServerFailed as error:
                # A wrong flag is wrong at every point: no use in trying them all.
                if server.exit_code == 2:
                    raise ValueError(f"launch_server: {error.tail.splitlines()[-1]}") from None
                return {"error": f"{error}: {error.tail[-_TAIL_CHARACTERS:]}"}
            finally:
                await server.stop()
            return {**metrics, **window_swing(trace)}


class Running:
    """A server that runs already, measured as it is."""

    def __init__(self, url: str, bench: Sequence[str]) -> None:
        """Ask the server at ``url`` what it is.

        Raises:
            ValueError: nobody answers, or it does not run TWP.
        """
        self.url, self.bench = url.rstrip("/"), list(bench)
        try:
            record = asyncio.run(_probe(self.url))
        except server_probe.Unreachable as error:
            raise ValueError(f"--url {url}: no server answers ({error})") from None
        if not record.twp_before:
            raise ValueError(f"--url {url}: the server does not run TWP, so it has no gains")
        self.settings: dict[str, Any] = dict(record.twp_before[0])
        word = "EMULATED" if record.emulated else "measured"
        self.caption = f"{word}: {record.model} at {self.url}"

    def evaluate(self, config: TwpConfig) -> Metrics:
        """See :class:`~analysis.sweeping.backends.Backend`.

        Raises:
            ValueError: the server runs other values than ``config``.
        """
        known = self.settings.get("config")
        known = known if isinstance(known, dict) else self.settings
        wanted = config.model_dump(mode="json", exclude_unset=True)
        for name, value in wanted.items():
            if name in known and known[name] != value:
                raise ValueError(
                    f"--url {self.url}: its {name} is {known[name]}, the grid asks for {value}; a "
                    "server's gains are fixed at its start, so sweep with --launch"
                )
        return measure(self.url, self.bench)


def config_flags(config: TwpConfig) -> list[str]:
    """``config`` as flags of launch_server: the fields that are not at their default."""
    flags: list[str] = []
    for name, value in config.model_dump(mode="json", exclude_defaults=True).items():
        if name != "evidence":
            flags += [flag_of(name), "none" if value is None else str(value)]
    return flags


def measure(url: str, bench: Sequence[str]) -> Metrics:
    """Metrics of one ``bench run`` against ``url``.

    Raises:
        ValueError: bench refuses its arguments.
    """
    with tempfile.TemporaryDirectory(prefix="twp-sweep-") as folder:
        result = Path(folder) / "run.json"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "twp_sglang.bench", "run"),
                *("--url", url, "--json", str(result), *bench),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 2:
            raise ValueError(f"bench: {done.stderr.strip().splitlines()[-1]}")
        if not result.exists():
            return {
                "error": f"bench ended with {done.returncode}: {done.stderr[-_TAIL_CHARACTERS:]}"
            }
        return metrics_of(read_report(result))


def metrics_of(report: RunReport) -> Metrics:
    """The metrics of :data:`~analysis.sweeping.backends.METRICS` in a result file."""
    latency = report.summary.latency
    if not latency.completed:
        return {"error": f"no request completed: {report.summary.failed}"}
    found = {
        "itl_ms_p50": latency.itl_ms.p50,
        "itl_ms_p99": latency.itl_ms.p99,
        "itl_cv": latency.itl_cv,
        "decode_gap_ms_p99": latency.decode_gap_ms.p99,
        "ttft_ms_p50": latency.ttft_ms.p50,
        "ttft_ms_p99": latency.ttft_ms.p99,
        "tokens_per_s": latency.output_tokens_per_s,
        "goodput_fraction": latency.goodput_fraction,
    }
    return {name: value for name, value in found.items() if value is not None}


def window_swing(trace: Path) -> Metrics:
    """``window_cv`` from a step trace; nothing where there is none or it has no window."""
    try:
        steps = read_step_trace(trace)
    except TraceError:
        return {}
    windows = steps["window_tokens"]
    windows = windows[np.isfinite(windows)]
    windows = windows[len(windows) // 4 :]
    if not len(windows) or not windows.mean():
        return {}
    return {"window_cv": float(windows.std() / windows.mean())}


async def _probe(url: str) -> Any:
    async with aiohttp.ClientSession(trust_env=False) as session:
        return await server_probe.probe(session, url, {})
