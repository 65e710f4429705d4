"""What must hold on every pool, whatever arrives and whoever decides."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.simulator.runs import affine
from twp_sglang.config import TwpConfig
from twp_sglang.latency_metrics import summarise
from twp_sglang.simulator.metrics import token_times
from twp_sglang.simulator.placement import PLACEMENT_NAMES, PlacementName
from twp_sglang.simulator.pool_settings import PoolModel, PoolSettings
from twp_sglang.simulator.serverless import PoolRun, simulate_pool
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.workloads.request import Request

STEP = affine(b0=4, alpha_ms=2, kappa_ms_per_token=0.001, prefill_ms_per_token=0.05)

check = hypothesis_settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@st.composite
def workloads(draw: st.DrawFn) -> list[Request]:
    arrival = 0.0
    requests = []
    for _ in range(draw(st.integers(1, 30))):
        arrival += draw(st.sampled_from([0.0, 0.003, 0.1, 0.7, 4.0]))
        output = draw(st.sampled_from([1, 2, 30, 200]))
        limit = draw(st.sampled_from([None, output, output + 40]))
        requests.append(
            Request(arrival, draw(st.integers(1, 300)), output, limit, draw(st.sampled_from("abc")))
        )
    return requests


@st.composite
def pools(draw: st.DrawFn) -> PoolSettings:
    nodes = draw(st.integers(1, 3))
    some = st.lists(st.integers(0, nodes - 1), unique=True, max_size=nodes).map(tuple)
    models = tuple(
        PoolModel(
            name=name,
            checkpoint_gb=draw(st.sampled_from([0.5, 6.0])),
            clients=(name,),
            in_dram=draw(some),
            on_nvme=draw(some),
        )
        for name in "abc"
    )
    return PoolSettings(
        nodes=nodes,
        gpus_per_node=draw(st.integers(1, 2)),
        models=models,
        dram_gb=draw(st.sampled_from([20.0, 64.0])),
        keep_alive_s=draw(st.sampled_from([0.0, 1.0, 60.0])),
        target_ongoing_requests=draw(st.sampled_from([1, 3, 100])),
    )


engines = st.builds(
    EngineSettings,
    kv_tokens=st.sampled_from([900, 50_000]),
    page_size=st.sampled_from([1, 16]),
    step_kind=st.sampled_from(["prefill-first", "mixed"]),
    chunk_tokens=st.sampled_from([64, None]),
    overlap=st.booleans(),
    max_running_requests=st.sampled_from([3, 200]),
    max_queued_requests=st.sampled_from([None, 2]),
)

policies = st.sampled_from(["off", "fcfs", "priority", "dynamic-batch", "twp"])


def run_of(
    workload: list[Request],
    engine: EngineSettings,
    pool: PoolSettings,
    placement: PlacementName,
    policy: str,
    **options: object,
) -> PoolRun:
    config = TwpConfig.model_validate({"policy": policy})
    return simulate_pool(workload, engine, lambda: STEP, config, pool, placement, **options)  # type: ignore[arg-type]


@check
@given(workloads(), engines, pools(), st.sampled_from(PLACEMENT_NAMES), policies)
def test_requests_are_conserved_and_nothing_comes_before_its_cause(
    workload: list[Request],
    engine: EngineSettings,
    pool: PoolSettings,
    placement: PlacementName,
    policy: str,
) -> None:
    run = run_of(workload, engine, pool, placement, policy)
    latency = run.run.result.latency
    counts = dict.fromkeys(("completed", "refused", "failed"), 0)
    times = []
    for request, home in zip(run.run.requests, run.run.placed, strict=True):
        counts[request.status] += 1  # KeyError: somebody was forgotten
        container = run.pool.containers[home]
        assert container.model.name == request.spec.client
        done = np.frombuffer(run.run.engines[home].decode_done_ms, dtype=np.float64)
        times.append(token_times(request, done))
        tokens = times[-1].token_ms
        if request.status != "completed":
            continue
        assert len(tokens) == request.output_tokens
        assert (np.diff(tokens) > 0).all()
        # Equation (1): no token before its container was ready, and cs is in TTFT.
        cold_ms = run.pool.startup_ms[request.index]
        assert cold_ms >= 0
        assert tokens[0] >= request.arrival_ms + cold_ms + 10.0 - 1e-6
    assert sum(counts.values()) == len(workload)
    assert counts["completed"] == latency.completed
    # The engines' sums and the requests' own token times tell the same.
    assert latency.itl_ms.count == summarise(times, 1.0).itl_ms.count
    stats = run.stats
    assert sum(stats.requests.values()) == len(workload)
    assert stats.warm_requests + stats.startup_ms.count == len(workload)
    assert sum(stats.cold_starts.values()) == len(run.pool.containers)


@check
@given(workloads(), engines, pools(), st.sampled_from(PLACEMENT_NAMES))
def test_a_gpu_holds_one_container_at_a_time_and_a_node_loads_one_checkpoint(
    workload: list[Request],
    engine: EngineSettings,
    pool: PoolSettings,
    placement: PlacementName,
) -> None:
    served = run_of(workload, engine, pool, placement, "fcfs").pool
    by_gpu = sorted(served.containers, key=lambda c: (c.gpu.index, c.opened_ms))
    for before, after in itertools.pairwise(by_gpu):
        if before.gpu is after.gpu:
            assert before.closed_ms is not None
            assert before.closed_ms <= after.opened_ms + 1e-6
    for container in served.containers:
        assert container.closed_ms is not None
        assert container.opened_ms <= container.ready_ms
        assert not container.members
    for node in range(pool.nodes):
        starts = [start for start in served.starts if start.node == node]
        for before, after in itertools.pairwise(starts):
            begin = after.at_ms + after.load.queued_ms
            assert begin >= before.load.ready_ms - 1e-6 or begin == after.at_ms
        assert served.nodes[node].dram.held_gb <= pool.dram_gb + 1e-9


@check
@given(workloads(), engines, pools(), st.sampled_from(PLACEMENT_NAMES), policies)
def test_equal_runs_are_equal_and_leaping_changes_nothing(
    workload: list[Request],
    engine: EngineSettings,
    pool: PoolSettings,
    placement: PlacementName,
    policy: str,
) -> None:
    results = []
    for leap in (True, True, False):
        run = run_of(workload, engine, pool, placement, policy, leap=leap)
        results.append((run.run.placed, run.stats, run.run.result.latency, run.pool.moves))
    assert results[0] == results[1]
    assert results[0][0] == results[2][0]
    assert results[0][3] == results[2][3]
    assert results[0][2].e2e_ms.max == pytest.approx(results[2][2].e2e_ms.max)


@pytest.mark.parametrize("placement", PLACEMENT_NAMES)
def test_no_model_keeps_the_others_out(placement: PlacementName) -> None:
    """One GPU, one model that never pauses, another that asks once."""
    pool = PoolSettings(
        nodes=1,
        gpus_per_node=1,
        models=tuple(PoolModel(name=n, clients=(n,), in_dram=(0,)) for n in "ab"),
    )
    busy = [Request(0.1 * i, 20, 40, client="a") for i in range(300)]
    workload = sorted([*busy, Request(5.0, 20, 5, client="b")])
    run = run_of(workload, EngineSettings(kv_tokens=50_000), pool, placement, "fcfs")
    one = next(r for r in run.run.requests if r.spec.client == "b")
    assert (one.segments[0].first_token_ms - one.arrival_ms) / 1e3 < 5.0
    assert run.run.result.latency.completed == len(workload)
