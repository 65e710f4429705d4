"""What a scheduler process answers the HTTP process, on stand-ins of SGLang's objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine_stand_ins import Batch, Plan, Req, Scheduler
from controllers.step_trace import Header
from controllers.trace_reader import read_step_trace
from patches import control, questions
from patches.runtime import Ranks, Runtime
from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.sample import StepSample


class Desk:
    """One scheduler process: a runtime, its scheduler, and questions to it."""

    def __init__(self, running: int = 2, trace_dir: Path | None = None, **fields: Any) -> None:
        config = TwpConfig(
            **{"policy": "twp", "h0_tokens": 400.0, "l_min_ms": 20.0, "warmup_steps": 0, **fields}
        )
        self.batch = Batch([Req(f"a{i}", 10, 50, produced=5) for i in range(running)])
        self.scheduler: Any = Scheduler(self.batch, 10_000, 9_000)
        self.scheduler.chunked_prefill_size = 2048
        self.scheduler.page_size = 16
        self.scheduler.truncation_align_size = None
        header = Header(config=config.model_dump(mode="json"))
        self.runtime = Runtime(config, self.scheduler, Ranks(0, None), trace_dir, header, 64)

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        question = questions.asked(questions.written({"ask": kind, "id": 1, **fields}))
        assert question is not None
        said = control.answer(self.runtime, self.scheduler, question)
        assert (said.pop("id"), said.pop("replica")) == (1, 0)
        # What travels is JSON.
        answer: dict[str, Any] = json.loads(json.dumps(said, allow_nan=False))
        return answer

    def change(self, revision: int = 0, **changes: Any) -> dict[str, Any]:
        return self.ask("change", changes=changes, revision=revision, by="a test")

    def join(self, name: str, limit: int = 100) -> None:
        req = Req(name, 10, limit)
        self.scheduler.waiting_queue.append(req)
        self.runtime.enqueued(req, False)

    def make_pass(self) -> None:
        self.runtime.begin_pass()
        self.runtime.order(self.scheduler.waiting_queue, self.batch)
        self.runtime.end_pass(Plan(self.batch, self.batch))
        self.runtime.completed(self.batch)


def test_a_change_is_in_force_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    assert desk.ask("check", changes={"gamma": 0.3}) == {
        "revision": 0,
        "changes": {"gamma": [0.15, 0.3]},
        "unread": [],
        "policy": "twp",
    }
    assert desk.ask("config")["config"]["gamma"] == 0.15
    assert desk.change(gamma=0.3, b0=16)["changes"] == {"gamma": [0.15, 0.3], "b0": [8, 16]}
    now = desk.ask("config")
    assert (now["config"]["gamma"], now["config"]["b0"], now["revision"]) == (0.3, 16, 1)
    assert "changed by a test" in caplog.text
    assert "b0 8 -> 16, gamma 0.15 -> 0.3" in caplog.text


def test_fields_that_the_policy_does_not_read_are_named() -> None:
    changes = {"itl_slo": "60ms", "kv_margin": 0.05, "gamma": 0.3}
    assert Desk().ask("check", changes=changes)["unread"] == ["itl_slo_ms", "kv_margin"]
    assert Desk(policy="slo").ask("check", changes=changes)["unread"] == ["gamma"]


def test_all_or_nothing() -> None:
    desk = Desk()
    assert "gamma = 7 (PATCH)" in desk.change(beta=0.5, gamma=7)["refused"]
    assert desk.ask("config")["config"]["beta"] == 0.25
    assert desk.ask("config")["revision"] == 0


def test_a_change_on_top_of_another_is_a_conflict() -> None:
    desk = Desk()
    desk.change(gamma=0.3)
    assert "revision 1" in desk.change(gamma=0.4)["conflict"]
    assert desk.ask("config")["config"]["gamma"] == 0.3


def test_the_chunk_is_rounded_to_pages_and_takes_effect() -> None:
    desk = Desk()
    desk.change(chunk_tokens=100)
    assert desk.runtime.chunk_tokens == 112
    assert desk.runtime.step_chunk_tokens(desk.batch, 16) == 112
    desk.change(1, chunk_tokens=None)
    assert desk.runtime.chunk_tokens == 64, "what the launcher chose for an unset one"
    other = Desk(chunk_tokens=32)
    assert "give a number of tokens" in other.change(chunk_tokens=None)["refused"]
    desk.scheduler.chunked_prefill_size = None
    assert "--chunked-prefill-size" in desk.change(2, chunk_tokens=32)["refused"]


def test_a_change_starts_a_trace_of_its_own(tmp_path: Path) -> None:
    desk = Desk(trace_dir=tmp_path)
    desk.runtime.outgoing()
    desk.make_pass()
    desk.change(gamma=0.3)
    desk.make_pass()
    desk.make_pass()
    desk.runtime._recording.close()
    first, second = tmp_path / "steps.jsonl", tmp_path / "steps-1.jsonl"
    assert read_step_trace(first).header.config["gamma"] == 0.15
    assert read_step_trace(second).header.config["gamma"] == 0.3
    assert len(read_step_trace(second)) == 2


def test_the_state_says_why_requests_wait() -> None:
    desk = Desk(running=8)
    for name in "bcd":
        desk.join(name)
    desk.make_pass()
    state = desk.ask("state")["state"]
    assert state["why"] == (
        "3 requests wait: those who run still owe 360 output tokens, and the next one would add "
        "more than the window of 400 takes."
    )
    assert "config" not in state
    assert state["steps"]["steps"] == 0


def test_steps_are_told_once_to_whoever_remembers_the_last() -> None:
    desk = Desk()
    for step in range(4):
        desk.runtime.watching.recent.add(StepSample(step, "decode", 10.0, 2, 0, 100), None)
    assert desk.ask("state", after_step={"0": 1})["state"]["steps"]["steps"] == 2


def test_a_waiting_request_is_explained() -> None:
    desk = Desk(running=8)
    for name in "bcd":
        desk.join(name)
    desk.make_pass()
    found = desk.ask("explain", rid="c")["found"]
    assert (found["state"], found["position"], found["waiting"]) == ("waiting", 2, 3)
    assert found["prompt_tokens_ahead"] == 10
    assert found["held_by"] == "window"
    assert found["why"].startswith("One request is before it, and the first of them waits")
    assert found["expected_wait_s"] is None
    head = desk.ask("explain", rid="b")["found"]
    assert head["why"].startswith("It is next. ")
    assert "would add 100," in head["why"]


def test_the_expected_wait_comes_from_the_measured_rate() -> None:
    desk = Desk(running=8)
    desk.join("b")
    desk.join("c")
    for step in range(1, 50):
        sample = StepSample(step, "mixed", 10.0, 8, 5, 100)
        desk.runtime.watching.waiting_time.observe(sample, desk.runtime.policy.queue)
    found = desk.ask("explain", rid="c")["found"]
    assert found["expected_wait_s"] == pytest.approx(20 / 500)
    assert "20 prompt tokens" in found["expected_wait_how"]


def test_a_running_request_has_its_progress() -> None:
    found = Desk().ask("explain", rid="a1")["found"]
    assert (found["state"], found["phase"], found["progress"]) == ("running", "decoding", 0.1)
    assert found["why"] == "It runs: 5 of at most 50 output tokens are there."


def test_nobody_knows_a_stranger() -> None:
    assert Desk().ask("explain", rid="nobody")["found"] is None


def test_an_abort_that_twp_has_not_noticed_yet_is_not_in_the_way() -> None:
    desk = Desk(running=8)
    for name in "bcd":
        desk.join(name)
    del desk.scheduler.waiting_queue[0]
    assert desk.ask("explain", rid="c")["found"]["position"] == 1
    assert desk.ask("explain", rid="b")["found"] is None


def test_after_a_fallback_the_order_is_sglangs() -> None:
    desk = Desk(running=8)
    desk.join("b")
    try:
        raise KeyError("broken")
    except KeyError:
        desk.runtime.fault("order")
    newcomer = Req("x", 10, 100)
    desk.scheduler.waiting_queue.insert(0, newcomer)
    found = desk.ask("explain", rid="b")["found"]
    assert (found["position"], found["order"]) == (2, "SGLang's own")
    assert found["why"].startswith("TWP fell back to stock scheduling (fault in order)")
    assert desk.ask("explain", rid="x")["found"]["position"] == 1
    assert desk.ask("state")["state"]["why"].startswith("TWP FELL BACK")


@pytest.mark.parametrize("kind", ["explain", "state", "change", "unheard-of"])
def test_a_fault_in_an_answer_does_not_end_the_steering(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()
    if kind in ("state", "explain"):
        desk.scheduler.running_batch = None
        desk.scheduler.tree_cache = None
        desk.join("b")
        fields: dict[str, Any] = {"rid": "b"}
    else:
        fields = {}
    assert "fault" in desk.ask(kind, **fields)
    assert desk.runtime.deciding


def test_questions_survive_the_way_and_nothing_else_is_one() -> None:
    question = {"ask": "explain", "rid": 'strange "id"\n', "id": 3}
    assert questions.asked(questions.written(question)) == question
    assert questions.asked(None) is None
    assert questions.asked("abc") is None
