"""The step trace: what is written, what is dropped, and that nobody waits for a disk."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from controllers.step_trace import Header, Step
from controllers.trace_reader import read_step_trace
from twp_sglang import trace
from twp_sglang.trace import AdmissionRecord, StepRecord, TraceWriter, free_path


def record(step: int, **fields: object) -> StepRecord:
    values: dict = {
        "step": step,
        "t_ms": step * 40.0,
        "kind": "decode",
        "duration_ms": 40.0,
        "batch": 8,
        "prefill_tokens": 0,
        "kv_tokens": 900,
        "queue": 3,
        "load_tokens": 310,
        "window_tokens": 400.0,
        "sigma": 1.2,
        "itl_ms": 41.0,
        "sample_step": step - 2 if step > 1 else None,
        "admitted": 1,
        "forced": 0,
        "closed": "window",
        "admissions": (AdmissionRecord("r1", "window", 12, 50, 260, 0.8, 0.05, 3),),
        "finished": ((12, 34), (5, 6)),
        "would_admit": None,
    }
    return StepRecord(**{**values, **fields})


HEADER = Header(engine="sglang", engine_version="0.5.23", model="m", config={"gamma": 0.15})


def write(path: Path, records: list[StepRecord]) -> TraceWriter:
    writer = TraceWriter(path, HEADER)
    for one in records:
        writer.put(one)
    writer.close()
    return writer


def test_the_reader_of_controllers_reads_it_back(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    writer = write(path, [record(step) for step in range(1, 101)])
    assert (writer.written, writer.dropped) == (100, 0)
    read = read_step_trace(path)
    assert read.header == HEADER
    assert len(read) == 100
    assert read["window_tokens"].tolist() == [400.0] * 100
    assert read.finished[:2].tolist() == [[12, 34], [5, 6]]
    assert not read.torn


def test_every_field_comes_back_through_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    write(path, [record(7)])
    head, line = path.read_text().splitlines()
    assert json.loads(head)["schema"] == "twp-step-trace"
    step = Step.model_validate_json(line)
    assert StepRecord(
        **{
            **{name: getattr(step, name) for name in StepRecord._fields},
            "admissions": tuple(
                AdmissionRecord(**admission.model_dump()) for admission in step.admissions
            ),
        }
    ) == record(7)


def test_an_open_trace_can_be_followed(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    writer = TraceWriter(path, HEADER)
    writer.put(record(1))
    deadline = time.monotonic() + 10.0
    while writer.written < 1 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(path.read_text().splitlines()) == 2
    writer.close()


def test_no_text_of_anybody_is_in_the_schema() -> None:
    names = {*StepRecord._fields, *AdmissionRecord._fields}
    assert not names & {"prompt", "text", "output", "input_ids", "output_ids"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_disk_that_is_full_from_the_start_is_told_to_the_caller() -> None:
    with pytest.raises(OSError, match="No space"):
        TraceWriter(Path("/dev/full"), HEADER)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_disk_that_fills_up_drops_lines_counts_them_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = TraceWriter(tmp_path / "steps.jsonl", HEADER)
    writer.put(record(1))
    _wait_until(lambda: writer.written == 1)
    with open("/dev/full", "wb", buffering=0) as full:
        os.dup2(full.fileno(), _descriptor(tmp_path / "steps.jsonl"))
    with caplog.at_level(logging.WARNING):
        for step in range(2, 52):
            writer.put(record(step))
        writer.close()
    assert (writer.written, writer.dropped) == (1, 50)
    assert sum("dropping" in entry.message for entry in caplog.records) == 1
    assert "No space" in caplog.text
    assert len(read_step_trace(tmp_path / "steps.jsonl")) == 1


FILL = """
import json, resource, signal, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from test_trace import HEADER, record
from twp_sglang.trace import TraceWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
writer = TraceWriter(Path({path!r}), HEADER)
for step in range(1, 501):
    writer.put(record(step))
writer.close()
print(json.dumps([writer.written, writer.dropped]))
"""


def test_the_line_that_only_half_fits_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    code = FILL.format(here=str(Path(__file__).parent), path=str(path))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    written, dropped = json.loads(done.stdout)
    assert written + dropped == 500
    assert 10 < written < 100
    read = read_step_trace(path)
    assert len(read) == written
    assert not read.torn
    assert path.read_bytes().endswith(b"}\n")


def test_a_stuck_disk_never_holds_up_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "PENDING_LINES", 16)
    monkeypatch.setattr(trace, "_CLOSE_TIMEOUT_S", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = TraceWriter(pipe, HEADER)
    # Nobody reads: the pipe takes some 64 KiB, and then the writing thread is stuck.
    start = time.monotonic()
    for step in range(1, 2001):
        writer.put(record(step))
    assert time.monotonic() - start < 2.0
    _wait_until(lambda: writer.dropped > 0)
    start = time.monotonic()
    writer.close()
    assert time.monotonic() - start < 2.0
    assert writer.written + writer.dropped <= 2000
    os.close(reader)


def test_a_record_that_json_cannot_hold_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    bad = [record(2, sigma=float("nan")), record(3, closed=object())]
    writer = write(path, [record(1), *bad, record(4)])
    assert (writer.written, writer.dropped) == (2, 2)
    assert read_step_trace(path)["step"].tolist() == [1.0, 4.0]


def test_an_earlier_trace_is_never_overwritten(tmp_path: Path) -> None:
    names = [free_path(tmp_path, "steps").name for _ in range(3)]
    assert names == ["steps.jsonl", "steps-1.jsonl", "steps-2.jsonl"]
    (tmp_path / "steps-1.jsonl").unlink()
    assert free_path(tmp_path, "steps").name == "steps-1.jsonl"


def test_two_servers_that_start_at_once_get_two_files(tmp_path: Path) -> None:
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(free_path(tmp_path, "steps")))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 16


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        free_path(tmp_path / "nowhere", "steps")


def _wait_until(reached: object) -> None:
    deadline = time.monotonic() + 10.0
    while not reached():  # type: ignore[operator]
        assert time.monotonic() < deadline, "not reached in 10 s"
        time.sleep(0.002)


def _descriptor(path: Path) -> int:
    """The number under which this process has ``path`` open."""
    for entry in Path("/proc/self/fd").iterdir():
        if entry.resolve() == path.resolve():
            return int(entry.name)
    raise AssertionError(f"{path} is not open")
