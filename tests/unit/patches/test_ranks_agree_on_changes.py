"""Changes of the configuration under load, on two ranks: the same decisions in every pass."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.engine_stand_ins import Batch, Plan, Req, Scheduler
from controllers.step_trace import Header
from patches import control
from patches.runtime import Ranks, Runtime
from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.sample import StepSample

PASSES = 120


class Rank:
    """One rank with a scheduler of its own; both are told the same."""

    def __init__(self, number: int, **fields: Any) -> None:
        config = TwpConfig(**{"h0_tokens": 300.0, "warmup_steps": 0, "b0": 4, **fields})
        self.batch = Batch([])
        self.scheduler: Any = Scheduler(self.batch, 4_000, 4_000)
        self.scheduler.chunked_prefill_size = 512
        self.scheduler.page_size = 1
        self.scheduler.truncation_align_size = None
        self.runtime = Runtime(config, self.scheduler, Ranks(number, None), None, Header(), 64)

    def join(self, name: str, prompt: int, limit: int) -> None:
        req = Req(name, prompt, limit)
        self.scheduler.waiting_queue.append(req)
        self.runtime.enqueued(req, False)

    def make_pass(self) -> tuple[list[str], int | None]:
        """Who is let in, first to last, and the chunk of the step."""
        runtime, scheduler, batch = self.runtime, self.scheduler, self.batch
        batch.reqs = [r for r in batch.reqs if len(r.output_ids) < r.sampling_params.max_new_tokens]
        runtime.begin_pass()
        if scheduler.waiting_queue:
            runtime.order(scheduler.waiting_queue, batch)
        taken = [req for req in scheduler.waiting_queue if runtime.may_admit(req)][:3]
        chunk = runtime.step_chunk_tokens(batch, 1)
        for req in taken:
            runtime.admitted(req)
            scheduler.waiting_queue.remove(req)
        batch.reqs = batch.reqs + taken
        ran = batch if batch.reqs else None
        runtime.end_pass(Plan(ran, batch))  # type: ignore[arg-type]
        for req in batch.reqs:
            req.output_ids.append(1)
        held = sum(len(r.origin_input_ids) + len(r.output_ids) for r in batch.reqs)
        scheduler.token_to_kv_pool_allocator.free = 4_000 - held
        return [req.rid for req in taken], chunk

    def measured(self, sample: StepSample) -> None:
        self.runtime.watching.take(sample, self.runtime.policy)
        self.runtime.policy.observe(sample)


def changes(source: random.Random) -> dict[str, Any]:
    """Some fields, some of them wrong: those must be refused on both ranks alike."""
    whole = {
        "h0_tokens": source.choice([50.0, 200.0, 900.0]),
        "b0": source.choice([2, 4, 16]),
        "gamma": source.choice([0.05, 0.5, 7]),
        "beta": source.choice([0.1, 0.9]),
        "l_min_ms": source.choice([None, 5.0, 20.0]),
        "law": source.choice(["paper", "aimd", "fixed", "regulated"]),
        "t_max_steps": source.choice([5, 50]),
        "w_starvation": source.choice([0.4, 0.9]),
        "chunk_tokens": source.choice([16, 128, None]),
        "itl_slo_ms": source.choice([15.0, 40.0, "auto"]),
        "late_share": source.choice([0.05, 0.5]),
        "kv_headroom_min": source.choice([0.01, 0.2]),
        "policy": "fcfs",
    }
    return {name: whole[name] for name in source.sample(sorted(whole), source.randint(1, 4))}


@pytest.mark.parametrize("policy", ["twp", "slo"])
@pytest.mark.parametrize("seed", range(6))
def test_two_ranks_never_part(policy: str, seed: int) -> None:
    source = random.Random(seed)
    ranks = [Rank(number, policy=policy) for number in (0, 1)]
    made = 0
    for number in range(PASSES):
        for _ in range(source.choice([0, 0, 1, 3])):
            new = (f"r{number}-{_}", source.randint(5, 200), source.randint(5, 60))
            for rank in ranks:
                rank.join(*new)
        if source.random() < 0.3:
            revision = ranks[0].runtime.revision
            question = {
                "ask": "change", "id": number, "by": "a test",
                "revision": revision, "changes": changes(source),
            }  # fmt: skip
            first, second = (
                control.answer(rank.runtime, rank.scheduler, question) for rank in ranks
            )
            assert first == second
            made += "pass" in first
        elif source.random() < 0.3:
            # A question changes nothing: put to one rank only, it does not part them.
            asked = ranks[0]
            control.answer(asked.runtime, asked.scheduler, {"ask": "state", "id": 0})
            for req in asked.scheduler.waiting_queue[-1:]:
                question = {"ask": "explain", "id": 0, "rid": req.rid}
                found = control.answer(asked.runtime, asked.scheduler, question)
                assert found["found"]["state"] == "waiting"
        passes = [rank.make_pass() for rank in ranks]
        assert passes[0] == passes[1]
        sample = StepSample(
            ranks[0].runtime.pass_index,
            source.choice(["decode", "mixed"]),  # type: ignore[arg-type]
            source.uniform(5.0, 40.0),
            len(ranks[0].batch.reqs),
            source.choice([0, 32]),
            500,
        )
        for rank in ranks:
            rank.measured(sample)
        assert ranks[0].runtime.policy.snapshot() == ranks[1].runtime.policy.snapshot()
    assert made >= 5
