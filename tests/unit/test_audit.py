"""The audit: a clean trace passes, and every kind of broken rule is found."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from controllers.step_trace import Header
from twp_sglang.audit import KINDS, main
from twp_sglang.config import TwpConfig
from twp_sglang.trace import AdmissionRecord, StepRecord, TraceWriter

CONFIG = TwpConfig(h0_tokens=400.0, t_max_steps=10, forced_per_step=1)


def admission(reason: str = "window", **fields: Any) -> AdmissionRecord:
    values: dict[str, Any] = {
        "rid": "r1",
        "reason": reason,
        "prompt_tokens": 10,
        "expected_tokens": 50,
        "load_before_tokens": 0 if reason == "idle" else 100,
        "kv_free": 0.5,
        "kv_threshold": 0.05,
        "waited_steps": 10 if reason == "forced" else 1,
    }
    return AdmissionRecord(**{**values, **fields})


def step(number: int, *admissions: AdmissionRecord, **fields: Any) -> StepRecord:
    last = admissions[-1] if admissions else None
    values: dict[str, Any] = {
        "step": number,
        "t_ms": 40.0 * number,
        "kind": "decode",
        "duration_ms": 40.0,
        "batch": 3,
        "prefill_tokens": 0,
        "kv_tokens": 100,
        "queue": 0,
        "load_tokens": last.load_before_tokens + last.expected_tokens if last else 90,
        "window_tokens": 400.0,
        "sigma": 1.0,
        "itl_ms": 40.0,
        "sample_step": None,
        "admitted": len(admissions),
        "forced": sum(one.reason == "forced" for one in admissions),
        "closed": "",
        "admissions": admissions,
    }
    return StepRecord(**{**values, **fields})


def trace(folder: Path, *steps: StepRecord, config: TwpConfig | dict[str, Any] = CONFIG) -> Path:
    path = folder / "steps.jsonl"
    recorded = config if isinstance(config, dict) else config.model_dump(mode="json")
    writer = TraceWriter(path, Header(engine="sglang", model="m", config=recorded))
    for one in steps:
        writer.put(one)
    writer.close()
    return path


def judge(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    status = main([str(path), "--json"])
    return status, json.loads(capsys.readouterr().out)


CLEAN = (
    step(1, admission("idle", expected_tokens=5000), load_tokens=5000),
    step(2, admission("forced", load_before_tokens=5000)),
    step(3, admission("retracted", load_before_tokens=5000, kv_free=-0.1)),
    step(4, admission(load_before_tokens=300), admission(load_before_tokens=350)),
    step(5),
    step(6, admission("policy", kv_free=None, kv_threshold=None)),
)


def test_a_clean_trace_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, told = judge(trace(tmp_path, *CLEAN), capsys)
    assert status == 0
    assert (told["steps"], told["admissions"], told["violation_count"]) == (6, 6, 0)
    assert told["by_reason"] == {
        "window": 2, "idle": 1, "forced": 1, "retracted": 1, "policy": 1,
    }  # fmt: skip
    assert told["unjudged"] == {"kv": 1}
    assert tuple(told["violations"]) == KINDS


def test_the_guards_hold_to_the_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 350 + 50 fills a window of 400; 350 + 51 does not fit.
    assert judge(trace(tmp_path, step(1, admission(load_before_tokens=350))), capsys)[0] == 0
    over = step(1, admission(load_before_tokens=350, expected_tokens=51))
    assert judge(trace(tmp_path, over), capsys)[0] == 1
    # More than the threshold must stay free, not as much.
    assert judge(trace(tmp_path, step(1, admission(kv_free=0.05))), capsys)[0] == 1


@pytest.mark.parametrize(
    ("kind", "broken", "words"),
    [
        ("window", step(1, admission(load_before_tokens=390)), "load 390 + expected 50 > window"),
        ("kv", step(1, admission(kv_free=0.04)), "0.04 is not above 0.05"),
        ("kv", step(1, admission("policy", kv_free=0.0, kv_threshold=0.0)), "not above 0"),
        ("window", step(1, admission("policy", load_before_tokens=390)), "390"),
        ("idle", step(1, admission("idle", load_before_tokens=3)), "at load 3"),
        ("early", step(1, admission("forced", waited_steps=9)), "after 9 steps"),
        ("limit", step(1, admission("forced"), admission("forced", load_before_tokens=150)), "2"),
        ("clamps", step(1, admission(), window_tokens=801.0), "above H_max 800"),
        ("clamps", step(1, admission("forced"), window_tokens=99.0), "below H_min 100"),
        ("record", step(1, admission(), admitted=2), "admitted = 2"),
        ("record", step(1, admission(), forced=1), "forced = 1"),
        ("record", step(1, admission(), load_tokens=149), "became 149"),
        ("record", step(1, admission(), admission(load_before_tokens=100)), "became 100"),
        ("record", step(1, admission(), window_tokens=None), "without a window number"),
        ("record", step(1, admission(kv_free=None)), "without a kv number"),
    ],
)
def test_each_broken_rule_is_found_and_nothing_else(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    broken: StepRecord,
    words: str,
) -> None:
    path = trace(tmp_path, *CLEAN, broken._replace(step=7))
    status, told = judge(path, capsys)
    assert status == 1
    counts = {name: told["violations"][name]["count"] for name in KINDS}
    assert counts == {name: int(name == kind) for name in KINDS}
    assert words in told["violations"][kind]["examples"][0]
    assert "step 7" in told["violations"][kind]["examples"][0]
    # The same, in words.
    assert main([str(path)]) == 1
    said = capsys.readouterr().out
    assert f"VIOLATED  {kind}: 1" in said
    assert words in said
    assert said.endswith("1 violations\n")


def test_unlimited_forcing_has_no_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unlimited = CONFIG.model_copy(update={"forced_per_step": None})
    many = step(1, admission("forced"), admission("forced", load_before_tokens=150))
    assert judge(trace(tmp_path, many, config=unlimited), capsys)[0] == 0


def test_with_an_automatic_h0_only_given_clamps_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    automatic = TwpConfig(t_max_steps=10)
    far = step(1, admission(), window_tokens=1e6)
    assert judge(trace(tmp_path, far, config=automatic), capsys)[0] == 0
    capped = TwpConfig(t_max_steps=10, h_max_tokens=1e5)
    assert judge(trace(tmp_path, far, config=capped), capsys)[0] == 1


def test_examples_are_few_and_counts_are_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = [step(n, admission("policy", load_before_tokens=1000)) for n in range(1, 51)]
    _, told = judge(trace(tmp_path, *bad), capsys)
    assert told["violations"]["window"]["count"] == 50
    assert len(told["violations"]["window"]["examples"]) == 3


def test_a_policy_without_a_window_is_told_as_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fcfs = TwpConfig(policy="fcfs")
    line = step(1, admission("policy", kv_threshold=0.0), window_tokens=None)
    path = trace(tmp_path, line, config=fcfs)
    assert main([str(path)]) == 0
    assert "not judged: the window guard of 1 admissions" in capsys.readouterr().out


def test_a_folder_a_gzip_and_a_torn_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path, *CLEAN)
    assert judge(tmp_path, capsys)[0] == 0
    text = path.read_bytes()
    path.write_bytes(text[:-40])
    status, told = judge(path, capsys)
    assert (status, told["steps"]) == (0, 5)
    assert "torn" in told["notes"][0]
    zipped = tmp_path / "other" / "steps.jsonl.gz"
    zipped.parent.mkdir()
    zipped.write_bytes(gzip.compress(text))
    assert judge(zipped, capsys)[1]["steps"] == 6


def test_fields_of_a_newer_writer_do_not_matter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = {**CONFIG.model_dump(mode="json"), "from_the_future": 1}
    assert judge(trace(tmp_path, *CLEAN, config=newer), capsys)[0] == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder / "nowhere.jsonl", "no such trace"),
        (lambda folder: folder, "without a trace"),
        (lambda folder: trace(folder, step(1), step(2)), "nobody was admitted"),
        (lambda folder: trace(folder, *CLEAN, config={}), "lacks policy, t_max_steps"),
        (
            lambda folder: trace(
                folder, *CLEAN, config={**CONFIG.model_dump(mode="json"), "gamma": -1}
            ),
            "gamma",
        ),
        (
            lambda folder: trace(folder, step(1, admission("by-magic"))),
            "line 2: admissions.0.reason",
        ),
    ],
)
def test_nothing_to_judge_is_exit_2_with_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any, words: str
) -> None:
    assert main([str(make(tmp_path))]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("audit: ")
    assert output.err.count("\n") == 1
    assert words in output.err


def test_a_wrong_command_line_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["a", "b"], ["--what", "a"]):
        with pytest.raises(SystemExit) as caught:
            main(argv)
        assert caught.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_head_of_an_idle_engine_is_exempt_whoever_let_it_in(tmp_path: Path) -> None:
    watched = CONFIG.model_copy(update={"policy": "observe"})
    large = admission("policy", load_before_tokens=0, expected_tokens=1000)
    assert main([str(trace(tmp_path, step(1, large), config=watched))]) == 0


def test_violations_of_an_observed_engine_are_said_to_be_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = CONFIG.model_copy(update={"policy": "observe"})
    large = admission("policy", load_before_tokens=100, expected_tokens=1000)
    assert main([str(trace(tmp_path, step(1, large), config=watched))]) == 1
    assert "observe enforces nothing" in capsys.readouterr().out
