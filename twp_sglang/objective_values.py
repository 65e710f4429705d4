"""The two objectives as people state them, and the one field that each becomes.

``itl_slo = "50ms"`` and ``itl_slo_ms = 50`` are two spellings of the field ``itl_slo_ms``,
``ttft_slo`` and ``ttft_slo_ms`` of ``ttft_slo_ms``. ``"auto"`` is a value of either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from twp_sglang.durations import milliseconds
from twp_sglang.one_line import shown

Objective = float | Literal["auto"]
"""Milliseconds, or a multiple of what the machine does unloaded."""

SMALLEST_MS = 1e-3
"""A microsecond: below it an objective is a unit taken for another."""
LARGEST_MS = 3.6e6
"""An hour."""

AUTO: Literal["auto"] = "auto"

SPELLINGS = {"itl_slo": "itl_slo_ms", "ttft_slo": "ttft_slo_ms"}
"""Duration as text, and the field in ms."""

_EXAMPLES = {"itl_slo": "50ms", "ttft_slo": "2s"}


def folded(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with every duration under the name of its field, in ms.

    Raises:
        ValueError: both spellings of one field, or a value that is no duration; naming
            field, value and mend.
    """
    result = dict(values)
    for spelling, field in SPELLINGS.items():
        if spelling not in result:
            continue
        if field in result:
            raise ValueError(
                f"{spelling} = {shown(result[spelling])} and {field} = {shown(result[field])} are "
                "two spellings of one objective: leave one out"
            )
        result[field] = _duration(spelling, result.pop(spelling))
    return result


def checked(field: str, value: Any) -> Objective:
    """A value given under the field's own name.

    Raises:
        ValueError: it is neither a number of ms from a microsecond to an hour nor ``auto``.
    """
    if value == AUTO:
        return AUTO
    # Compared before it is converted: a whole number can be too large for a float.
    if isinstance(value, int | float) and not isinstance(value, bool) and _sane(value):
        return float(value)
    spelling = next(key for key, name in SPELLINGS.items() if name == field)
    raise ValueError(
        f"must be a number of ms above 0 ({SMALLEST_MS:g} to {LARGEST_MS:g}), or auto; a duration "
        f"with its unit is written {spelling} = {_EXAMPLES[spelling]}"
    )


def _duration(spelling: str, value: Any) -> Objective:
    if value == AUTO:
        return AUTO
    example = _EXAMPLES[spelling]
    if not isinstance(value, str):
        raise ValueError(
            f"{spelling} = {shown(value)}: give a duration with its unit, for example {example}, "
            "or auto"
        )
    try:
        given_ms = milliseconds(value)
    except ValueError as error:
        raise ValueError(f"{spelling} = {shown(value)}: {error}, or auto") from None
    if not _sane(given_ms):
        raise ValueError(
            f"{spelling} = {shown(value)}: must lie between a microsecond and an hour, for example "
            f"{example}"
        )
    return given_ms


def _sane(value_ms: float) -> bool:
    return SMALLEST_MS <= value_ms <= LARGEST_MS
