"""Traces in CSV: one row a request.

==========  =====================================================================
plain       t_s, input_tokens, output_tokens; optional client, priority, prefix
servegen    the same with client; further columns are ignored
azure       TIMESTAMP, ContextTokens, GeneratedTokens (Azure LLM inference traces 2023, 2024)
burstgpt    Timestamp, Request tokens, Response tokens (BurstGPT, arXiv 2401.17644)
==========  =====================================================================

``prefix`` is ``NAME:TOKENS``: the first TOKENS tokens of the prompt are the same in every
request of that name.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from twp_sglang.workloads.fields import Place, moment, opened, seconds, tokens
from twp_sglang.workloads.request import PrefixBlock, Request
from twp_sglang.workloads.workload import Workload, in_order

Row = Callable[[str], str]
"""Field of a row by column name; empty where the column is optional and absent."""


class _Format(NamedTuple):
    columns: tuple[str, ...]
    optional: tuple[str, ...]
    request: Callable[[Row, Place], Request | None]
    """A row as a request; None for a row that the source documents as no answer."""
    skipped: str = ""


def read_csv_trace(path: Path, form: str, limit: int | None = None) -> Workload:
    """Read a trace in format ``form``: ``csv``, ``servegen``, ``azure`` or ``burstgpt``.

    Args:
        path: the file; ``.gz`` is unpacked.
        form: a key of :data:`CSV_FORMATS`.
        limit: read at most so many requests.

    Raises:
        WorkloadError: the file cannot be read, a column is missing, a row is bad (with its
            line number), or there is no request.
    """
    spec = CSV_FORMATS[form]
    place = Place(path)
    requests: list[Request] = []
    skipped = 0
    with opened(path) as handle:
        for row in _rows(handle, spec, place):
            if limit is not None and len(requests) >= limit:
                break
            request = spec.request(row, place)
            if request is None:
                skipped += 1
            else:
                requests.append(request)
    notes = [f"{skipped} rows left out: {spec.skipped}"] if skipped else []
    return in_order(path.name, requests, notes)


def _rows(handle: IO[str], spec: _Format, place: Place) -> Iterator[Row]:
    reader = csv.reader(handle)
    try:
        header = [name.strip() for name in next(reader, [])]
        place.line = 1
        missing = [name for name in spec.columns if name not in header]
        if missing:
            raise place.error(
                f"no column {', '.join(missing)}; the header is '{','.join(header)}' and must "
                f"hold {','.join(spec.columns)}"
            )
        where = {name: header.index(name) for name in header}
        width = max(where[name] for name in spec.columns) + 1
        for fields in reader:
            place.line = reader.line_num
            if not any(field.strip() for field in fields):
                continue
            if len(fields) < width:
                raise place.error(f"{len(fields)} fields where the header has {len(header)}")

            def field(name: str, fields: list[str] = fields) -> str:
                at = where.get(name)
                return fields[at].strip() if at is not None and at < len(fields) else ""

            yield field
    except csv.Error as error:
        place.line = reader.line_num
        raise place.error(f"is not CSV ({error})") from None


def _plain(row: Row, place: Place) -> Request:
    input_tokens = tokens(row("input_tokens"), "input_tokens", place)
    priority = row("priority")
    try:
        level = int(priority) if priority else 0
    except ValueError:
        raise place.error(f"priority is {priority!r}, not a whole number") from None
    return Request(
        seconds(row("t_s"), "t_s", place),
        input_tokens,
        tokens(row("output_tokens"), "output_tokens", place),
        client=row("client"),
        priority=level,
        prefix=_prefix(row("prefix"), input_tokens, place),
    )


def _prefix(text: str, input_tokens: int, place: Place) -> tuple[PrefixBlock, ...]:
    if not text:
        return ()
    name, colon, count = text.rpartition(":")
    if not colon or not name:
        raise place.error(f"prefix is {text!r}; write NAME:TOKENS, for example system:512")
    shared = tokens(count, "prefix", place)
    if shared > input_tokens:
        raise place.error(f"prefix is {text!r}, longer than the {input_tokens} input_tokens")
    return (PrefixBlock(name, shared),)


def _azure(row: Row, place: Place) -> Request:
    return Request(
        moment(row("TIMESTAMP"), "TIMESTAMP", place),
        tokens(row("ContextTokens"), "ContextTokens", place),
        tokens(row("GeneratedTokens"), "GeneratedTokens", place),
    )


def _burstgpt(row: Row, place: Place) -> Request | None:
    output_tokens = tokens(row("Response tokens"), "Response tokens", place, least=0)
    if not output_tokens:
        return None
    return Request(
        seconds(row("Timestamp"), "Timestamp", place),
        tokens(row("Request tokens"), "Request tokens", place),
        output_tokens,
        client=row("Model"),
    )


_PLAIN_COLUMNS = ("t_s", "input_tokens", "output_tokens")

CSV_FORMATS: dict[str, _Format] = {
    "csv": _Format(_PLAIN_COLUMNS, ("client", "priority", "prefix"), _plain),
    "servegen": _Format((*_PLAIN_COLUMNS, "client"), (), _plain),
    "azure": _Format(("TIMESTAMP", "ContextTokens", "GeneratedTokens"), (), _azure),
    "burstgpt": _Format(
        ("Timestamp", "Request tokens", "Response tokens"),
        ("Model",),
        _burstgpt,
        "their answer is empty, which the data set uses for failed requests",
    ),
}
