"""What a policy has done since the start, counted by reason.

Counters only ever rise, so that a monitoring system can take rates of them and miss nothing
between two looks. They decide nothing.
"""

from __future__ import annotations

from typing import Any


class Tally:
    """Counts of one policy object.

    Attributes:
        admissions: requests admitted, by the reason of the grant; ``engine`` where the engine
            took one on its own.
        holds: steps launched while somebody had to wait, by why the next one waited.
        refusals: requests refused on arrival, by reason.
        answers: requests that ended after producing output.
        answer_tokens: output tokens of those.
        expected_tokens: output tokens that were expected of those when they were admitted.
        length_error_tokens: sum over those of |expected - produced|.
    """

    __slots__ = (
        "admissions",
        "answer_tokens",
        "answers",
        "expected_tokens",
        "holds",
        "length_error_tokens",
        "refusals",
    )

    def __init__(self) -> None:
        self.admissions: dict[str, int] = {}
        self.holds: dict[str, int] = {}
        self.refusals: dict[str, int] = {}
        self.answers = 0
        self.answer_tokens = 0
        self.expected_tokens = 0
        self.length_error_tokens = 0

    def admitted(self, reason: str) -> None:
        """A request entered the batch."""
        self.admissions[reason] = self.admissions.get(reason, 0) + 1

    def held(self, reason: str) -> None:
        """A step was launched while somebody waited for ``reason``."""
        self.holds[reason] = self.holds.get(reason, 0) + 1

    def refused(self, reason: str) -> None:
        """A request was turned away."""
        self.refusals[reason] = self.refusals.get(reason, 0) + 1

    def answered(self, expected_tokens: int, produced_tokens: int) -> None:
        """A request ended after ``produced_tokens`` of output."""
        self.answers += 1
        self.answer_tokens += produced_tokens
        self.expected_tokens += expected_tokens
        self.length_error_tokens += abs(expected_tokens - produced_tokens)

    def snapshot(self) -> dict[str, Any]:
        """State for /server_info; JSON types only."""
        return {
            "admissions": dict(self.admissions),
            "holds": dict(self.holds),
            "refusals": dict(self.refusals),
            "answers": self.answers,
            "answer_tokens": self.answer_tokens,
            "expected_tokens": self.expected_tokens,
            "length_error_tokens": self.length_error_tokens,
        }
