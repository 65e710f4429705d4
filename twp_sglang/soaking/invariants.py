"""The invariants of a soak, each judged from the record: held, violated, or not judged and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from twp_sglang.soaking.record import Record
from twp_sglang.soaking.settings import SoakSettings

Verdict = Literal["held", "violated", "not judged"]


class Finding(NamedTuple):
    """One invariant and what became of it."""

    name: str
    verdict: Verdict
    detail: str


Judge = Callable[[Record, SoakSettings], tuple[Verdict, str]]


def judge(record: Record, settings: SoakSettings) -> list[Finding]:
    """All invariants, in the order in which a person asks for them."""
    return [Finding(name, *judging(record, settings)) for name, judging in _INVARIANTS.items()]


def _requests(record: Record, settings: SoakSettings) -> tuple[Verdict, str]:
    ended = record.endings.total()
    if not record.submitted:
        return "not judged", "no request was sent"
    if ended != record.submitted:
        return "violated", f"{record.submitted} requests were sent and {ended} ended"
    if record.wrong_count:
        return "violated", f"{record.wrong_count} of {ended}: " + "; ".join(record.wrong[:5])
    return "held", f"{ended} requests, longest to its end {record.longest_wait_s:.1f} s"


def _fallback(record: Record, settings: SoakSettings) -> tuple[Verdict, str]:
    if not record.twp_expected:
        return "not judged", "the server runs without TWP"
    if record.faults:
        return "violated", "; ".join(record.faults[:3])
    return "held", f"deciding and without a fault in {record.polls} looks"


def _pool(record: Record, settings: SoakSettings) -> tuple[Verdict, str]:
    before, after, flushed = record.before, record.after, record.after_flush
    if before is None or after is None or flushed is None:
        return "not judged", "the server has no /v1/loads, or stopped answering it"
    if not after.idle:
        return "violated", f"{after.running} running and {after.waiting} waiting after the last end"
    if after.used_tokens:
        return "violated", f"{after.used_tokens} KV tokens held by nobody"
    if not record.flushed:
        return "violated", "/flush_cache was refused by a server that says it is idle"
    free_before = before.capacity_tokens - before.used_tokens
    free_after = flushed.capacity_tokens - flushed.used_tokens
    if free_before != free_after:
        return "violated", f"{free_before} KV tokens free at the start, {free_after} at the end"
    return "held", f"{free_after} KV tokens free, as at the start"


def _memory(record: Record, settings: SoakSettings) -> tuple[Verdict, str]:
    if not record.watched:
        return "not judged", "the server's processes cannot be seen from here"
    known = {name: found for name, found in record.memory.items() if found is not None}
    if not known:
        return "not judged", "too few readings; soak for longer"
    said = ", ".join(
        f"{name} {found.total:+.1f} MiB ({found.per_hour:+.0f}/h)" for name, found in known.items()
    )
    grown = {
        name: found for name, found in known.items() if found.total > settings.memory_growth_mib
    }
    if grown:
        return "violated", f"more than {settings.memory_growth_mib:g} MiB: {said}"
    return "held", said


def _handles(record: Record, settings: SoakSettings) -> tuple[Verdict, str]:
    if not record.handles:
        return "not judged", "the server's processes cannot be seen from here"
    grown = {
        name: pair
        for name, pair in record.handles.items()
        if pair[1] > pair[0] + settings.handle_growth
    }
    said = ", ".join(f"{name} {a} -> {b}" for name, (a, b) in (grown or record.handles).items())
    return ("violated" if grown else "held"), said


def _processes(record: Record, settings: SoakSettings) -> tuple[Verdict, str]:
    if not record.watched:
        return "not judged", "the server's processes cannot be seen from here"
    if record.ended_processes:
        return "violated", "; ".join(record.ended_processes[:5])
    return "held", f"{len(record.memory)} processes lived throughout"


def _answers(record: Record, settings: SoakSettings) -> tuple[Verdict, str]:
    if record.silences:
        return "violated", f"{len(record.silences)} times silent: " + "; ".join(record.silences[:3])
    if record.answers_after:
        return "violated", "; ".join(record.answers_after)
    return "held", "every interface answered after the load"


def _audit(record: Record, settings: SoakSettings) -> tuple[Verdict, str]:
    if record.audit_violations:
        return "violated", "; ".join(record.audit_violations[:3])
    if not record.audits:
        why = record.audit_notes or ["no step trace is written (--twp-trace DIR)"]
        return "not judged", "; ".join(why)
    return "held", "; ".join([*record.audits, *record.audit_notes])


def _changes(record: Record, settings: SoakSettings) -> tuple[Verdict, str]:
    if record.wrong_changes:
        return "violated", "; ".join(record.wrong_changes[:3])
    if not record.changes:
        return "not judged", "the server's configuration cannot be changed while it runs"
    return "held", ", ".join(f"{count} {name}" for name, count in sorted(record.changes.items()))


def _shutdown(record: Record, settings: SoakSettings) -> tuple[Verdict, str]:
    if record.left_over is None:
        return "not judged", "the server was not started by the soak"
    if record.left_over:
        return "violated", "still there: " + ", ".join(record.left_over)
    return "held", f"no process left; exit code {record.exit_code}"


_INVARIANTS: dict[str, Judge] = {
    "every request ends exactly once": _requests,
    "TWP never falls back": _fallback,
    "configuration changes": _changes,
    "KV pool whole": _pool,
    "memory bounded": _memory,
    "handles bounded": _handles,
    "processes live": _processes,
    "server answers": _answers,
    "audit of the trace": _audit,
    "clean shutdown": _shutdown,
}
