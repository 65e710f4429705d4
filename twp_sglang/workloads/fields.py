"""Opening trace files and reading their fields, with errors that name line and mend."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

LARGEST_TOKENS = 10_000_000
"""No model has a longer context; a larger count is a damaged row."""

LONGEST_S = 100 * 365 * 86_400.0
"""A century: relative times beyond it are a damaged row or another unit."""


class WorkloadError(ValueError):
    """A workload that cannot be used; the message names file, line, field and the mend."""


class Place:
    """Where a reader is, for its error messages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0

    def error(self, message: str) -> WorkloadError:
        """An error at this place."""
        where = f"{self.path} line {self.line}" if self.line else str(self.path)
        return WorkloadError(f"{where}: {message}")


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """A text file, unpacked when its name ends in ``.gz``.

    Raises:
        WorkloadError: no such file, not readable, not UTF-8, or a damaged archive.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8-sig", newline="") as handle:
                yield handle
        else:
            with path.open(encoding="utf-8-sig", newline="") as handle:
                yield handle
    except FileNotFoundError:
        raise WorkloadError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        hint = "" if path.suffix == ".gz" else "; a packed file must be named .gz"
        raise WorkloadError(f"{path}: is not UTF-8 text{hint}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise WorkloadError(f"{path}: cannot be read ({error})") from None


def json_lines(handle: IO[str], place: Place) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file; blank lines are passed over.

    Raises:
        WorkloadError: a line that is not a JSON object.
    """
    for place.line, line in enumerate(handle, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise place.error(f"is not JSON ({error.msg})") from None
        if not isinstance(value, dict):
            raise place.error("is not a JSON object")
        yield value


def tokens(value: Any, field: str, place: Place, *, least: int = 1) -> int:
    """A token count from text or a JSON number.

    Raises:
        WorkloadError: not a whole number, below ``least``, or absurdly large.
    """
    count: int | None = None
    if isinstance(value, str):
        try:
            count = int(value)
        except ValueError:
            # Some writers put counts through floats: 12.0 is a count, 12.5 is not.
            count = _whole(value)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        count = None
    elif math.isfinite(value) and value == int(value):
        count = int(value)
    if count is None:
        raise place.error(f"{field} is {value!r}, not a whole number of tokens")
    if count < least:
        raise place.error(f"{field} is {count}; it must be at least {least}")
    if count > LARGEST_TOKENS:
        raise place.error(
            f"{field} is {count}, above the {LARGEST_TOKENS:,} taken for plausible: mend the row"
        )
    return count


def _whole(text: str) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if math.isfinite(value) and value == int(value) else None


def seconds(value: Any, field: str, place: Place) -> float:
    """A relative time in seconds.

    Raises:
        WorkloadError: not a finite number, negative, or beyond a century.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise place.error(f"{field} is {value!r}, not a time in seconds") from None
    if not math.isfinite(number):
        raise place.error(f"{field} is {value!r}, not a finite time")
    if number < 0:
        raise place.error(f"{field} is {number:g}; times must not be negative")
    if number > LONGEST_S:
        raise place.error(f"{field} is {number:g} s, beyond a century: is it in another unit?")
    return number


def moment(value: str, field: str, place: Place) -> float:
    """A date and time as seconds since 1970.

    Raises:
        WorkloadError: not a date and time.
    """
    try:
        # Azure writes seven decimals; datetime reads six.
        whole, _, fraction = value.strip().partition(".")
        zone = fraction.lstrip("0123456789")
        parsed = datetime.fromisoformat(whole + zone)
        digits = fraction[: len(fraction) - len(zone)]
        # The traces carry no zone; local time would jump at a clock change.
        known = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
        return known.timestamp() + (float(f"0.{digits}") if digits else 0.0)
    except ValueError:
        raise place.error(f"{field} is {value!r}, not a date and time") from None
