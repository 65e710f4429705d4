"""One contender against one stretch of traffic: a server, real clients, a row of numbers."""

from __future__ import annotations

import asyncio
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.cells.measure import Metrics, judged
from analysis.cells.traffic import Traffic
from twp_sglang.benchmarking.results import RunReport, read_report
from twp_sglang.benchmarking.traces import PLAIN_COLUMNS
from twp_sglang.serving.child import ServerFailed, ServerProcess, free_port

START_TIMEOUT_S = 300.0
"""SGLang starts in 25 to 100 s on two cores, by what else runs there."""

_TAIL_CHARACTERS = 400


class ConfirmationError(Exception):
    """A run that cannot be made; the message says why."""


def write_requests(traffic: Traffic, path: Path) -> None:
    """The requests of ``traffic`` as a trace that ``twp_sglang.bench`` replays.

    Raises:
        OSError: the file cannot be written.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(PLAIN_COLUMNS)
        for request in traffic.requests:
            rows.writerow((f"{request.arrival_s:.6f}", request.input_tokens, request.output_tokens))


async def measure(flags: Sequence[str], trace: Path, slo: str, folder: Path) -> Metrics:
    """Serve with ``flags``, replay ``trace``, stop; what the clients saw.

    Args:
        flags: of launch_server, without host and port.
        trace: written by :func:`write_requests`.
        slo: a list of objectives.
        folder: for the server's log and the client's file; made where missing.

    Raises:
        ConfirmationError: the server does not start, or the client cannot measure it.
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    result = folder / "bench.json"
    result.unlink(missing_ok=True)
    words = [*flags, "--host", "127.0.0.1", "--port", str(port)]
    server = await ServerProcess.start(words, url, folder / "server.log")
    try:
        await server.ready(START_TIMEOUT_S, lambda waited_s, line: None)
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "twp_sglang.bench", "run", "--url", url),
            *("--workload", "csv", "--trace", str(trace), "--slo", slo, "--json", str(result)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, complaint = await client.communicate()
        if not result.exists():
            raise ConfirmationError(
                f"bench ended with {client.returncode}: "
                f"{complaint.decode(errors='replace')[-_TAIL_CHARACTERS:]}"
            )
    except ServerFailed as error:
        raise ConfirmationError(f"{error}\n{error.tail}") from None
    finally:
        await server.stop()
    return metrics_of(read_report(result), slo)


def metrics_of(report: RunReport, slo: str) -> Metrics:
    """The metrics of a client's file under the names of :mod:`analysis.cells.measure`."""
    latency = report.summary.latency
    records = report.requests
    found: Metrics = {
        "requests": report.summary.planned,
        "completed": report.summary.completed,
        "failed": dict(report.summary.failed),
        "duration_s": latency.duration_s,
        "tokens_per_s": latency.output_tokens_per_s,
        "client_lag_ms_p99": report.summary.client_lag_ms.p99,
        "emulated": report.header.server.emulated,
        "workload": report.header.workload.fingerprint,
        "goodput": judged(
            [record.token_times() for record in records],
            [record.planned_input_tokens or 0 for record in records],
            (slo,),
            latency.duration_s,
        ),
        **_host(report.header.server.twp_after),
    }
    for name in ("ttft_ms", "itl_ms"):
        for statistic in ("p50", "p99", "max"):
            found[f"{name}_{statistic}"] = getattr(getattr(latency, name), statistic)
    return found


def _host(states: Sequence[dict[str, Any]]) -> Metrics:
    """Share of steps before which the emulated device waited for this host."""
    steps = sum(int(state.get("emulated_steps") or 0) for state in states)
    starved = sum(int(state.get("emulated_starved_steps") or 0) for state in states)
    return {"starved_share": starved / steps} if steps else {}
