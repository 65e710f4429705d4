"""What has happened in a demo so far; the view draws it, nothing here draws or waits."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from twp_sglang.benchmarking.results import RequestRecord

HISTORY = 600
"""Points kept: more than a terminal has columns."""

Gate = Literal["open", "closed", "idle"]


@dataclass(frozen=True, slots=True)
class Point:
    """The server's ``twp`` state at one moment. None where the policy has no such thing."""

    t_s: float
    load_tokens: float = 0.0
    window_tokens: float | None = None
    sigma: float | None = None
    itl_ms: float | None = None
    l_min_ms: float | None = None
    batch: int = 0
    queue: int = 0
    admitted: int = 0
    forced: int = 0
    deciding: bool = True

    @classmethod
    def read(cls, t_s: float, state: Mapping[str, Any]) -> Point:
        """From ``internal_states[i]["twp"]`` of /server_info; odd values read as absent."""
        return cls(
            t_s=t_s,
            load_tokens=_number(state, "load_tokens") or 0.0,
            window_tokens=_number(state, "window_tokens"),
            sigma=_number(state, "sigma"),
            itl_ms=_number(state, "itl_ms"),
            l_min_ms=_number(state, "l_min_ms"),
            batch=int(_number(state, "batch") or 0),
            queue=int(_number(state, "queue") or 0),
            admitted=int(_number(state, "admitted") or 0),
            forced=int(_number(state, "forced") or 0),
            deciding=state.get("deciding") is True,
        )


def _number(state: Mapping[str, Any], name: str) -> float | None:
    value = state.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


@dataclass(slots=True)
class Answer:
    """One request as a person watches it."""

    index: int
    question: str
    sent_s: float
    text: str = ""
    tokens: int = 0
    first_s: float | None = None
    ended_s: float | None = None
    error: str | None = None


@dataclass(slots=True)
class Story:
    """All of it. Times in seconds since the first request was due."""

    planned: int
    max_tokens: int
    policy: str
    title: str = ""
    answers: dict[int, Answer] = field(default_factory=dict)
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=HISTORY))
    now_s: float = 0.0

    def sent(self, index: int, question: str) -> None:
        """A request left."""
        self.answers[index] = Answer(index, question, self.now_s)

    def tokens(self, index: int, count: int) -> None:
        """Output tokens arrived."""
        answer = self.answers[index]
        answer.tokens += count
        if answer.first_s is None:
            answer.first_s = self.now_s

    def text(self, index: int, text: str) -> None:
        """Output text arrived."""
        self.answers[index].text += text

    def done(self, record: RequestRecord) -> None:
        """A request is over."""
        answer = self.answers[record.index]
        answer.ended_s = self.now_s
        answer.error = None if record.error is None else record.error.kind

    @property
    def finished(self) -> int:
        """Requests that are over, failed ones included."""
        return sum(answer.ended_s is not None for answer in self.answers.values())

    @property
    def failed(self) -> int:
        """Requests that failed."""
        return sum(answer.error is not None for answer in self.answers.values())

    @property
    def output_tokens(self) -> int:
        """Tokens received."""
        return sum(answer.tokens for answer in self.answers.values())

    def gate(self) -> Gate:
        """Whether the window lets one more request of this demo in, as last seen.

        Every request asks for the same ``max_tokens``, so the gate's K + r <= H can be
        told from outside. ``idle`` where nobody waits or the policy has no window.
        """
        last = self.points[-1] if self.points else None
        if last is None or last.window_tokens is None or not last.queue:
            return "idle"
        return "closed" if last.load_tokens + self.max_tokens > last.window_tokens else "open"
