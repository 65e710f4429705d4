"""Routers over several engines."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulator.runs import affine, serve, settings
from twp_sglang.workloads.request import PrefixBlock, Request

MODEL = affine(prefill_ms_per_token=0.1)


def test_round_robin_takes_turns() -> None:
    run = serve([Request(0.001 * i, 10, 5) for i in range(7)], replicas=3, model=MODEL)
    assert run.placed == [0, 1, 2, 0, 1, 2, 0]


def test_least_tokens_avoids_the_engine_with_the_long_request() -> None:
    workload = [Request(0.0, 5000, 500), Request(0.001, 10, 5), Request(0.002, 10, 5)]
    run = serve(workload, replicas=2, router="least-tokens", model=MODEL)
    assert run.placed == [0, 1, 1]


def test_load_falls_as_requests_are_served() -> None:
    # The long request is done when the last one comes: engine 0 owes nothing again.
    workload = [Request(0.0, 100, 10), Request(0.001, 10, 2000), Request(5.0, 10, 5)]
    run = serve(workload, replicas=2, router="least-tokens", model=MODEL)
    assert run.placed == [0, 1, 0]


def test_cache_aware_sends_a_prefix_where_it_was_seen() -> None:
    def from_client(name: str, at: float) -> Request:
        return Request(at, 1000, 5, prefix=(PrefixBlock(name, 900),))

    workload = [from_client("abc"[i % 3], 0.5 * i) for i in range(12)]
    aware = serve(workload, replicas=3, router="cache-aware", model=MODEL)
    homes = [{aware.placed[i] for i in range(12) if i % 3 == k} for k in range(3)]
    assert all(len(home) == 1 for home in homes)
    assert aware.result.prefix_hit_tokens == 9 * 900


def test_cache_aware_leaves_a_swamped_engine() -> None:
    prefix = (PrefixBlock("all", 900),)
    workload = [Request(0.0001 * i, 1000, 50, prefix=prefix) for i in range(120)]
    run = serve(workload, replicas=2, router="cache-aware", model=MODEL)
    counts = np.bincount(run.placed, minlength=2)
    assert counts.min() > 20


@pytest.mark.parametrize("router", ["round-robin", "least-tokens", "cache-aware"])
@pytest.mark.parametrize("policy", ["off", "twp"])
def test_replicas_lose_nobody_and_are_reproducible(router: str, policy: str) -> None:
    rng = np.random.default_rng(0)
    workload = [
        Request(float(t), int(n), int(m))
        for t, n, m in zip(
            np.cumsum(rng.exponential(0.01, 200)),
            rng.integers(10, 500, 200),
            rng.integers(1, 80, 200),
            strict=True,
        )
    ]
    engine = settings(overlap=True, step_kind="mixed", chunk_tokens=256)
    runs = [
        serve(workload, policy, replicas=3, router=router, engine=engine, model=MODEL)
        for _ in range(2)
    ]
    assert runs[0].result.latency.completed == 200
    assert runs[0].placed == runs[1].placed
    assert runs[0].result.latency == runs[1].result.latency


def test_bad_replica_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="replicas = 0"):
        serve([Request(0.0, 1, 1)], replicas=0)
    with pytest.raises(ValueError, match="before the one before"):
        serve([Request(1.0, 1, 1), Request(0.0, 1, 1)])
