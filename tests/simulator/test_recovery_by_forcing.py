"""Forcing and the load it adds: with its budget an overloaded engine recovers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.simulator.runs import affine, serve, settings, ttft_s
from twp_sglang.workloads.request import Request


def _after_a_burst(**config: Any) -> float:
    """Median TTFT, s, of the fourth minute at 70 % load with the throughput falling beyond 8
    rows; in the first, four times the load for 300 steps."""
    rng = np.random.default_rng(2)
    rate = 0.7 * 8 / 0.043 / 100
    workload: list[Request] = []
    now = 0.0
    while now < 240.0:
        now += rng.exponential(1 / (4 * rate if 20.0 < now < 33.5 else rate))
        prompt, output = int(rng.integers(50, 400)), int(rng.integers(20, 180))
        workload.append(Request(now, prompt, output))
    model = affine(l_min_ms=43.0, b0=8, alpha_ms=10.75, prefill_ms_per_token=0.05)
    config = {"l_min_ms": 43.0, "b0": 8, "h0_tokens": 300.0, "t_max_steps": 100, **config}
    engine = settings(step_kind="mixed", chunk_tokens=512, overlap=True, kv_tokens=200_000)
    run = serve(workload, "twp", engine=engine, model=model, config=config)
    last = [index for index, one in enumerate(workload) if one.arrival_s > 180.0]
    return float(np.median([ttft_s(run, index) for index in last]))


def test_forcing_within_its_budget_lets_an_overloaded_engine_recover() -> None:
    assert _after_a_burst() < 10.0


def test_unlimited_forcing_keeps_it_overloaded() -> None:
    assert _after_a_burst(forced_per_step=None) > 40.0
    assert _after_a_burst(forced_tokens_per_step=None) > 40.0
