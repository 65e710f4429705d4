"""Containers small enough to be worked out on paper; see :mod:`tests.simulator.pools`."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulator.pools import ask, homes, model, pool, serve, tokens_ms
from tests.simulator.runs import affine, settings
from twp_sglang.simulator.checkpoints import Node
from twp_sglang.simulator.containers import Container, Gpu
from twp_sglang.simulator.pool_settings import LoadingRates, MigrationSettings, PoolSettings
from twp_sglang.simulator.serverless import PoolRun


def states(run: PoolRun, times_ms: list[float]) -> list[str]:
    """States of the first container at ``times_ms`` as they were then, were it still open."""
    container = run.pool.containers[0]
    container.closed_ms = None
    return [container.state(at) for at in times_ms]


@pytest.mark.parametrize(
    ("where", "tier", "fast_ms", "plain_ms"),
    [
        ({"in_dram": (0,), "on_nvme": (0,)}, "dram", 1100.0, 2100.0),
        ({"on_nvme": (0,)}, "nvme", 2100.0, 4100.0),
        # Fetching bounds both loaders.
        ({}, "remote", 10100.0, 10100.0),
    ],
)
def test_a_cold_start_from_each_tier_is_charged_to_ttft(
    where: dict[str, tuple[int, ...]], tier: str, fast_ms: float, plain_ms: float
) -> None:
    """Equation (1): TTFT = cs + ceil(p / C) steps."""
    settings_of_pool = pool(model("a", **where), nodes=1)
    for placement, cold_ms in (("serverlessllm", fast_ms), ("plain", plain_ms)):
        run = serve([ask(0.0, 120, 3)], settings_of_pool, placement)
        # 120 tokens in chunks of 50: three steps of 10 ms.
        assert tokens_ms(run, 0) == [cold_ms + 30, cold_ms + 40, cold_ms + 50]
        assert run.pool.startup_ms == {0: pytest.approx(cold_ms)}
        assert run.stats.cold_starts == {**dict.fromkeys(("dram", "nvme", "remote"), 0), tier: 1}
        assert run.run.result.latency.ttft_ms.max == pytest.approx(cold_ms + 30)


def test_a_container_is_loading_then_warm_then_cold() -> None:
    run = serve([ask(0.0, 10, 3)], pool(model("a", in_dram=(0,)), nodes=1), "serverlessllm")
    container = run.pool.containers[0]
    assert container.state(0.0) == "cold"  # closed when the run ended
    assert states(run, [0.0, 1099.0, 1100.0, 5000.0]) == ["loading", "loading", "warm", "warm"]
    container.draining = True
    assert container.state(1200.0) == "draining"
    assert Container(1, model("b"), Gpu(0, 0)).state(0.0) == "cold"


def test_a_request_that_comes_while_loading_waits_for_the_rest() -> None:
    run = serve(
        [ask(0.0, 10, 2), ask(0.6, 10, 2)], pool(model("a", in_dram=(0,)), nodes=1), "serverlessllm"
    )
    assert run.pool.startup_ms == pytest.approx({0: 1100.0, 1: 500.0})
    assert tokens_ms(run, 1) == [1110.0, 1120.0]
    assert sum(run.stats.cold_starts.values()) == 1


@pytest.mark.parametrize(("at_s", "cold"), [(6.1, False), (6.2, True)])
def test_keep_alive_expires(at_s: float, cold: bool) -> None:
    # Idle from 1120 ms; five seconds of keep-alive end at 6120.
    settings_of_pool = pool(model("a", in_dram=(0,)), nodes=1, keep_alive_s=5.0)
    run = serve([ask(0.0, 10, 2), ask(at_s, 10, 1)], settings_of_pool, "serverlessllm")
    at_ms = at_s * 1e3
    assert tokens_ms(run, 1) == [at_ms + (1110.0 if cold else 10.0)]
    assert run.stats.closed == ({"expired": 1} if cold else {})
    assert run.stats.warm_requests == (0 if cold else 1)
    if cold:
        assert run.pool.containers[0].closed_ms == pytest.approx(6120.0)


def test_what_was_loaded_stays_in_memory() -> None:
    settings_of_pool = pool(model("a"), nodes=1, keep_alive_s=0.0)
    run = serve([ask(0.0, 10, 1), ask(20.0, 10, 1)], settings_of_pool, "serverlessllm")
    assert [start.load.tier for start in run.pool.starts] == ["remote", "dram"]


def test_memory_keeps_the_checkpoints_used_last() -> None:
    node = Node(0, pool(model("a"), model("b"), model("c"), dram_gb=20.0))
    for name in "abac":
        node.load(model(name), 0.0, fast=True)
    assert [name in node.dram for name in "abc"] == [True, False, True]
    assert node.tier(model("b")) == "nvme"
    assert Node(0, pool(model("a"), dram_gb=5.0)).dram.put(model("a")) is None


def test_loads_of_a_node_queue() -> None:
    node = Node(0, pool(model("a", in_dram=(0,)), model("b", on_nvme=(0,))))
    assert node.load(model("a"), 0.0, fast=True).ready_ms == pytest.approx(1100.0)
    second = node.estimate(model("b"), 600.0, fast=True)
    assert second.tier == "nvme"
    assert second[1:] == pytest.approx((500.0, 2100.0, 3200.0))


def test_locality_chooses_the_node_with_the_least_estimate() -> None:
    settings_of_pool = pool(model("a", on_nvme=(0,), in_dram=(1,)))
    assert homes(serve([ask(0.0, 10, 1)], settings_of_pool, "serverlessllm")) == [1]
    assert homes(serve([ask(0.0, 10, 1)], settings_of_pool, "plain")) == [0]


def test_the_queue_of_a_node_counts_against_it() -> None:
    # Node 0 has b in memory but is loading a until 10.1 s; NVMe on node 1 is sooner.
    three = pool(model("a"), model("b", in_dram=(0,), on_nvme=(1,)), nodes=2, gpus_per_node=2)
    run = serve([ask(0.0, 10, 1, "a"), ask(1.0, 10, 1, "b")], three, "serverlessllm")
    assert homes(run) == [0, 1]
    assert tokens_ms(run, 1) == [3110.0]


def test_round_robin_rotates_over_all_gpus_and_plain_does_not() -> None:
    workload = [ask(0.001 * i, 10, 5) for i in range(6)]
    settings_of_pool = pool(model("a", in_dram=(0, 1)))
    assert homes(serve(workload, settings_of_pool, "round-robin")) == [0, 1, 0, 1, 0, 1]
    assert homes(serve(workload, settings_of_pool, "plain")) == [0] * 6


def test_a_second_container_starts_beyond_the_target() -> None:
    settings_of_pool = pool(model("a", in_dram=(0, 1)), target_ongoing_requests=2)
    run = serve([ask(0.001 * i, 10, 50) for i in range(5)], settings_of_pool)
    assert homes(run) == [0, 0, 1, 1, 0]


def test_an_idle_container_makes_way_for_another_model() -> None:
    one = pool(model("a", in_dram=(0,)), model("b", in_dram=(0,)), nodes=1)
    run = serve([ask(0.0, 10, 2, "a"), ask(3.0, 10, 1, "b")], one, "serverlessllm")
    assert run.stats.closed == {"evicted": 1}
    assert tokens_ms(run, 1) == [4110.0]


def test_a_busy_container_is_drained_and_its_model_waits_its_turn() -> None:
    one = pool(model("a", in_dram=(0,)), model("b", in_dram=(0,)), nodes=1)
    workload = [ask(0.0, 10, 100, "a"), ask(1.2, 10, 3, "b"), ask(1.3, 10, 1, "a")]
    run = serve(workload, one, "serverlessllm")
    # a: first token 1110, the other 99 until 2100. b loads until 3200, three tokens to
    # 3230. Then the a that came behind b: 4330 + 10.
    assert tokens_ms(run, 0)[-1] == 2100.0
    assert tokens_ms(run, 1) == [3210.0, 3220.0, 3230.0]
    assert tokens_ms(run, 2) == [4340.0]
    assert run.stats.closed == {"drained": 2}
    assert run.pool.startup_ms == pytest.approx({0: 1100.0, 1: 2000.0, 2: 3030.0})


MIGRATES = pool(
    # a runs on node 0; b lies in memory there and nowhere else; a can move to node 1.
    model("a", in_dram=(0,), on_nvme=(1,)),
    model("b", in_dram=(0,)),
    migration={"message_ms": 4.0, "network_gb_per_s": 0.001, "bytes_per_token": 10},
)
"""Per token 0.01 ms on the wire: 10 bytes at a megabyte a second."""


def test_live_migration_costs_its_rounds_and_pauses_for_the_gap_only() -> None:
    workload = [ask(0.0, 100, 400, "a"), ask(1.5, 10, 2, "b")]
    run = serve(workload, MIGRATES, "serverlessllm")
    (move,) = run.pool.moves
    # a from 1100: two prompt steps, tokens at 1120, 1130, ... b at 1500: node 1 would fetch
    # it until 11600, so a moves. Node 1 has loaded a at 1500 + 2100 = 3600.
    # Round 1 at 3600: a has 249 tokens, 349 with its prompt: 4 + 3.49 + 7 steps = 77.49 ms.
    # Then 7 or 8 tokens are missing, at most 16: the source stops behind its step.
    assert (move.model, move.from_node, move.to_node, move.requests, move.rounds) == (
        *("a", 0, 1, 1),
        2,
    )
    assert move.stopped_ms == pytest.approx(3680.0)
    assert move.tokens == 349 + 8
    times = np.array(tokens_ms(run, 0))
    assert len(times) == 400
    gaps = np.diff(times)
    # 8 tokens: 4 + 0.08 ms for the message and one step to compute them and the next token.
    assert gaps.max() == pytest.approx(14.08)
    assert (gaps > 10.001).sum() == 1
    # b starts to load when the source stopped.
    assert tokens_ms(run, 1) == [3680.0 + 1100.0 + 10.0, 3680.0 + 1100.0 + 20.0]
    assert homes(run) == [1, 0]


def test_without_migration_the_far_node_fetches() -> None:
    still = MIGRATES.model_copy(update={"migration": MigrationSettings(enabled=False)})
    workload = [ask(0.0, 100, 400, "a"), ask(1.5, 10, 2, "b")]
    run = serve(workload, still, "serverlessllm")
    assert run.pool.moves == []
    assert tokens_ms(run, 1)[0] == 1500.0 + 10100.0 + 10.0
    assert np.diff(tokens_ms(run, 0)).max() == pytest.approx(10.0)


def test_migration_is_not_worth_it_when_the_free_node_is_as_near() -> None:
    near = pool(model("a", in_dram=(0,), on_nvme=(1,)), model("b", in_dram=(0, 1)))
    run = serve([ask(0.0, 100, 400, "a"), ask(1.5, 10, 2, "b")], near, "serverlessllm")
    assert run.pool.moves == []
    assert homes(run) == [0, 1]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk", [50, None])
def test_everybody_moves_whatever_they_were_doing(overlap: bool, chunk: int | None) -> None:
    """Running, in the middle of a prompt, and waiting requests arrive whole."""
    workload = [ask(0.0, 100, 400, "a"), ask(1.5, 10, 2, "b")]
    workload += [ask(3.55 + 0.005 * i, 90, 30, "a") for i in range(30)]
    workload = sorted(workload)
    # All of a's requests go to its one container: 16 are more than the default target.
    run = serve(
        workload,
        MIGRATES.model_copy(update={"target_ongoing_requests": 1000}),
        "serverlessllm",
        engine=settings(
            step_kind="mixed", chunk_tokens=chunk, overlap=overlap, max_running_requests=5
        ),
        step=affine(prefill_ms_per_token=0.01),
    )
    assert len(run.pool.moves) == 1
    for index, request in enumerate(workload):
        times = tokens_ms(run, index)
        assert len(times) == request.output_tokens
        assert (np.diff(times) > 0).all()
        assert times[0] >= request.arrival_s * 1e3


def test_rates_give_the_published_orders() -> None:
    """ServerlessLLM tells of 84 s for a 130 GB checkpoint by an ordinary loader."""
    ordinary = LoadingRates().load_ms(130.0, "nvme", fast=False) / 1e3
    assert 40 < ordinary < 170
    assert 3 < ordinary / (LoadingRates().load_ms(130.0, "nvme", fast=True) / 1e3) < 9


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"models": (model("a"), model("a", clients=()))}, "'a' stands twice"),
        ({"models": (model("a"), model("b", clients=("a",)))}, "client 'a' is claimed twice"),
        ({"models": (model("a", in_dram=(2,)),)}, "names node 2; nodes are 0 to 1"),
        ({"models": (model("a", in_dram=(0,)),), "dram_gb": 5}, "10 GB on node 0, which holds 5"),
        ({"models": (model("a", share=0),)}, "every share is 0"),
        ({"models": ()}, "at least 1 item"),
        ({"nodes": 0}, "greater than or equal to 1"),
        ({"keep_alive": 3}, "Extra inputs"),
    ],
)
def test_pools_that_cannot_be_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PoolSettings.model_validate({"models": (model("a"),), "nodes": 2, **fields})
