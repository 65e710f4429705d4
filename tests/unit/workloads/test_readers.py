"""Readers: what they take, and how they refuse what they cannot."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from twp_sglang.simulator.step_sources import data_dir
from twp_sglang.workloads.fields import WorkloadError
from twp_sglang.workloads.read import FORMATS, read_workload
from twp_sglang.workloads.request import PrefixBlock
from twp_sglang.workloads.workload import summarise

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
)


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_azure_times_keep_seven_decimals(tmp_path: Path) -> None:
    workload = read_workload(written(tmp_path, "a.csv", AZURE), "azure")
    first, second = workload.requests
    assert (first.arrival_s, first.input_tokens, first.output_tokens) == (0.0, 374, 44)
    assert second.arrival_s == pytest.approx(4.314579, abs=1e-6)


def test_azure_2024_writes_a_time_zone(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,1,2\n"
        "2024-05-10 00:00:01.509930+00:00,3,4\n"
    )
    workload = read_workload(written(tmp_path, "a.csv", text), "azure")
    assert workload.requests[1].arrival_s == pytest.approx(1.5, abs=1e-6)


def test_plain_csv_takes_its_optional_columns(tmp_path: Path) -> None:
    text = (
        "t_s,input_tokens,output_tokens,client,priority,prefix\n"
        "1.5,100,10,ann,5,system:64\n"
        "2.0,50,5,,,\n"
    )
    first, second = read_workload(written(tmp_path, "p.csv", text), "csv").requests
    assert (first.client, first.priority) == ("ann", 5)
    assert first.prefix == (PrefixBlock("system", 64),)
    assert (second.client, second.priority, second.prefix) == ("", 0, ())
    assert second.arrival_s == 0.5


def test_burstgpt_leaves_out_failed_requests_and_says_so(tmp_path: Path) -> None:
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,API log\n"
    )
    workload = read_workload(written(tmp_path, "b.csv", text), "burstgpt")
    assert [r.output_tokens for r in workload.requests] == [18, 276]
    assert "1 rows left out" in workload.notes[0]


def test_mooncake_blocks_are_512_tokens_and_the_last_is_what_is_left(tmp_path: Path) -> None:
    line = {"timestamp": 2000, "input_length": 1100, "output_length": 9, "hash_ids": [7, 8, 9]}
    later = {"timestamp": 2500, "input_length": 600, "output_length": 1, "hash_ids": [7, 8]}
    text = json.dumps(line) + "\n\n" + json.dumps(later) + "\n"
    workload = read_workload(written(tmp_path, "m.jsonl", text), "mooncake")
    assert [b.tokens for b in workload.requests[0].prefix] == [512, 512, 76]
    assert workload.requests[1].arrival_s == 0.5
    assert summarise(workload).shared_prompt_fraction == pytest.approx(600 / 1700)


@pytest.mark.parametrize("starts", [None, [10.0, 12.5, 11.0]])
def test_result_files_of_sglang_and_vllm(tmp_path: Path, starts: list[float] | None) -> None:
    run: dict[str, Any] = {
        "input_lens": [10, 20, 30],
        "output_lens": [5, 0, 7],
        "request_rate": 2.0,
    }
    if starts is not None:
        run["start_times"] = starts
    # SGLang appends one line per run; the last counts.
    text = json.dumps({"input_lens": [1]}) + "\n" + json.dumps(run) + "\n"
    workload = read_workload(written(tmp_path, "r.jsonl", text), "bench")
    assert [r.input_tokens for r in workload.requests] == [10, 30]
    assert any("produced nothing" in note for note in workload.notes)
    if starts is None:
        assert any("drawn" in note for note in workload.notes)
    else:
        assert [r.arrival_s for r in workload.requests] == [0.0, 1.0]


def test_gsm8k_lengths_follow_the_text(tmp_path: Path) -> None:
    lines = [{"question": "q" * 40, "answer": "a" * 9}] * 5
    path = written(tmp_path, "g.jsonl", "\n".join(map(json.dumps, lines)))
    workload = read_workload(path, "gsm8k", rate_rps=2.0, limit=3)
    assert [(r.input_tokens, r.output_tokens) for r in workload.requests] == [(10, 3)] * 3
    with pytest.raises(WorkloadError, match="--rate"):
        read_workload(path, "gsm8k")


def test_packed_files_are_unpacked(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv.gz", gzip.compress(AZURE.encode()))
    assert len(read_workload(path, "azure").requests) == 2


def test_unsorted_rows_are_sorted_and_counted(tmp_path: Path) -> None:
    text = "t_s,input_tokens,output_tokens\n3,1,1\n1,2,2\n2,3,3\n"
    workload = read_workload(written(tmp_path, "u.csv", text), "csv")
    assert [r.arrival_s for r in workload.requests] == [0.0, 1.0, 2.0]
    assert "1 rows lay before" in workload.notes[0]


def test_stretching_time_keeps_the_shape(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", AZURE)
    plain, slow = (read_workload(path, "azure", time_stretch=x) for x in (1.0, 2.0))
    assert slow.requests[1].arrival_s == 2 * plain.requests[1].arrival_s
    with pytest.raises(WorkloadError, match="--time-stretch"):
        read_workload(path, "azure", time_stretch=0.0)


HEADER = "t_s,input_tokens,output_tokens,priority,prefix\n"


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        ("csv", "", r"line 1: no column t_s, input_tokens, output_tokens"),
        ("csv", "t_s,input_tokens\n1,2\n", r"line 1: no column output_tokens"),
        ("csv", HEADER, "holds no request"),
        ("csv", HEADER + "1,5,5,,\n\n2,-3,5,,\n", r"line 4: input_tokens is -3"),
        ("csv", HEADER + "1,5,0,,\n", r"line 2: output_tokens is 0; it must be at least 1"),
        ("csv", HEADER + "nan,5,5,,\n", r"line 2: t_s is 'nan', not a finite time"),
        ("csv", HEADER + "-1,5,5,,\n", r"line 2: t_s is -1; times must not be negative"),
        ("csv", HEADER + "1e300,5,5,,\n", r"line 2: t_s is 1e\+300 s, beyond a century"),
        ("csv", HEADER + "1,nan,5,,\n", r"line 2: input_tokens is 'nan', not a whole number"),
        ("csv", HEADER + "1,5,99999999999,,\n", r"line 2: output_tokens is 99999999999, above"),
        ("csv", HEADER + "1,5.5,5,,\n", r"line 2: input_tokens is '5.5'"),
        ("csv", HEADER + "1,5\n", r"line 2: 2 fields where the header has 5"),
        ("csv", HEADER + "1,5,5,high,\n", r"line 2: priority is 'high'"),
        ("csv", HEADER + "1,5,5,,system\n", r"line 2: prefix is 'system'; write NAME:TOKENS"),
        ("csv", HEADER + "1,5,5,,system:6\n", r"line 2: .* longer than the 5 input_tokens"),
        ("servegen", HEADER + "1,5,5,,\n", r"line 1: no column client"),
        ("azure", AZURE + "yesterday,1,1\n", r"line 4: TIMESTAMP is 'yesterday'"),
        ("mooncake", "{\n", r"line 1: is not JSON"),
        ("mooncake", "[1]\n", r"line 1: is not a JSON object"),
        ("mooncake", '{"timestamp": 1, "input_length": 5}\n', r"line 1: no field output_length"),
        (
            "mooncake",
            '{"timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": [1, 2]}\n',
            r"line 1: 2 hash_ids for 5 tokens",
        ),
        ("mooncake", "", "holds no request"),
        ("bench", "nonsense", "is not JSON"),
        ("bench", '{"input_lens": [1, 2]}', "no output_lens per request"),
        ("bench", '{"input_lens": [1, 2], "output_lens": [1]}', "2 input_lens and 1 output_lens"),
        ("gsm8k", '{"question": "q"}', r"line 1: no 'question' and 'answer'"),
        ("spec", "phases = 3", "phases"),
    ],
)
def test_a_bad_file_is_refused_with_line_and_mend(
    tmp_path: Path, form: str, text: str, message: str
) -> None:
    path = written(tmp_path, "bad.txt", text)
    with pytest.raises(WorkloadError, match=message):
        read_workload(path, form, rate_rps=1.0)


@pytest.mark.parametrize("form", FORMATS)
def test_unreadable_files_are_refused(tmp_path: Path, form: str) -> None:
    with pytest.raises(WorkloadError, match="no such file"):
        read_workload(tmp_path / "absent.csv", form, rate_rps=1.0)
    with pytest.raises(WorkloadError, match=r"UTF-8.*must be named \.gz"):
        read_workload(written(tmp_path, "packed", gzip.compress(b"x")), form, rate_rps=1.0)
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_workload(
            written(tmp_path, "torn.gz", gzip.compress(b"x" * 999)[:20]), form, rate_rps=1.0
        )
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_workload(tmp_path, form, rate_rps=1.0)


@pytest.mark.skipif(data_dir() is None, reason="no data folder (TWP_DATA_DIR)")
@pytest.mark.parametrize(
    ("name", "form", "requests", "cv", "peak"),
    [
        ("azure2023/AzureLLMInferenceTrace_conv.csv", "azure", 19_366, 1.09, 2.9),
        ("azure2023/AzureLLMInferenceTrace_code.csv", "azure", 8_819, 13.2, 26.1),
        ("servegen/deepseek-r1_resample_morning1h.csv", "servegen", 46_599, 1.66, 4.9),
    ],
)
def test_the_public_traces_read_as_published(
    name: str, form: str, requests: int, cv: float, peak: float
) -> None:
    folder = data_dir()
    assert folder is not None
    summary = summarise(read_workload(folder / name, form))
    assert summary.requests == requests
    assert summary.arrival_cv == pytest.approx(cv, rel=0.01)
    assert summary.peak_to_mean_1s == pytest.approx(peak, rel=0.02)
    assert f"{requests:,} requests" in summary.line()
