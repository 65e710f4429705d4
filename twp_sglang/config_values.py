"""From plain values to a :class:`TwpConfig`, or to a message that says what to change."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from twp_sglang.config import TwpConfig


class OptionsError(Exception):
    """A configuration that cannot be used; the message is for the person who gave it."""


def build(values: Mapping[str, Any], given: Mapping[str, str]) -> TwpConfig:
    """Validate ``values``.

    Raises:
        OptionsError: with one line per problem, each naming field, value, source and mend.
    """
    try:
        return TwpConfig.model_validate(dict(values))
    except ValidationError as error:
        raise OptionsError("; ".join(_problem(item, given) for item in error.errors())) from None


def _problem(error: Any, given: Mapping[str, str]) -> str:
    location = error["loc"]
    message = error["msg"].removeprefix("Value error, ")
    if not location:
        return str(message)
    name = str(location[0])
    source = given.get(name, "default")
    if error["type"] == "extra_forbidden":
        close = closest(name, TwpConfig.model_fields)
        hint = f"did you mean {close}?" if close else "--help lists the fields"
        return f"{name} = {error['input']!r} ({source}): no such field; {hint}"
    field = TwpConfig.model_fields.get(name)
    mend = f"; it is: {field.description}" if field is not None and field.description else ""
    return f"{name} = {error['input']!r} ({source}): {message}{mend}"


def closest(name: str, known: Collection[str]) -> str | None:
    """The name in ``known`` that somebody who wrote ``name`` probably meant, or None."""
    found = difflib.get_close_matches(name, known, n=1)
    return found[0] if found else None
