"""From plain values to a :class:`TwpConfig`, or to a message that says what to change."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from twp_sglang.config import TwpConfig
from twp_sglang.objective_values import SPELLINGS, folded
from twp_sglang.one_line import one_line, shown

_UNSET = ("none", "unset")


class OptionsError(Exception):
    """A configuration that cannot be used; the message is for the person who gave it."""


def one_spelling(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """``values`` of one source with objectives such as ``itl_slo = "50ms"`` as their fields.

    Raises:
        OptionsError: both spellings of one objective, or no duration; with the source.
    """
    try:
        return folded(values)
    except ValueError as error:
        raise OptionsError(f"{error} ({source})") from None


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
        close = closest(name, (*TwpConfig.model_fields, *SPELLINGS))
        hint = f"did you mean {close}?" if close else "--help lists the fields"
        return f"{one_line(name)} = {shown(error['input'])} ({source}): no such field; {hint}"
    field = TwpConfig.model_fields.get(name)
    mend = f"; it is: {field.description}" if field is not None and field.description else ""
    return f"{name} = {shown(error['input'])} ({source}): {message}{mend}"


def closest(name: str, known: Collection[str]) -> str | None:
    """The name in ``known`` that somebody who wrote ``name`` probably meant, or None."""
    found = difflib.get_close_matches(name, known, n=1)
    return found[0] if found else None


def value_of(text: str) -> Any:
    """A flag's text as the value it means; ``none`` unsets an optional field."""
    if text.lower() in _UNSET:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def load_table(path: Path, flag: str) -> dict[str, Any]:
    """The table in a TOML or JSON file that ``flag`` named.

    Raises:
        OptionsError: it cannot be read, or holds no table.
    """
    kind = "JSON" if path.suffix.lower() == ".json" else "TOML"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # not decodable, or a path with a zero byte
        raise OptionsError(f"{flag} {path}: cannot be read ({reason_of(error)})") from None
    try:
        loaded = (
            json.loads(text, object_pairs_hook=object_without_repeats)
            if kind == "JSON"
            else tomllib.loads(text)
        )
    except RecursionError:
        raise OptionsError(f"{flag} {path}: is not usable {kind} (nested too deeply)") from None
    except ValueError as error:  # of both decoders, and of a number too long to convert
        raise OptionsError(f"{flag} {path}: is not {kind} ({error})") from None
    if not isinstance(loaded, dict):
        raise OptionsError(f"{flag} {path}: must hold one table of fields")
    # TOML has no null: an optional field is unset in a file as it is by a flag.
    return {name: value_of(value) if value in _UNSET else value for name, value in loaded.items()}


def object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a key given twice is a mistake, as it is in TOML."""
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{one_line(twice)} is given twice: leave one")
    return result


def reason_of(error: Exception) -> str:
    """What went wrong with a file, without its name and number."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
