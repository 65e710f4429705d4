"""Request traces in CSV: one row a request, with its time and its lengths.

Two headers are understood; further columns are ignored.

    t_s,input_tokens,output_tokens             seconds from any origin
    TIMESTAMP,ContextTokens,GeneratedTokens    the Azure LLM inference traces (2023, 2024)
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from controllers.laws.base import FrozenModel

PLAIN_COLUMNS = ("t_s", "input_tokens", "output_tokens")
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class _Reader(Protocol):
    """What is used of a ``csv.reader``, whose own type has no public name."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


class TraceRow(FrozenModel):
    """One request: seconds since the first row of the trace, and its lengths in tokens."""

    arrival_s: float
    input_tokens: int
    output_tokens: int


class TraceError(ValueError):
    """A trace that cannot be replayed; the message names file, line and mend."""


def read_trace(
    path: Path, *, limit: int | None = None, time_stretch: float = 1.0
) -> list[TraceRow]:
    """Read a trace.

    Args:
        path: CSV file in one of the two layouts above.
        limit: read at most this many requests; None reads all.
        time_stretch: factor on all times; 2 halves the rate.

    Raises:
        TraceError: file missing or unreadable, header not understood, a bad row, time
            running backwards, or no row at all.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as handle:
            return _rows(csv.reader(handle), path, limit, time_stretch)
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file; give a CSV with header t_s,...") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read as CSV: {error}") from None


def _rows(reader: _Reader, path: Path, limit: int | None, stretch: float) -> list[TraceRow]:
    header = [name.strip() for name in next(reader, [])]
    columns = next((c for c in (PLAIN_COLUMNS, AZURE_COLUMNS) if set(c) <= set(header)), None)
    if columns is None:
        raise TraceError(
            f"{path} line 1: the header is '{','.join(header)}'; it must hold "
            f"{','.join(PLAIN_COLUMNS)} (or {','.join(AZURE_COLUMNS)})"
        )
    places = [header.index(name) for name in columns]
    rows: list[TraceRow] = []
    origin_s = last_s = 0.0
    for fields in reader:
        if limit is not None and len(rows) >= limit:
            break
        line = reader.line_num
        if not any(field.strip() for field in fields):
            continue
        if len(fields) <= max(places):
            raise TraceError(
                f"{path} line {line}: {len(fields)} fields where the header has {len(header)}"
            )
        raw_time, raw_input, raw_output = (fields[place].strip() for place in places)
        time_s = _time(raw_time, columns, path, line)
        if not rows:
            origin_s = last_s = time_s
        if time_s < last_s:
            raise TraceError(
                f"{path} line {line}: {columns[0]} {raw_time} lies before the row above it; "
                "sort the file by time"
            )
        last_s = time_s
        rows.append(
            TraceRow(
                arrival_s=(time_s - origin_s) * stretch,
                input_tokens=_count(raw_input, columns[1], path, line),
                output_tokens=_count(raw_output, columns[2], path, line),
            )
        )
    if not rows:
        raise TraceError(f"{path}: holds a header but no request")
    return rows


def _time(text: str, columns: tuple[str, ...], path: Path, line: int) -> float:
    try:
        if columns is AZURE_COLUMNS:
            # Azure writes seven decimals; datetime reads six.
            whole, _, fraction = text.partition(".")
            zone = fraction.lstrip("0123456789")
            moment = datetime.fromisoformat(whole + zone)
            # The traces carry no zone; local time would jump at a clock change.
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
            digits = fraction[: len(fraction) - len(zone)]
            return seconds + (float(f"0.{digits}") if digits else 0.0)
        value = float(text)
    except ValueError:
        raise TraceError(f"{path} line {line}: {columns[0]} is '{text}', not a time") from None
    if not math.isfinite(value):
        raise TraceError(f"{path} line {line}: {columns[0]} is '{text}', not a finite time")
    return value


def _count(text: str, column: str, path: Path, line: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise TraceError(
            f"{path} line {line}: {column} is '{text}', not a whole number of tokens"
        ) from None
    if value < 1:
        raise TraceError(f"{path} line {line}: {column} is {value}; a request has at least 1")
    return value
