"""The last look, at a server that should be idle: pools, processes, traces, answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from controllers.trace_reader import TraceError
from twp_sglang import audit
from twp_sglang.soaking.client import Target, send
from twp_sglang.soaking.growth import growth
from twp_sglang.soaking.processes import ProcessWatch
from twp_sglang.soaking.record import Record
from twp_sglang.soaking.server_view import TwpState
from twp_sglang.soaking.settings import SoakSettings
from twp_sglang.soaking.traffic import Act, Api

_FIRST_NUMBER = 99_000_000
"""Apart from the soak's own numbers: request ids must not repeat."""

_VIOLATIONS_KEPT = 20


def read_processes(
    watch: ProcessWatch, handles_before: Mapping[int, int], counting_from_s: float, record: Record
) -> None:
    """Trend of each process's memory, its handles, and who ended."""
    record.ended_processes = list(watch.ended)
    for pid, readings in watch.readings.items():
        name = f"{watch.names[pid]}[{pid}]"
        counted = [reading for reading in readings if reading.at_s >= counting_from_s]
        record.memory[name] = growth(
            [reading.at_s for reading in counted], [reading.rss_mib for reading in counted]
        )
        if pid in handles_before:
            record.handles[name] = (handles_before[pid], readings[-1].handles)


def read_traces(twp: TwpState, record: Record) -> None:
    """Audit every step trace that is on this machine."""
    steps, admissions, files = 0, 0, 0
    for trace in sorted(record.traces.union(twp.traces)):
        if not Path(trace).exists():
            record.audit_notes.append(f"{trace} is not on this machine")
            continue
        try:
            found, _ = audit.audit(Path(trace))
        except TraceError as error:
            record.audit_violations.append(str(error))
            continue
        steps, admissions, files = steps + found.steps, admissions + found.admissions, files + 1
        record.audit_violations += [str(item) for item in found.violations[:_VIOLATIONS_KEPT]]
    if files:
        record.audits.append(f"{admissions} admissions in {steps} steps of {files} traces")
    if twp.dropped:
        record.audit_notes.append(f"{twp.dropped} steps were dropped by the trace")


async def ask_once_more(
    target: Target, apis: tuple[Api, ...], settings: SoakSettings, record: Record
) -> None:
    """One request through every interface."""
    for number, api in enumerate(apis):
        act = Act(_FIRST_NUMBER + number, 0.0, "serve", api, False, 5, 5, 1, 0.0, 0.9)
        outcome = await send(target, act, settings.reply_bound_s)
        if outcome.ending != "answered":
            record.answers_after.append(f"{api} afterwards: {outcome.ending} {outcome.reason}")
