"""How a request ended, read off the server's reply: the words in which the soak judges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from twp_sglang.soaking.traffic import Act

Ending = Literal["answered", "aborted", "refused", "rejected", "left", "lost", "wrong"]
"""answered: whole. aborted: the server said so. refused: 429 or 503 with Retry-After. rejected: a
4xx with a reason. left: the client went. lost: no end within the bound. wrong: anything else."""

ALLOWED: dict[str, frozenset[Ending]] = {
    "serve": frozenset({"answered", "refused"}),
    "leave_streaming": frozenset({"left", "answered", "refused"}),
    "leave_waiting": frozenset({"left", "answered", "refused"}),
    # An abort that comes late finds an answer; one that comes early, none to abort.
    "abort": frozenset({"aborted", "answered", "refused"}),
    "malformed": frozenset({"rejected"}),
    # A busy server may refuse before it looks at the length.
    "too_long": frozenset({"rejected", "refused"}),
}
"""Endings that a kind of request may have."""

_REFUSALS = (429, 503)
_SHOWN_CHARACTERS = 200


class Outcome(NamedTuple):
    """One request's end. ``reason`` says what was wrong, or is empty."""

    act: Act
    ending: Ending
    reason: str = ""
    output_tokens: int = 0


class Progress:
    """What a stream has said so far; counts its ends."""

    def __init__(self, act: Act) -> None:
        self.act = act
        self.finishes: dict[int, str] = {}
        self.tokens: dict[int, int] = {}
        self.repeated = False
        self.error: tuple[int | None, str] | None = None
        self.closed = False

    def take(self, data: bytes) -> None:
        """One event's data.

        Raises:
            ValueError: it is not JSON, or comes after the stream's end.
        """
        if self.closed:
            raise ValueError(f"an event after the end of the stream: {data[:80]!r}")
        if data.strip() == b"[DONE]":
            self.closed = True
            return
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError(f"an event that is no object: {data[:80]!r}")
        if event.get("error"):
            self.error = error_of(event)
            return
        for index, reason, tokens in finishes_of(event, self.act.api):
            if reason == "abort":
                self.error = abort_of(event) or self.error
            if tokens is not None:
                self.tokens[index] = tokens
            if reason is not None:
                self.repeated |= index in self.finishes
                self.finishes[index] = reason


def finishes_of(event: Mapping[str, Any], api: str) -> list[tuple[int, str | None, int | None]]:
    """(answer, finish reason or None, output tokens so far or None) for what ``event`` tells of."""
    if api == "generate":
        meta = event.get("meta_info") or {}
        reason = meta.get("finish_reason")
        name = reason.get("type") if isinstance(reason, dict) else reason
        return [(int(event.get("index") or 0), name, meta.get("completion_tokens"))]
    choices = event.get("choices") or []
    usage = (event.get("usage") or {}).get("completion_tokens")
    if not choices:
        return [(0, None, usage)]
    alone = usage if len(choices) == 1 else None
    return [(choice.get("index", 0), choice.get("finish_reason"), alone) for choice in choices]


def abort_of(event: Mapping[str, Any]) -> tuple[int | None, str] | None:
    """(status, message) where SGLang's own form of an abort gives a status: it was refused."""
    found = (event.get("meta_info") or {}).get("finish_reason")
    if not isinstance(found, Mapping) or found.get("status_code") is None:
        return None
    return int(found["status_code"]), str(found.get("message"))


def error_of(reply: Any) -> tuple[int | None, str]:
    """(status, message) of an error body, in any of the server's forms."""
    found = reply.get("error") or reply if isinstance(reply, Mapping) else reply
    if isinstance(found, Mapping):
        code = found.get("code")
        return (code if isinstance(code, int) else None), str(found.get("message") or found)
    return None, str(found)


def of_stream(progress: Progress) -> Outcome:
    """The outcome of a stream that has ended."""
    act = progress.act
    if progress.error is not None:
        status, message = progress.error
        if act.kind == "abort" and "abort" in message.lower():
            return Outcome(act, "aborted")
        if status in _REFUSALS:
            # The status line has gone out; such a refusal cannot carry the header any more.
            return Outcome(act, "refused")
        if status is not None and 400 <= status < 500 and act.kind in ("malformed", "too_long"):
            return Outcome(act, "rejected")
        return Outcome(act, "wrong", f"error in the stream: {message[:_SHOWN_CHARACTERS]}")
    if not progress.closed and act.api != "generate":
        return Outcome(act, "wrong", "the stream ended without [DONE]")
    if progress.repeated:
        return Outcome(act, "wrong", "one answer ended twice")
    return _of_finishes(act, progress.finishes, progress.tokens)


def of_reply(act: Act, status: int, headers: Mapping[str, str], raw: bytes) -> Outcome:
    """The outcome of a reply that is no stream of events."""
    try:
        reply = json.loads(raw)
    except ValueError:
        reply = raw.decode(errors="replace")
    if status in _REFUSALS:
        if "Retry-After" not in headers:
            return Outcome(act, "wrong", f"{status} without Retry-After: {_shown(reply)}")
        return Outcome(act, "refused")
    if status != 200:
        _, message = error_of(reply)
        if act.kind == "abort" and "abort" in message.lower():
            return Outcome(act, "aborted")
        if 400 <= status < 500 and message and act.kind in ("malformed", "too_long"):
            return Outcome(act, "rejected")
        return Outcome(act, "wrong", f"{status}: {_shown(reply)}")
    finishes: dict[int, str] = {}
    tokens: dict[int, int] = {}
    parts = reply if isinstance(reply, list) else [reply]
    for number, part in enumerate(parts):
        if not isinstance(part, dict):
            return Outcome(act, "wrong", f"a reply of another form: {_shown(reply)}")
        for index, reason, count in finishes_of(part, act.api):
            # A list's items carry no number of their own.
            place = number if isinstance(reply, list) else index
            if reason is not None:
                finishes[place] = reason
            if count is not None:
                tokens[place] = count
    return _of_finishes(act, finishes, tokens)


def _of_finishes(act: Act, finishes: Mapping[int, str], tokens: Mapping[int, int]) -> Outcome:
    """Judge the ends of all answers of a reply that was given in good order."""
    if act.kind in ("malformed", "too_long"):
        return Outcome(act, "wrong", "a body that must be refused was taken")
    if len(finishes) != act.answers:
        return Outcome(act, "wrong", f"{len(finishes)} of {act.answers} answers ended")
    total = sum(tokens.values())
    if "abort" in finishes.values():
        return Outcome(act, "aborted", output_tokens=total)
    # End tokens are ignored, so an answer has the length asked for. With several answers
    # the OpenAI forms count them together, or not at all.
    asked = act.output_tokens * act.answers
    if tokens and total != asked and (act.answers == 1 or act.api == "generate"):
        return Outcome(act, "wrong", f"{total} output tokens in place of {asked}", total)
    return Outcome(act, "answered", output_tokens=total)


def _shown(reply: Any) -> str:
    text = reply if isinstance(reply, str) else json.dumps(reply)
    return text[:_SHOWN_CHARACTERS]
