"""Text of a client in messages and logs: one line, no control characters, no endless length."""

from __future__ import annotations

from typing import Any

VALUE_CHARACTERS = 200
"""Of a value that was given; enough to recognise it by."""


def one_line(text: str, most: int = VALUE_CHARACTERS) -> str:
    """``text`` with everything that is not printable escaped, cut after ``most`` characters.

    Line ends, escape sequences of terminals and lone surrogates would forge a line of the log,
    hide one, or keep it from being written.
    """
    kept = text[:most]
    if not kept.isprintable():
        kept = "".join(
            one if one.isprintable() else one.encode("unicode_escape").decode("ascii")
            for one in kept
        )
    left = len(text) - most
    return kept if left <= 0 else f"{kept}... ({left:,} characters more)"


def shown(value: Any) -> str:
    """A value as Python writes it, in one line of bounded length."""
    try:
        return one_line(repr(value))
    except (ValueError, RecursionError):  # a number of too many digits; nested too deeply
        return f"a {type(value).__name__} that is too long to show"
