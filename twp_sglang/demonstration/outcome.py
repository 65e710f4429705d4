"""What a demo leaves: table, plot, audit, and where everything lies."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from controllers.trace_reader import StepTrace, TraceError, read_step_trace
from twp_sglang.benchmarking.results import RunReport, write_report
from twp_sglang.benchmarking.tables import print_run
from twp_sglang.demonstration.settings import DemoSettings
from twp_sglang.serving.child import ServerProcess

_AUDIT = "twp_sglang.audit"
_AUDIT_TIMEOUT_S = 60.0


def tell(
    report: RunReport, settings: DemoSettings, server: ServerProcess, console: Console
) -> bool:
    """Print and draw the outcome; whether everything was as it should be.

    Raises:
        OSError: the folder cannot be written.
    """
    write_report(report, settings.out / "bench.json")
    print_run(console, report)
    for caution in report.summary.cautions:
        console.print(f"[yellow]note:[/yellow] {caution}", highlight=False)
    faults = faults_of(report, settings)
    made = [("requests, as bench writes them", settings.out / "bench.json")]
    if settings.policy != "off":
        trace = _trace(settings, faults)
        if trace is not None:
            picture = settings.out / "window.png"
            _draw(trace, report, picture)
            made += [("step trace", trace.path), ("plot", picture)]
            if settings.policy == "twp":
                _audit(trace.path, console, faults)
    made.append(("server log", server.log))
    for what, path in made:
        console.print(f"{what}: {path}", highlight=False, soft_wrap=True)
    for fault in faults:
        console.print(Text(f"failed: {fault}", "bold red"), soft_wrap=True)
    return not faults


def faults_of(report: RunReport, settings: DemoSettings) -> list[str]:
    """What was not as it should be, as the clients and the server's own state tell."""
    summary, header = report.summary, report.header
    faults = []
    missing = summary.planned - summary.completed
    if missing and not header.interrupted:
        faults.append(f"{missing} of {summary.planned} requests were not answered")
    if settings.policy == "off" or header.interrupted:
        return faults
    if not header.server.twp_after:
        return [*faults, "the server no longer told its TWP state at the end"]
    for state in header.server.twp_after:
        if state.get("fallbacks"):
            faults.append(f"TWP fell back to stock scheduling ({state.get('fallback_reason')})")
        elif settings.policy != "observe" and state.get("deciding") is not True:
            faults.append("TWP does not decide in the server")
    return faults


def _trace(settings: DemoSettings, faults: list[str]) -> StepTrace | None:
    try:
        return read_step_trace(settings.out / "trace")
    except TraceError as error:
        faults.append(str(error))
        return None


def _draw(trace: StepTrace, report: RunReport, path: Path) -> None:
    from twp_sglang.demonstration.picture import draw, machine  # matplotlib takes a second

    header = report.header
    device = str(header.server.settings.get("device", "cpu"))
    where = "CPU reference platform, for development only" if device == "cpu" else device
    work = header.workload
    title = (
        f"{header.server.model} on SGLang {header.server.version}, policy {_policy(report)} · "
        f"{machine(device)} ({where})\n"
        f"{work.requests} questions ({work.source}), {work.rate_rps:g}/s with a burst, "
        f"{work.output_tokens} tokens each at most · {header.date[:10]}"
    )
    created_s = trace.header.created_unix_s
    begun_s = datetime.fromisoformat(header.date).timestamp()
    start_ms = 0.0 if created_s is None else (begun_s - created_s) * 1000.0
    draw(trace, report.requests, start_ms, title, path)


def _policy(report: RunReport) -> str:
    """The policy that the server said it runs."""
    states = report.header.server.twp_before
    return str(states[0].get("policy")) if states else "stock"


def _audit(trace: Path, console: Console, faults: list[str]) -> None:
    """Check every admission against the trace, with the tool that anybody can run."""
    if importlib.util.find_spec(_AUDIT) is None:
        return
    try:
        told = subprocess.run(
            [sys.executable, "-m", _AUDIT, str(trace)],
            capture_output=True, text=True, timeout=_AUDIT_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        faults.append(f"the admission audit took more than {_AUDIT_TIMEOUT_S:g} s")
        return
    text = (told.stdout + told.stderr).strip()
    console.print(f"admission audit: {text}", highlight=False, soft_wrap=True, markup=False)
    if told.returncode != 0:
        faults.append(f"the admission audit ended with exit code {told.returncode}")
