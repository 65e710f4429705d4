"""What is known of the HTTP request under way, for code that SGLang calls without it.

Set by the doorway (:mod:`patches.http.doorway`) for each request, and seen by every task that
serves it: a task inherits the context in which it was started.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from twp_sglang.scheduling.request_terms import NO_TERMS, RequestTerms


class Exchange:
    """One request and what became of it.

    Attributes:
        terms: what its headers ask for.
        key_client: who sent it by its API key, hashed; empty where it has none.
        request: SGLang's request object once there is one; a batch is one object too.
        refused: (HTTP status, message) where the scheduler refused all of it.
        retry_after_s: seconds that a refusal named.
    """

    __slots__ = ("key_client", "refused", "request", "retry_after_s", "terms")

    def __init__(self, terms: RequestTerms = NO_TERMS, key_client: str = "") -> None:
        self.terms = terms
        self.key_client = key_client
        self.request: Any = None
        self.refused: tuple[int, str] | None = None
        self.retry_after_s: int | None = None


_current: ContextVar[Exchange | None] = ContextVar("twp_exchange", default=None)


def begin(exchange: Exchange) -> None:
    """From here on this task, and those it starts, serve ``exchange``."""
    _current.set(exchange)


def current() -> Exchange | None:
    """The exchange that this task serves; None outside of any."""
    return _current.get()
