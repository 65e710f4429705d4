"""Every changeable field at its extreme values: refused whole, or in force whole."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from benchmarks.engine_stand_ins import Batch, Plan, Req, Scheduler
from controllers.step_trace import Header
from patches import control
from patches.runtime import Ranks, Runtime
from tests.unit.scheduling.same_object import differences
from twp_sglang.config import PolicyName, TwpConfig
from twp_sglang.config_changes import FIXED
from twp_sglang.scheduling.sample import StepSample

EXTREMES = (
    None,
    "auto",
    "aimd",
    "refuse",
    0,
    -1,
    5e-324,
    1e-9,
    1e-6,
    1e-3,
    1 - 1e-16,
    1,
    1 + 1e-15,
    3.6e6,
    1e12,
    1.7e308,
    2**63,
    10**400,
)

BASES: tuple[dict[str, Any], ...] = (
    {},
    {"l_min_ms": 8.0, "prefill_ms_per_token": 0.02, "itl_slo_ms": "auto", "ttft_slo_ms": "auto"},
    {"h0_tokens": 400.0, "l_min_ms": 8.0, "graph_ceiling_rows": 16},
)

CHANGEABLE = [name for name in TwpConfig.model_fields if name not in FIXED]


class Process:
    """A scheduler process that has served a little."""

    def __init__(self, policy: PolicyName, base: dict[str, Any]) -> None:
        config = TwpConfig(policy=policy, warmup_steps=0, **base)
        self.batch = Batch([Req(f"a{i}", 10, 50, produced=5) for i in range(2)])
        self.scheduler: Any = Scheduler(self.batch, 100_000, 90_000)
        self.scheduler.page_size = 16
        self.scheduler.truncation_align_size = None
        self.scheduler.chunked_prefill_size = 2048
        header = Header(config=config.model_dump(mode="json"))
        self.runtime = Runtime(config, self.scheduler, Ranks(0, None), None, header, 64)
        self.steps = 0
        self.serve(9)

    def arrive(self) -> None:
        for number in range(3):
            req = Req(f"w{number}", 40, 60)
            if self.runtime.refusal(req) is None:
                self.scheduler.waiting_queue.append(req)
                self.runtime.enqueued(req, False)

    def serve(self, steps: int) -> None:
        runtime, line = self.runtime, self.scheduler.waiting_queue
        for _ in range(steps):
            runtime.begin_pass()
            runtime.order(line, self.batch)
            runtime.step_chunk_tokens(self.batch, 16)
            runtime.end_pass(Plan(self.batch, self.batch))
            self.steps += 1
            kind = "mixed" if self.steps % 3 == 0 else "decode"
            prompt = 70 * (kind == "mixed")
            runtime.policy.observe(StepSample(self.steps, kind, 9.0 + prompt / 50, 2, prompt, 300))

    def decided_by(self) -> tuple[TwpConfig, dict[str, Any]]:
        return self.runtime.config, vars(self.runtime.policy)

    def ask(self, kind: str, changes: dict[str, Any]) -> dict[str, Any]:
        question = {"id": 1, "ask": kind, "changes": changes, "revision": 0, "by": "a test"}
        return control.answer(self.runtime, self.scheduler, question)


@pytest.mark.parametrize("policy", ["slo", "twp"])
@pytest.mark.parametrize("name", CHANGEABLE)
def test_a_change_is_whole_or_refused(policy: PolicyName, name: str) -> None:
    for base in BASES:
        process = None
        for value in EXTREMES:
            if process is None:
                process = Process(policy, base)
                before = deepcopy(process.decided_by())
            checked = process.ask("check", {name: value})
            assert "fault" not in checked, (value, checked)
            assert differences(before, process.decided_by()) == [], value
            made = process.ask("change", {name: value})
            assert ("refused" in made) == ("refused" in checked), (value, checked, made)
            if "refused" in made:
                assert differences(before, process.decided_by()) == [], value
                assert made["refused"].isprintable()
                continue
            assert process.runtime.config.model_dump()[name] == value
            # And nothing of it fails in the passes that follow.
            process.arrive()
            process.serve(8)
            json.dumps(process.runtime.state(), allow_nan=False)
            process = None
