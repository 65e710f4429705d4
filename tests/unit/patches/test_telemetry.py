"""What a runtime tells the metrics, on stand-ins of SGLang's objects."""

from __future__ import annotations

from typing import Any

import pytest

prometheus_client = pytest.importorskip("prometheus_client")

from benchmarks.engine_stand_ins import Batch, Plan, Req, Scheduler  # noqa: E402
from controllers.step_trace import Header  # noqa: E402
from patches.metrics.exporter import Exporter  # noqa: E402
from patches.retraction_gaps import RetractionGaps  # noqa: E402
from patches.runtime import Ranks, Runtime  # noqa: E402
from twp_sglang.config import TwpConfig  # noqa: E402


class Desk:
    """A runtime that exports in every pass, into a registry of its own."""

    def __init__(self, **fields: Any) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        now = iter(range(10**6))
        exporter = Exporter({"model_name": "m"}, lambda: float(next(now)), registry=self.registry)
        config = TwpConfig(
            **{"policy": "twp", "warmup_steps": 0, "h0_tokens": 400.0, "l_min_ms": 20.0, **fields}
        )
        self.batch = Batch([Req(f"a{i}", 10, 50) for i in range(8)])
        self.scheduler = Scheduler(self.batch, 10_000, 9_000)
        self.runtime = Runtime(
            config, self.scheduler, Ranks(0, None), None, Header(), exporter=exporter
        )
        self.runtime.outgoing()

    def run_pass(self) -> None:
        runtime = self.runtime
        envelope = runtime.outgoing()
        if envelope is not None:
            runtime.deliver(envelope)
        runtime.begin_pass()
        if self.scheduler.waiting_queue:
            runtime.order(self.scheduler.waiting_queue, self.batch)
        runtime.end_pass(Plan(self.batch, self.batch))
        runtime.completed(self.batch)

    def join(self, name: str) -> None:
        req = Req(name, 30, 100)
        self.scheduler.waiting_queue.append(req)
        self.runtime.enqueued(req, retracted=False)

    def value(self, name: str, **labels: str) -> Any:
        return self.registry.get_sample_value(name, {"model_name": "m", **labels})


def test_queue_window_load_and_holds_arrive() -> None:
    desk = Desk()
    desk.join("b")
    for _ in range(3):
        desk.run_pass()
    assert desk.value("twp_queue_requests") == 1
    assert desk.value("twp_queue_prompt_tokens") == 30
    assert desk.value("twp_load_tokens") == 8 * 50
    assert desk.value("twp_batch_requests") == 8
    assert desk.value("twp_deciding") == 1
    assert desk.value("twp_policy_info", policy="twp") == 1
    # The export of a pass comes before that pass is counted.
    assert desk.value("twp_held_steps_total", reason="window") == 2
    assert desk.value("twp_step_predicted_seconds") is None, "twp has no step model"


def test_slo_tells_objectives_and_what_it_predicts() -> None:
    desk = Desk(
        policy="slo", itl_slo_ms=50.0, ttft_slo_ms=2000.0, prefill_ms_per_token=0.1, a_ms=1.0
    )
    for _ in range(4):
        desk.run_pass()
    assert desk.value("twp_itl_objective_seconds") == pytest.approx(0.05)
    assert desk.value("twp_ttft_objective_seconds") == pytest.approx(2.0)
    assert desk.value("twp_step_predicted_seconds") > 0
    assert desk.value("twp_step_measured_seconds") > 0
    assert desk.value("twp_model_gain_ratio", part="decode") > 0
    assert 0 < desk.value("twp_step_margin_ratio") < 1
    assert desk.value("twp_chunk_tokens") is None, "nobody asked for a chunk"
    assert desk.value("twp_late_requests") == 0


def test_an_objective_out_of_reach_is_told_once_and_so_is_its_return(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "patches.reach_watch")
    desk = Desk(policy="slo", itl_slo_ms=300.0, prefill_ms_per_token=0.1, a_ms=1.0)
    now_s = iter(range(10**6))
    monkeypatch.setattr(desk.runtime._telemetry._reach, "_clock", lambda: float(next(now_s)))
    desk.run_pass()
    assert desk.value("twp_itl_objective_reachable") == 1
    assert not caplog.records
    policy = desk.runtime.policy
    plain = policy.snapshot
    lost = {"itl_slo_reachable": False, "itl_step_goal_ms": 420.0, "theta": 0.9}
    monkeypatch.setattr(policy, "snapshot", lambda: {**plain(), **lost})
    for _ in range(3):
        desk.run_pass()
    assert desk.value("twp_itl_objective_reachable") == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "objective of 300 ms" in caplog.text
    assert "up to 378 ms" in caplog.text
    monkeypatch.setattr(policy, "snapshot", plain)
    for _ in range(3):
        desk.run_pass()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_fault_is_told_though_no_pass_follows() -> None:
    desk = Desk()
    desk.run_pass()
    try:
        raise RuntimeError("x")
    except RuntimeError:
        desk.runtime.fault("order")
    assert desk.value("twp_deciding") == 0
    assert desk.value("twp_fallbacks_total") == 1


def test_metrics_that_cannot_be_written_do_not_end_the_steering(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Exporter, "_set", full)
    desk.run_pass()
    desk.run_pass()
    assert desk.runtime.deciding
    assert desk.runtime.fallbacks == 0
    assert caplog.text.count("cannot export its metrics") == 1


def test_answers_count_against_what_was_expected() -> None:
    desk = Desk()
    desk.join("b")
    req = desk.scheduler.waiting_queue.pop()
    desk.runtime.policy.taken(next(iter(desk.runtime.policy.queue)))
    req.output_ids.extend(range(40))
    req.finished = lambda: True  # type: ignore[method-assign]
    desk.batch.reqs.append(req)
    desk.run_pass()
    desk.batch.reqs.remove(req)
    desk.run_pass()
    assert desk.value("twp_answers_total") == 1
    assert desk.value("twp_answer_expected_tokens_total") == 100
    assert desk.value("twp_answer_tokens_total") == 40
    assert desk.value("twp_length_error_tokens_total") == 60


def test_a_retraction_gap_runs_from_the_loss_to_the_next_token() -> None:
    now_s = [0.0]
    gaps = RetractionGaps(lambda: now_s[0])
    req, other = Req("a", 10, 50, produced=5), Req("b", 10, 50)
    gaps.lost(req)
    now_s[0] = 2.0
    assert gaps.completed([req, other]) == [], "recomputed, and no new token yet"
    gaps.lost(req)
    now_s[0] = 3.5
    req.output_ids.append(1)
    assert gaps.completed([req, other]) == [3.5], "retracted twice is one gap"
    assert gaps.longest_ms == 3500.0
    assert gaps.completed([req]) == []


def test_one_that_leaves_while_retracted_is_forgotten() -> None:
    gaps = RetractionGaps(lambda: 0.0)
    req = Req("a", 10, 50)
    gaps.lost(req)
    gaps.gone(req)
    req.output_ids.append(1)
    assert gaps.completed([req]) == []
