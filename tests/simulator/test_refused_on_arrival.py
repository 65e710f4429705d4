"""Overload in the simulator: the policies' own refusals on whole runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulator.runs import affine, serve, settings, ttft_s
from twp_sglang.latency_metrics import Slo
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.simulate import Run
from twp_sglang.simulator.step_sources import step_source
from twp_sglang.workloads.request import Request

PACING = ("twp", "slo")


def mixed(**fields: Any) -> EngineSettings:
    return settings(**{"step_kind": "mixed", "chunk_tokens": 512, "overlap": True, **fields})


def overloaded(policy: str, **config: Any) -> Run:
    """100 ms of prefill per request, 20 of them a second: twice what the machine does."""
    workload = [Request(0.05 * i, 500, 20) for i in range(400)]
    return serve(
        workload,
        policy,
        engine=mixed(),
        model=affine(l_min_ms=5.0, prefill_ms_per_token=0.2),
        config={"h0_tokens": 2_000.0, "l_min_ms": 5.0, "prefill_ms_per_token": 0.2, **config},
        slos=[Slo(metric="ttft", limit_ms=3_000.0)],
    )


@pytest.mark.parametrize("policy", PACING)
def test_field_case_10_with_the_policys_own_bound(policy: str) -> None:
    """128 running, 96 queued, 3,000 requests a minute: nobody may be left hanging."""
    workload = [Request(0.02 * i, 800, 400) for i in range(1500)]
    engine = mixed(max_running_requests=128, kv_tokens=199_680)
    run = serve(
        workload,
        policy,
        engine=engine,
        model=step_source("l40s-llama31-8b").model,
        config={"queue_max_requests": 96},
    )
    statuses = [request.status for request in run.requests]
    assert set(statuses) == {"completed", "refused"}
    assert run.result.refused == {"queue-requests": statuses.count("refused")}
    assert statuses.count("completed") > 96
    tally = run.engines[0].driver.policy
    assert tally is not None
    assert tally.tally.refusals == run.result.refused


@pytest.mark.parametrize("policy", PACING)
def test_the_first_token_of_those_let_in_comes_within_the_limit(policy: str) -> None:
    run = overloaded(policy, refuse_ttft_ms=2_000.0)
    assert run.result.refused["ttft"] > 100
    served = [i for i, request in enumerate(run.requests) if request.status == "completed"]
    assert len(served) + run.result.refused["ttft"] == 400
    late = [i for i in served if ttft_s(run, i) > 2.0 * 1.5]
    # The prediction is made on arrival; a policy that reorders serves a few of them later.
    assert len(late) <= 0.05 * len(served)


@pytest.mark.parametrize("policy", PACING)
def test_refusing_the_late_keeps_the_machine_busy_and_serves_more_in_time(policy: str) -> None:
    queueing = overloaded(policy)
    refusing = overloaded(policy, refuse_ttft_ms=2_500.0)
    assert queueing.result.refused == {}
    assert refusing.result.latency.goodput_fraction is not None
    assert queueing.result.latency.goodput_fraction is not None
    gain = refusing.result.latency.goodput_fraction - queueing.result.latency.goodput_fraction
    assert gain > (0.2 if policy == "twp" else -0.02)
    # Refused requests are misses: the share is of all that came.
    completed = refusing.result.latency.completed
    assert refusing.result.latency.requests == 400
    assert refusing.result.latency.goodput_fraction <= completed / 400
    # At twice the load about half can be served, and about half is.
    assert completed > 170


@pytest.mark.parametrize("policy", PACING)
def test_after_the_burst_everybody_is_let_in_again(policy: str) -> None:
    burst = [Request(0.01 * i, 500, 20) for i in range(200)]
    calm = [Request(60.0 + i, 500, 20) for i in range(20)]
    run = serve(
        [*burst, *calm],
        policy,
        engine=mixed(),
        model=affine(l_min_ms=5.0, prefill_ms_per_token=0.2),
        config={"refuse_ttft_ms": 1_000.0, "h0_tokens": 2_000.0, "l_min_ms": 5.0},
    )
    assert run.result.refused["ttft"] > 50
    assert all(request.status == "completed" for request in run.requests[200:])


def test_the_same_run_refuses_the_same_requests_with_and_without_leaps() -> None:
    workload = [Request(0.05 * i, 500, 20) for i in range(300)]
    runs = [
        serve(
            workload,
            "twp",
            engine=mixed(),
            model=affine(l_min_ms=5.0, prefill_ms_per_token=0.2),
            config={"refuse_ttft_ms": 1_500.0, "h0_tokens": 2_000.0, "l_min_ms": 5.0},
            leap=leap,
        )
        for leap in (True, False)
    ]
    first, second = ([request.status for request in run.requests] for run in runs)
    assert first == second
    assert "refused" in first
