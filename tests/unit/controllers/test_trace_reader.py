"""Step traces: what loads, what is tolerated, and what every error names."""

from __future__ import annotations

import gzip
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_traces import header, write_trace

from controllers.step_trace import Header, Step
from controllers.trace_reader import (
    OPTIONAL_COLUMNS,
    REQUIRED_COLUMNS,
    TraceError,
    read_step_trace,
)


def _record(step: int, **over: Any) -> dict[str, Any]:
    base = {
        "step": step,
        "kind": "decode",
        "duration_ms": 43.0 + step,
        "batch": 3,
        "kv_tokens": 600,
        "prefill_tokens": 0,
    }
    return base | over


def _records(count: int = 5) -> list[dict[str, Any]]:
    return [_record(i) for i in range(count)]


def test_columns_and_kinds(tmp_path: Path) -> None:
    records = _records(4)
    records[1] |= {"kind": "mixed", "prefill_tokens": 64, "finished": [[10, 20], [5, 7]]}
    records[2] |= {"kind": "idle", "duration_ms": None, "batch": 0}
    trace = read_step_trace(write_trace(tmp_path / "t.jsonl", records, gamma=0.15))
    assert len(trace) == 4
    np.testing.assert_array_equal(trace["step"], [0, 1, 2, 3])
    np.testing.assert_array_equal(trace["duration_ms"], [43.0, 44.0, np.nan, 46.0])
    np.testing.assert_array_equal(trace.is_kind("decode", "mixed"), [True, True, False, True])
    np.testing.assert_array_equal(trace.finished, [[10, 20], [5, 7]])
    np.testing.assert_array_equal(trace.finished_row, [1, 1])
    assert np.isnan(trace["sigma"]).all()
    assert trace.header.config == {"gamma": 0.15}
    assert not trace.torn


def test_reads_what_the_schema_models_write(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [Header(engine="x").model_dump_json(by_alias=True)]
    lines += [
        Step(step=i, kind="decode", duration_ms=40.0, batch=2, finished=((3, 4),)).model_dump_json()
        for i in range(3)
    ]
    path.write_text("\n".join(lines) + "\n")
    trace = read_step_trace(path)
    assert trace.header.engine == "x"
    assert trace.finished.shape == (3, 2)
    names = set(Step.model_fields)
    assert set(REQUIRED_COLUMNS) | set(OPTIONAL_COLUMNS) <= names


def test_optional_columns_may_come_and_go(tmp_path: Path) -> None:
    records = _records(3)
    records[1]["sigma"] = 1.2
    records[2]["window_tokens"] = None
    trace = read_step_trace(write_trace(tmp_path / "t.jsonl", records))
    np.testing.assert_array_equal(trace["sigma"], [np.nan, 1.2, np.nan])


def test_unknown_columns_are_ignored(tmp_path: Path) -> None:
    trace = read_step_trace(write_trace(tmp_path / "t.jsonl", [_record(0, new_column=[1])]))
    assert len(trace) == 1


def test_gzip_and_blank_lines(tmp_path: Path) -> None:
    text = "\n\n".join(json.dumps(line) for line in [header(), *_records()])
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert len(read_step_trace(path)) == 5


@pytest.mark.parametrize("keep", [1, 20, 60])
def test_torn_last_line_keeps_the_rest(tmp_path: Path, keep: int) -> None:
    path = write_trace(tmp_path / "t.jsonl", _records())
    with path.open("a") as handle:
        handle.write(json.dumps(_record(5))[:keep])
    trace = read_step_trace(path)
    assert len(trace) == 5
    assert trace.torn
    assert "line 7" in trace.notes[0]


def test_torn_gzip_keeps_the_rest(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    records = [_record(i, t_ms=float(rng.random())) for i in range(2000)]
    text = "".join(json.dumps(line) + "\n" for line in [header(), *records])
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode())[:-5000])
    trace = read_step_trace(path)
    assert trace.torn
    assert 100 < len(trace) < 2000


def test_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.jsonl", _records())
    lines = path.read_text().splitlines()
    lines[3] = lines[3][:20]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(TraceError, match=r"t\.jsonl, line 4: not JSON"):
        read_step_trace(path)


@pytest.mark.parametrize("column", REQUIRED_COLUMNS)
def test_missing_column_is_named(tmp_path: Path, column: str) -> None:
    records = _records()
    for record in records:
        del record[column]
    with pytest.raises(TraceError, match=rf"line 2: column '{column}' is missing"):
        read_step_trace(write_trace(tmp_path / "t.jsonl", records))


