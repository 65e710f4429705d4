"""Whether the server serves just now, as far as its HTTP process knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

RETRY_SHUTDOWN_S = 10
"""Another replica takes over at once, and a restarted server needs longer: ask in between."""

RETRY_UNHEALTHY_S = 10
PROBE_EVERY_S = 10.0
"""While unhealthy one request in so many seconds is let through: SGLang takes a server for well
again only when an answer comes, and without requests none would."""


class EngineSeen(NamedTuple):
    """What SGLang's tokenizer manager knows."""

    shutting_down: bool
    unhealthy: bool
    """A health check got no answer, and none has succeeded since."""
    last_answer_s: float
    """Wall-clock time of the newest message from the engine."""


class NotServing(NamedTuple):
    """Why a request cannot be taken, and when to come again."""

    message: str
    retry_after_s: int


class ServingState:
    """Judges what is seen.

    Args:
        look: what SGLang's tokenizer manager knows now; None before there is one.
        clock: wall-clock seconds, the clock of ``last_answer_s``.
    """

    def __init__(self, look: Callable[[], EngineSeen | None], clock: Callable[[], float]) -> None:
        self._look = look
        self._clock = clock
        self._unhealthy_since_s: float | None = None
        self._probed_s = 0.0

    def refusal(self) -> NotServing | None:
        """Why a new request is not taken; None takes it."""
        seen = self._look()
        if seen is None:
            return None
        if seen.shutting_down:
            return NotServing("The server is shutting down.", RETRY_SHUTDOWN_S)
        if not seen.unhealthy:
            self._unhealthy_since_s = None
            return None
        now = self._clock()
        if self._unhealthy_since_s is None:
            self._unhealthy_since_s = self._probed_s = now
        if seen.last_answer_s > self._unhealthy_since_s:
            return None
        if now - self._probed_s >= PROBE_EVERY_S:
            self._probed_s = now
            return None
        return NotServing(
            "The engine does not answer: its last health check failed and no token came since.",
            RETRY_UNHEALTHY_S,
        )
