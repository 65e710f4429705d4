"""What a waiting request is told comes true: its place, and how long it will still wait."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.simulator.runs import affine, settings
from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.explanation import place_of
from twp_sglang.scheduling.policies import build_policy
from twp_sglang.scheduling.sample import PassView, StepSample
from twp_sglang.scheduling.waiting_time import WaitingTime
from twp_sglang.simulator.engine import Engine
from twp_sglang.simulator.simulate import live_requests
from twp_sglang.simulator.step_models import StepTimer
from twp_sglang.workloads.request import Request

ASKED_AT_MS = 8_000.0


def backlog(requests: int) -> list[Request]:
    """Twice what the engine below can serve, for some ten seconds."""
    source = random.Random(11)
    return [
        Request(
            arrival_s=index * 0.02,
            input_tokens=source.randint(50, 800),
            output_tokens=source.randint(20, 80),
        )
        for index in range(requests)
    ]


TWP = {"h0_tokens": 600.0, "l_min_ms": 10.0, "t_max_steps": 5000}
ALL_THERE = int(ASKED_AT_MS / 20)
"""Requests of the backlog that have come when the question is put."""


@pytest.mark.parametrize(
    ("policy", "fields", "requests", "likeness", "error"),
    [
        ("fcfs", {}, 700, 0.99, 0.1),
        ("slo", {"ttft_slo_ms": 60_000.0, "itl_slo_ms": 40.0}, 700, 0.99, 0.1),
        ("twp", TWP, ALL_THERE, 0.9, 0.4),
    ],
)
def test_the_expected_wait_comes_true(
    policy: str, fields: dict[str, float], requests: int, likeness: float, error: float
) -> None:
    real, expected = waits(policy, fields, requests)
    assert np.corrcoef(real, expected)[0, 1] > likeness
    assert np.median(np.abs(expected - real) / np.maximum(real, 0.2)) < error


def test_under_twp_newcomers_may_overtake_and_then_it_is_a_lower_bound() -> None:
    real, expected = waits("twp", TWP, 700)
    assert np.mean(real < 0.8 * expected) < 0.1
    assert np.median(real / expected) > 1.5


def waits(
    policy: str, fields: dict[str, float], requests: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Real and expected seconds of all who wait at :data:`ASKED_AT_MS`, while others of
    ``requests`` go on to come."""
    chosen = build_policy(TwpConfig.model_validate({"policy": policy, **fields}))
    waiting_time = WaitingTime()
    learns = chosen.observe

    def observe(sample: StepSample) -> None:
        learns(sample)
        waiting_time.observe(sample, chosen.queue)

    chosen.observe = observe  # type: ignore[method-assign]
    timer = StepTimer(affine(a_ms=0.2, prefill_ms_per_token=0.05))
    engine = Engine(settings(chunk_tokens=512, step_kind="mixed"), timer, chosen, leap=False)
    live = live_requests(backlog(requests))
    for request in live:
        engine.submit(request)
    engine.run(ASKED_AT_MS)
    pool, rows, chunked = engine.pool, engine.batcher.rows, engine.batcher.chunked
    owed = 0 if chunked is None else chunked.owed_tokens
    view = PassView(
        engine.driver.pass_index,
        rows.load_tokens,
        engine.batcher.active,
        pool.free_tokens - owed,
        pool.capacity_tokens,
        owed,
        engine.now_ms,
    )
    order = chosen.waiting_order(view)
    assert len(order) > 100
    told = {}
    for info in order:
        place = place_of(info, order)
        assert place is not None
        wait = waiting_time.until_served(owed + place.prompt_tokens_ahead + info.prompt_tokens)
        assert wait.seconds is not None
        told[info.handle] = wait.seconds
    asked_ms = engine.now_ms
    engine.run()
    real = np.array([(request.first_token_ms - asked_ms) / 1e3 for request in told])
    return real, np.array(list(told.values()))
