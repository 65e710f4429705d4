"""Hook tables by range of SGLang versions; signatures decide, the version only warns."""

from __future__ import annotations

from typing import NamedTuple

from patches.contract import Finding, Hook, check
from patches.sglang_0_5 import (
    before_0_5_20,
    consensus,
    construction,
    emulation,
    gate,
    http_requests,
    page_access,
    preempting,
    queueing,
    ranking,
    refusing,
    reporting,
    stepping,
)
from patches.sources import Source


class HookTable(NamedTuple):
    """Hooks known to work on a range of releases, ends included."""

    first: str
    last: str
    hooks: tuple[Hook, ...]

    def covers(self, version: str) -> bool:
        """Whether ``version`` lies in the range that was tried."""
        return _key(self.first) <= _key(version) <= _key(self.last)


TABLES = (
    HookTable(
        "0.5.17",
        "0.5.17",
        (
            *construction.HOOKS,
            *before_0_5_20.CONSENSUS,
            *before_0_5_20.QUEUEING,
            *before_0_5_20.REFUSING,
            *stepping.HOOKS,
            *before_0_5_20.RANKING,
            *before_0_5_20.GATE,
            *preempting.HOOKS,
            *reporting.HOOKS,
        ),
    ),
    HookTable(
        "0.5.20",
        "0.5.23",
        (
            *construction.HOOKS,
            *consensus.HOOKS,
            *queueing.HOOKS,
            *refusing.HOOKS,
            *stepping.HOOKS,
            *ranking.HOOKS,
            *gate.HOOKS,
            *preempting.HOOKS,
            *reporting.HOOKS,
        ),
    ),
)


EMULATION_TABLES = (HookTable("0.5.20", "0.5.23", emulation.HOOKS),)
"""Apart from the steering: a release that one fits and the other does not is served with the
one that does."""


HTTP_TABLES = (HookTable("0.5.20", "0.5.23", (*page_access.HOOKS, *http_requests.HOOKS)),)
"""Of the HTTP process, where requests come in and the routes under /twp are served."""


class Verdict(NamedTuple):
    """What a check says about one SGLang."""

    version: str
    table: HookTable
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether every hook fits."""
        return all(finding.ok for finding in self.findings)

    @property
    def tried(self) -> bool:
        """Whether the version lies in the range that was tried."""
        return self.table.covers(self.version)

    def reasons(self) -> list[str]:
        """One line per hook that does not fit."""
        return [
            f"{finding.target}: {finding.detail}" for finding in self.findings if not finding.ok
        ]


def judge(source: Source, tables: tuple[HookTable, ...] = TABLES) -> Verdict:
    """The first table all of whose hooks fit ``source``, else the newest with its misfits."""
    verdicts = [
        Verdict(source.version, table, tuple(check(table.hooks, source))) for table in tables
    ]
    return next((verdict for verdict in verdicts if verdict.ok), verdicts[-1])


def _key(version: str) -> tuple[int, ...]:
    """Leading numbers of a version, for comparison; suffixes such as .post1 count as equal."""
    parts = []
    for part in version.split("."):
        digits = part if part.isdigit() else ""
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)
