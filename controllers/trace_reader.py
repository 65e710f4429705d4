"""Reads a step trace into numpy columns, quickly and without trusting the writer.

Any engine can supply a trace: a header line ``{"schema": "twp-step-trace", "version":
1}`` and then one JSON object per scheduler step, in order. See
:mod:`controllers.step_trace` for every field. What is needed for what:

==================  =========================================================
identify a model    ``step, kind, duration_ms, batch, kv_tokens, prefill_tokens``
delay and filter    ``sample_step``, or ``itl_ms`` / ``sigma``
length law          ``finished``
replay the window   ``window_tokens, sigma, queue`` (and ``load_tokens, batch``)
==================  =========================================================

The first row is required in every step; the rest may be absent, which reads as null.
Numbers must be finite, not negative and at most 2^53.

There is no pydantic object per line: 50,000 steps load in well under a second.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, get_args

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from controllers.models.lengths import MAX_LENGTH
from controllers.step_trace import SCHEMA, VERSION, Header, Kind

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

REQUIRED_COLUMNS: Final = ("step", "kind", "duration_ms", "batch", "kv_tokens", "prefill_tokens")
"""Columns that every trace must have: what identification rests on."""

OPTIONAL_COLUMNS: Final = (
    "t_ms",
    "queue",
    "load_tokens",
    "window_tokens",
    "sigma",
    "itl_ms",
    "sample_step",
    "admitted",
    "forced",
)
"""Columns that sharpen the result; absent ones read as NaN."""

KINDS: Final[tuple[str, ...]] = get_args(Kind)
_KIND_CODE: Final = {kind: code for code, kind in enumerate(KINDS)}
_CHUNK_LINES: Final = 20_000  # bounds memory: parsed dictionaries of one chunk at a time
_LARGEST: Final = 2.0**53  # beyond this a float no longer holds an integer column exactly
_SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".json", ".json.gz")
_RANK_ZERO: Final = re.compile(r"(?:rank|tp|dp)[-_.]?0+(?!\d)", re.IGNORECASE)


class TraceError(ValueError):
    """A trace that cannot be read; the message names file, line, field and the mend."""


@dataclass(frozen=True)
class StepTrace:
    """A step trace as columns, one entry per step, all of the same length.

    ``columns`` maps every name of ``REQUIRED_COLUMNS`` but ``kind``, and of
    ``OPTIONAL_COLUMNS``, to float64 with NaN for null or absent. ``kind`` holds indices
    into ``KINDS``. ``finished`` is (n, 2): prompt and output tokens of every request
    that finished, in order, and ``finished_row`` the row in which each was reported.
    ``notes`` tells in words what was tolerated, such as a torn last line.
    """

    path: Path
    header: Header
    kind: npt.NDArray[np.int8]
    columns: dict[str, FloatArray]
    finished: IntArray
    finished_row: IntArray
    torn: bool = False
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return int(self.kind.size)

    def __getitem__(self, column: str) -> FloatArray:
        return self.columns[column]

    def is_kind(self, *kinds: str) -> npt.NDArray[np.bool_]:
        """Mask of the steps of the given kinds."""
        return np.isin(self.kind, [_KIND_CODE[kind] for kind in kinds])


def read_step_trace(path: str | Path) -> StepTrace:
    """Read a trace file, plain or gzipped, or the rank-0 file of a trace folder.

    Raises:
        TraceError: unreadable file, wrong schema or version, a missing column, a value
            of the wrong type, NaN, negative or out of order. A torn last line, as a
            killed server leaves it, is tolerated and noted.
    """
    path = _one_file(Path(path))
    try:
        with _open(path) as handle:
            return _Parser(path).parse(handle)
    except OSError as error:
        raise TraceError(f"{path}: cannot read the trace: {error.strerror or error}") from None


def _one_file(path: Path) -> Path:
    if not path.exists():
        raise TraceError(f"{path}: no such trace file")
    if not path.is_dir():
        return path
    files = sorted(p for p in path.iterdir() if p.name.endswith(_SUFFIXES) and p.is_file())
    if not files:
        raise TraceError(f"{path}: a folder without a trace (*.jsonl or *.jsonl.gz) in it")
    if len(files) == 1:
        return files[0]
    rank_zero = [p for p in files if _RANK_ZERO.search(p.name)]
    if len(rank_zero) == 1:
        return rank_zero[0]
    listing = ", ".join(p.name for p in files[:4]) + (", ..." if len(files) > 4 else "")
    raise TraceError(
        f"{path}: a folder with {len(files)} traces ({listing}); name one file, for example "
        f"{files[0]} (ranks of one server decide alike: any one of them will do)"
    )


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as probe:
        zipped = probe.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if zipped else path.open("rb")  # type: ignore[return-value]


class _Parser:
    """Parses one file chunk by chunk; holds the position for error messages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self.torn = False
        self.parts: dict[str, list[FloatArray]] = {}
        self.kinds: list[npt.NDArray[np.int8]] = []
        self.finished: list[tuple[int, int]] = []
        self.finished_row: list[int] = []
        self.rows = 0
        self.last_step = -1.0

    def parse(self, handle: IO[bytes]) -> StepTrace:
        lines = self._lines(handle)
        header = self._header(next(lines, None))
        chunk = list(itertools.islice(lines, _CHUNK_LINES))
        while chunk:
            following = list(itertools.islice(lines, _CHUNK_LINES))
            numbers, rows = self._decode(chunk, is_last=not following)
            if rows:
                self._append(numbers, rows)
            chunk = following
        if not self.rows:
            raise TraceError(
                f"{self.path}: a header but no step; was the server idle while it recorded?"
            )
        return StepTrace(
            path=self.path,
            header=header,
            kind=np.concatenate(self.kinds),
            columns={name: np.concatenate(parts) for name, parts in self.parts.items()},
            finished=np.array(self.finished, dtype=np.int64).reshape(-1, 2),
            finished_row=np.array(self.finished_row, dtype=np.int64),
            torn=self.torn,
            notes=tuple(self.notes),
        )

    def _fail(self, line: int, what: str) -> TraceError:
        return TraceError(f"{self.path}, line {line}: {what}")

    def _lines(self, handle: IO[bytes]) -> Iterator[tuple[int, bytes]]:
        """Non-empty lines with their numbers, counted from 1."""
        number = 0
        while True:
            try:
                line = handle.readline()
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                self._tear(f"the compressed file breaks off after line {number} ({error})")
                return
            if not line:
                return
            number += 1
            if not line.isspace():
                yield number, line

    def _tear(self, note: str) -> None:
        self.torn = True
        self.notes.append(note)

    def _header(self, first: tuple[int, bytes] | None) -> Header:
        if first is None:
            raise TraceError(f"{self.path}: the trace is empty")
        number, line = first
        try:
            raw = json.loads(line)
        except (ValueError, RecursionError):
            raise self._fail(number, "not JSON; is this a step trace?") from None
        if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
            raise self._fail(
                number,
                f'no header; the first line must hold {{"schema": "{SCHEMA}", "version": 1}}',
            )
        self._check_version(number, raw)
        try:
            return Header.model_validate(raw)
        except ValidationError as error:
            worst = error.errors()[0]
            name = ".".join(str(part) for part in worst["loc"])
            raise self._fail(number, f"header field {name}: {worst['msg']}") from None

    def _check_version(self, number: int, raw: dict[str, Any]) -> None:
        version = raw.get("version")
        if version != VERSION or isinstance(version, bool):
            raise self._fail(
                number,
                f"version is {version!r}, this reader knows {VERSION}; record the trace anew or "
                "read it with the release that wrote it",
            )

    def _decode(
        self, chunk: list[tuple[int, bytes]], *, is_last: bool
    ) -> tuple[list[int], list[dict[str, Any]]]:
        """Parse a chunk in one go, and line by line only where that fails."""
        numbers = [number for number, _ in chunk]
        try:
            rows = json.loads(b"[" + b",".join(line for _, line in chunk) + b"]")
        except (ValueError, RecursionError):
            rows = []
        if len(rows) != len(chunk):  # also: two objects on a line, which would shift numbers
            rows = []
            for index, (number, line) in enumerate(chunk):
                try:
                    rows.append(json.loads(line))
                except (ValueError, RecursionError):
                    if is_last and index == len(chunk) - 1:
                        self._tear(f"line {number}, the last, is torn and was left out")
                        numbers = numbers[:-1]
                        break
                    raise self._fail(number, "not JSON; only a last line may be torn") from None
        for number, row in zip(numbers, rows, strict=True):
            if not isinstance(row, dict):
                raise self._fail(number, f"a step must be a JSON object, not {type(row).__name__}")
            if "schema" in row:
                self._check_version(number, row)
                raise self._fail(
                    number, "a second header: two traces in one file; split them at this line"
                )
        return numbers, rows

    def _append(self, numbers: list[int], rows: list[dict[str, Any]]) -> None:
        self.kinds.append(self._kind_column(numbers, rows))
        for name in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS):
            if name != "kind":
                column = self._column(name, numbers, rows)
                if name == "step":
                    self._check_order(numbers, column)
                self.parts.setdefault(name, []).append(column)
        for offset, row in enumerate(rows):
            if row.get("finished"):
                self._finished(numbers[offset], offset, row["finished"])
        self.rows += len(rows)

    def _missing(self, number: int, row: dict[str, Any]) -> TraceError:
        names = ", ".join(repr(name) for name in REQUIRED_COLUMNS if name not in row)
        return self._fail(
            number,
            f"column {names} is missing; every step needs {', '.join(REQUIRED_COLUMNS)}",
        )

    def _kind_column(self, numbers: list[int], rows: list[dict[str, Any]]) -> npt.NDArray[np.int8]:
        try:
            return np.array([_KIND_CODE[row["kind"]] for row in rows], dtype=np.int8)
        except (KeyError, TypeError):
            for number, row in zip(numbers, rows, strict=True):
                if "kind" not in row:
                    raise self._missing(number, row) from None
                kind = row["kind"]
                if not isinstance(kind, str) or kind not in _KIND_CODE:
                    raise self._fail(
                        number, f"kind is {kind!r}; it must be one of {', '.join(KINDS)}"
                    ) from None
            raise

    def _column(self, name: str, numbers: list[int], rows: list[dict[str, Any]]) -> FloatArray:
        if name in REQUIRED_COLUMNS:
            try:
                values = [row[name] for row in rows]
            except KeyError:
                index = next(i for i, row in enumerate(rows) if name not in row)
                raise self._missing(numbers[index], rows[index]) from None
        else:
            values = [row.get(name) for row in rows]
        types = set(map(type, values))
        nullable = name == "duration_ms" or name in OPTIONAL_COLUMNS
        allowed: set[type] = {int, float, type(None)} if nullable else {int, float}
        if not types <= allowed:
            index = next(i for i, value in enumerate(values) if type(value) not in allowed)
            raise self._fail(
                numbers[index],
                f"{name} is {values[index]!r}; it must be a number"
                + (" or null" if nullable else ""),
            )
        try:
            column = np.array(values, dtype=np.float64)
        except OverflowError:
            column = np.array([np.nan if v is None else min(v, 2e308) for v in values])
        null = (
            np.array([value is None for value in values])
            if type(None) in types
            else np.zeros(len(values), dtype=bool)
        )
        with np.errstate(invalid="ignore"):
            bad = ~null & ~((column >= 0) & (column <= _LARGEST))
        if bad.any():
            index = int(np.flatnonzero(bad)[0])
            raise self._fail(
                numbers[index],
                f"{name} is {_shown(values[index])}; it must lie in 0 .. {_LARGEST:.0f}",
            )
        return column

    def _check_order(self, numbers: list[int], steps: FloatArray) -> None:
        before = np.concatenate([[self.last_step], steps[:-1]])
        late = np.flatnonzero(steps <= before)
        if late.size:
            index = int(late[0])
            raise self._fail(
                numbers[index],
                f"step {steps[index]:.0f} does not come after step {before[index]:.0f}; steps must "
                "rise: sort the trace, or split it where the server was started anew",
            )
        self.last_step = float(steps[-1])

    def _finished(self, number: int, offset: int, value: Any) -> None:
        pairs = value if isinstance(value, list) else [value]
        for pair in pairs:
            good = (
                isinstance(pair, list)
                and len(pair) == 2
                and all(type(n) is int and n >= 0 for n in pair)
                and pair[0] <= _LARGEST
                and pair[1] <= MAX_LENGTH
            )
            if not good:
                raise self._fail(
                    number,
                    f"finished holds {_shown(pair)}; it must be a list of [prompt tokens, output "
                    f"tokens] with whole numbers that are not negative, outputs up to {MAX_LENGTH}",
                )
            self.finished.append((pair[0], pair[1]))
            self.finished_row.append(self.rows + offset)


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) > 1e30:
        return "a number beyond 1e30"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
