"""What a soak has seen, gathered while it runs and judged at its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from twp_sglang.soaking.endings import ALLOWED, Outcome
from twp_sglang.soaking.growth import Growth
from twp_sglang.soaking.server_view import Load, TwpState

EXAMPLES = 40
"""Wrong endings kept with their words; the rest is counted."""


@dataclass
class Record:
    """See the module's text. Times in seconds from the start of the traffic."""

    endings: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kind, ending) of every request."""
    wrong: list[str] = field(default_factory=list)
    wrong_count: int = 0
    output_tokens: int = 0
    submitted: int = 0
    longest_wait_s: float = 0.0

    faults: list[str] = field(default_factory=list)
    """Times at which TWP did not decide or had fallen back."""
    silences: list[str] = field(default_factory=list)
    """Times at which the server did not answer a question of ours."""
    polls: int = 0
    metrics_seen: bool = False
    changes: Counter[str] = field(default_factory=Counter)
    """Changes of the configuration: taken, refused, wrong."""
    wrong_changes: list[str] = field(default_factory=list)
    onlookers: Counter[str] = field(default_factory=Counter)
    """What those who look on did: explained, unknown, watched, events."""
    flushes: int = 0
    deepest_queue: int = 0

    before: Load | None = None
    after: Load | None = None
    after_flush: Load | None = None
    flushed: bool = False
    answers_after: list[str] = field(default_factory=list)
    """Interfaces that did not answer after the load."""
    twp: TwpState = field(default_factory=TwpState)
    twp_expected: bool = False
    traces: set[str] = field(default_factory=set)
    """Files of step traces that were named in any look: a change begins a new one."""

    watched: bool = False
    memory: dict[str, Growth | None] = field(default_factory=dict)
    handles: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Handles before the load and after it, by process."""
    ended_processes: list[str] = field(default_factory=list)
    left_over: list[str] | None = None
    """Processes that outlived the server; None where it was not ours to stop."""
    exit_code: int | None = None

    audits: list[str] = field(default_factory=list)
    audit_violations: list[str] = field(default_factory=list)
    audit_notes: list[str] = field(default_factory=list)

    def ended(self, outcome: Outcome, wait_s: float) -> None:
        """One request has ended after ``wait_s`` seconds."""
        act = outcome.act
        self.endings[act.kind, outcome.ending] += 1
        self.output_tokens += outcome.output_tokens
        self.longest_wait_s = max(self.longest_wait_s, wait_s)
        if outcome.ending in ALLOWED[act.kind]:
            return
        self.wrong_count += 1
        if len(self.wrong) < EXAMPLES:
            how = "streaming" if act.stream else "whole"
            reason = outcome.reason or f"{outcome.ending}, which nobody asked for"
            self.wrong.append(
                f"request {act.number} ({act.kind}, {act.api}, {how}) at {act.at_s:.1f} s: {reason}"
            )
