"""A soak's result for a program and for a person."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from twp_sglang.soaking.invariants import Finding
from twp_sglang.soaking.record import Record
from twp_sglang.soaking.settings import SoakSettings

FORMAT = "twp-soak/1"
_SECRET = frozenset({"api_key"})


def violated(findings: list[Finding]) -> bool:
    """Whether any invariant was."""
    return any(finding.verdict == "violated" for finding in findings)


def as_json(
    record: Record, settings: SoakSettings, findings: list[Finding], about: dict[str, Any]
) -> dict[str, Any]:
    """Everything that was seen; JSON types only."""
    kinds: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for (kind, ending), count in sorted(record.endings.items()):
        kinds[kind][ending] = count
    return {
        "format": FORMAT,
        **about,
        "settings": settings.model_dump(mode="json", exclude=set(_SECRET)),
        "passed": not violated(findings),
        "invariants": [finding._asdict() for finding in findings],
        "requests": {
            "sent": record.submitted,
            "endings": dict(kinds),
            "output_tokens": record.output_tokens,
            "longest_s": round(record.longest_wait_s, 3),
            "wrong": record.wrong,
        },
        "deepest_queue": record.deepest_queue,
        "flushes": record.flushes,
        "changes": dict(record.changes),
        "onlookers": dict(record.onlookers),
        "memory_mib": {
            name: None if found is None else {k: round(v, 2) for k, v in found._asdict().items()}
            for name, found in record.memory.items()
        },
        "handles": {name: list(pair) for name, pair in record.handles.items()},
        "twp": list(record.twp.states),
    }


def as_text(
    record: Record, settings: SoakSettings, findings: list[Finding], about: dict[str, Any]
) -> str:
    """The same, short."""
    lines = [
        f"soak of {settings.url}: {about['seconds'] / 60:.1f} min, {record.submitted} requests at "
        f"{about['rate_rps']:.1f}/s x {settings.base_load:g} to {settings.burst_load:g}, "
        f"{record.output_tokens} tokens, deepest queue {record.deepest_queue}, "
        f"{record.flushes} cache flushes",
    ]
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    for (kind, ending), count in sorted(record.endings.items()):
        kinds[kind].append(f"{count} {ending}")
    lines += [f"  {kind:16} {', '.join(parts)}" for kind, parts in kinds.items()]
    for name, verdict, detail in findings:
        mark = {"held": "held    ", "violated": "VIOLATED", "not judged": "-       "}[verdict]
        lines.append(f"{mark}  {name}: {detail}")
    bad = sum(finding.verdict == "violated" for finding in findings)
    unjudged = sum(finding.verdict == "not judged" for finding in findings)
    lines.append(f"{bad} violated, {unjudged} not judged, of {len(findings)} invariants")
    return "\n".join(lines)
