"""The chunk of a step, from the policy to SGLang's prefill batch, on stand-ins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.engine_stand_ins import Batch, Req, Scheduler
from controllers.step_trace import Header
from patches import active
from patches.runtime import Ranks, Runtime
from patches.sglang_0_5.gate import prefill_adder_init
from twp_sglang.config import TwpConfig
from twp_sglang.trace import StepRecord

ROWS = 10


def runtime(policy: str = "slo", chunk_tokens: int | None = None, **fields: Any) -> Runtime:
    """10 rows at 10 + 1 ms each, 0.1 ms per prompt token: 223 keep 42.39 of 50 ms."""
    model = {"l_min_ms": 10.0, "a_ms": 1.0, "prefill_ms_per_token": 0.1, "b0": 1}
    plain = {"policy": policy, "warmup_steps": 0, "itl_delivery_ms": 0.0}
    config = TwpConfig(**{**plain, **model, **fields})
    scheduler = Scheduler(Batch([Req(f"r{i}", 10, 50) for i in range(ROWS)]), 10_000, 9_000)
    made = Runtime(config, scheduler, Ranks(0, None), None, Header(), chunk_tokens)
    made.begin_pass()
    return made


def budget(made: Runtime, monkeypatch: pytest.MonkeyPatch, *, running: Any, page: int = 1) -> int:
    """Prompt tokens that SGLang's adder may take, out of 4,096 less one per row."""
    monkeypatch.setattr(active, "steering", lambda: made)
    adder = SimpleNamespace(rem_chunk_tokens=4096 - ROWS)
    prefill_adder_init(None, adder, page, None, None, running, 0.7, 16384, 4096, ROWS)
    return int(adder.rem_chunk_tokens)


def test_the_policy_sizes_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    made = runtime()
    assert budget(made, monkeypatch, running=made._scheduler.running_batch) == 223
    made = runtime(chunk_tokens=64)
    assert budget(made, monkeypatch, running=made._scheduler.running_batch) == 223


def test_with_nobody_decoding_the_engines_own_chunk_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert budget(runtime(), monkeypatch, running=Batch([])) == 4096
    assert budget(runtime(), monkeypatch, running=None) == 4096


def test_a_chunk_is_whole_pages_and_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = runtime()
    running = made._scheduler.running_batch
    assert budget(made, monkeypatch, running=running, page=64) == 192
    assert budget(made, monkeypatch, running=running, page=256) == 256


def test_other_policies_keep_c(monkeypatch: pytest.MonkeyPatch) -> None:
    made = runtime("twp", chunk_tokens=64)
    assert budget(made, monkeypatch, running=made._scheduler.running_batch) == 64
    made = runtime("twp")
    assert budget(made, monkeypatch, running=made._scheduler.running_batch) == 4096


def test_a_fault_leaves_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    made = runtime()

    def broken(view: Any) -> int:
        raise ValueError("broken")

    monkeypatch.setattr(made.policy, "chunk_tokens", broken)
    running = made._scheduler.running_batch
    assert budget(made, monkeypatch, running=running) == 4096 - ROWS
    assert not made.deciding
    assert made.fallback_reason == "step_chunk_tokens"


def test_requests_are_stamped_with_rank_zeros_time() -> None:
    made = runtime()
    envelope = made.outgoing()
    assert envelope is not None
    made.deliver(envelope._replace(now_ms=1234.5))
    req = Req("late", 10, 20)
    made.enqueued(req, retracted=False)
    assert [info.arrival_ms for info in made.policy.queue] == [1234.5]


def test_answers_teach_lengths_on_every_rank() -> None:
    made = runtime()
    done = Req("done", 10, 50, produced=17)
    done.finished = lambda: True  # type: ignore[method-assign]
    batch = Batch([done])
    step = StepRecord(1, 0.0, "decode", 5.0, 1, 0, 0, 0, 0, None, None, None, None, 0, 0, "")
    made._recording.completed(step, batch, made.policy)
    made._recording.completed(step, batch, made.policy)
    assert made.policy.snapshot()["answers_seen"] == 1
