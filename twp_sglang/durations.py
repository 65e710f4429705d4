"""Durations as people write them: ``50ms``, ``0.05s``, ``2s``."""

from __future__ import annotations

import math
import re

_VALUE = re.compile(r"^([0-9.eE+-]+)\s*(ms|s)$")


def milliseconds(text: str) -> float:
    """Milliseconds of a number with its unit, ``ms`` or ``s``; finite and above 0.

    Raises:
        ValueError: it is none; the message says what is wrong and what to write.
    """
    match = _VALUE.match(text.strip())
    if not match:
        raise ValueError("give it with its unit, for example 50ms or 2s")
    try:
        value = float(match[1])
    except ValueError:
        raise ValueError(f"'{match[1]}' is not a number; for example 50ms or 2s") from None
    result = value * (1000.0 if match[2] == "s" else 1.0)
    if not math.isfinite(result) or result <= 0:
        raise ValueError("must be finite and above 0")
    return result