@pytest.mark.parametrize("column", REQUIRED_COLUMNS)
def test_column_missing_later_is_named(tmp_path: Path, column: str) -> None:
    records = _records()
    del records[3][column]
    with pytest.raises(TraceError, match=rf"line 5: column '{column}' is missing"):
        read_step_trace(write_trace(tmp_path / "t.jsonl", records))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("duration_ms", math.nan),
        ("duration_ms", math.inf),
        ("duration_ms", -1.0),
        ("duration_ms", "43"),
        ("duration_ms", 10**400),
        ("batch", -1),
        ("batch", None),
        ("batch", True),
        ("batch", [1]),
        ("kv_tokens", math.nan),
        ("prefill_tokens", -64),
        ("sigma", math.nan),
        ("window_tokens", -1.0),
        ("queue", "x"),
        ("kind", "decoding"),
        ("kind", None),
        ("kind", 3),
        ("kind", []),
        ("finished", [[1]]),
        ("finished", [[1, -2]]),
        ("finished", [[1, 2.5]]),
        ("finished", 7),
        ("finished", [[10, 10**15]]),
        ("batch", 1e300),
    ],
)
def test_bad_value_names_line_and_field(tmp_path: Path, column: str, value: Any) -> None:
    records = _records()
    records[2][column] = value
    with pytest.raises(TraceError, match=rf"line 4: {column} (is|holds) ") as caught:
        read_step_trace(write_trace(tmp_path / "t.jsonl", records))
    assert len(str(caught.value)) < 400


def test_unordered_steps_are_named(tmp_path: Path) -> None:
    records = _records()
    records[3]["step"] = 1
    with pytest.raises(TraceError, match="line 5: step 1 does not come after step 2"):
        read_step_trace(write_trace(tmp_path / "t.jsonl", records))


def test_order_is_checked_across_chunks(tmp_path: Path) -> None:
    records = [_record(i) for i in range(20_002)]
    records[20_000]["step"] = 5
    with pytest.raises(TraceError, match="line 20002: step 5 does not come after step 19999"):
        read_step_trace(write_trace(tmp_path / "t.jsonl", records))


@pytest.mark.parametrize("version", [2, 0, "1", None, True])
def test_other_versions_are_refused(tmp_path: Path, version: Any) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(header() | {"version": version}) + "\n" + json.dumps(_record(0)))
    with pytest.raises(TraceError, match="line 1: version is"):
        read_step_trace(path)


def test_mixed_versions_name_the_line(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.jsonl", _records())
    with path.open("a") as handle:
        handle.write(json.dumps(header() | {"version": 2}) + "\n")
    with pytest.raises(TraceError, match="line 7: version is 2"):
        read_step_trace(path)


def test_two_traces_in_one_file_name_the_line(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.jsonl", _records())
    path.write_text(path.read_text() * 2)
    with pytest.raises(TraceError, match="line 7: a second header"):
        read_step_trace(path)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "empty"),
        ("hello\n", "line 1: not JSON"),
        ('{"step": 1}\n', "line 1: no header"),
        ("[1]\n", "line 1: no header"),
        (json.dumps(header()) + "\n", "no step"),
        (json.dumps(header()) + "\n3\n", "line 2: a step must be a JSON object"),
        (json.dumps(header() | {"page_size": "x"}) + "\n", "header field page_size"),
    ],
)
def test_not_a_trace(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=match):
        read_step_trace(path)


def test_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(bytes(range(256)) * 20)
    with pytest.raises(TraceError, match="line 1"):
        read_step_trace(path)


def test_missing_file_and_folders(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such trace"):
        read_step_trace(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match="a folder without a trace"):
        read_step_trace(tmp_path)
    write_trace(tmp_path / "steps-tp1.jsonl", _records(3))
    assert len(read_step_trace(tmp_path)) == 3
    write_trace(tmp_path / "steps-tp0.jsonl", _records(2))
    assert len(read_step_trace(tmp_path)) == 2
    write_trace(tmp_path / "other-tp0.jsonl", _records(2))
    with pytest.raises(TraceError, match="name one file, for example"):
        read_step_trace(tmp_path)


def test_fifty_thousand_steps_load_fast(tmp_path: Path) -> None:
    records = [
        _record(i, sigma=1.0, window_tokens=400.0, queue=3, itl_ms=43.0, sample_step=i)
        for i in range(50_000)
    ]
    path = write_trace(tmp_path / "t.jsonl", records)
    start = time.process_time()
    assert len(read_step_trace(path)) == 50_000
    # A pydantic object per line takes longer than this on any machine we run on.
    assert time.process_time() - start < 1.5
