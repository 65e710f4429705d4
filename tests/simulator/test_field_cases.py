"""Twelve cases from the field, rebuilt small; the right behaviour is the test.

Each was reported against a serving engine in use. The schedulers under test are ``twp``, the
paper's law to the letter, and ``slo``; where the paper's law fails, the test is a strict
expected failure with the reason, so that a better law shows as an unexpected pass. Where
stock scheduling shows the reported failure, that is asserted too: it proves that the input is
the case.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.simulator.runs import affine, longest_gap_s, serve, settings, ttft_s
from twp_sglang.simulator.engine import Engine
from twp_sglang.simulator.live_request import LiveRequest
from twp_sglang.simulator.replicas import LeastTokens
from twp_sglang.simulator.replicas import serve as serve_replicas
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.simulate import Run
from twp_sglang.simulator.step_models import FloatArray, StepModel, StepTimer
from twp_sglang.simulator.step_sources import step_source
from twp_sglang.workloads.request import PrefixBlock, Request

A100 = "a100-llama31-8b"
BOTH = ("twp", "slo")
TWP_DECIDES = ("fcfs", "priority", "dynamic-batch", "twp", "slo")
ALL = ("off", "observe", *TWP_DECIDES)


def mixed(**fields: Any) -> EngineSettings:
    return settings(**{"step_kind": "mixed", "chunk_tokens": 512, "overlap": True, **fields})


def profile(name: str) -> StepModel:
    return step_source(name).model


# 1 ---------------------------------------------------------------------------- decode gap


def long_prompts() -> list[Request]:
    rng = np.random.default_rng(1)
    arrivals = np.cumsum(rng.exponential(1 / 6, 180))
    prompts = rng.integers(3000, 6000, 180)
    return [Request(float(t), int(n), 60) for t, n in zip(arrivals, prompts, strict=True)]


@pytest.mark.parametrize("policy", BOTH)
def test_01_the_decode_gap_stays_bounded(policy: str) -> None:
    """6 req/s of 3-6k tokens: prefill always wins on a stock engine, decoding stands still."""
    run = serve(long_prompts(), policy, engine=mixed(kv_tokens=413_696), model=profile(A100))
    assert run.result.latency.completed == 180
    assert longest_gap_s(run) < 0.2


def test_01_stock_shows_the_case() -> None:
    stock = settings(kv_tokens=413_696, chunk_tokens=8192, overlap=True)
    assert longest_gap_s(serve(long_prompts(), engine=stock, model=profile(A100))) > 5.0


# 2 ------------------------------------------------------------------ long prompt arrives


@pytest.mark.parametrize("policy", BOTH)
def test_02_a_decoding_request_keeps_a_floor_while_a_long_prompt_progresses(policy: str) -> None:
    """A (4,094 in / 8,192 out) decodes, then B (65,535 in / 1 out) arrives."""
    workload = [Request(0.0, 4094, 8192), Request(5.0, 65_535, 1)]
    run = serve(workload, policy, engine=mixed(kv_tokens=199_680), model=profile("l40s-llama31-8b"))
    assert longest_gap_s(run, [0]) < 0.1
    # 128 chunks of at most 0.1 s each, after at most T_max = 200 passes.
    assert ttft_s(run, 1) < 200 * 0.03 + 128 * 0.1
    assert run.result.latency.completed == 2


# 3 ------------------------------------------------------------------- work conservation


PAPERS_GATE = pytest.mark.xfail(
    strict=True,
    reason="the paper's gate counts expected output tokens, not free capacity: H starts at "
    "H0 = 400 and four answers of 512 tokens do not fit, so requests wait beside empty slots "
    "and an empty pool until T_max forces them in",
)


@pytest.mark.parametrize("policy", [pytest.param("twp", marks=PAPERS_GATE), "slo"])
def test_03_a_request_with_a_free_slot_and_free_memory_runs(policy: str) -> None:
    """4 slots, chunk 2,048, 4 cold prompts: three ran, the fourth waited with empty pools."""
    run = _four_cold_prompts(policy)
    # Chunks of all four back to back: 4 * 1,500 tokens in three steps.
    assert max(ttft_s(run, index) for index in range(4)) < 0.5


def test_03_first_come_first_served_runs_all_four() -> None:
    run = _four_cold_prompts("fcfs")
    assert max(ttft_s(run, index) for index in range(4)) < 0.5


def _four_cold_prompts(policy: str) -> Run:
    engine = mixed(max_running_requests=4, chunk_tokens=2048)
    model = affine(prefill_ms_per_token=0.02)
    return serve([Request(0.0, 1500, 512)] * 4, policy, engine=engine, model=model)


# 4 ------------------------------------------------------------------ learned bound decays


@pytest.mark.parametrize("policy", BOTH)
def test_04_a_bound_learned_from_a_burst_recovers(policy: str) -> None:
    """100 requests refill 128 slots, then steady load: a bound learned from the burst
    vetoed 97 % for ever."""
    burst = [Request(0.0, 500, 200)] * 100
    steady = [Request(30.0 + 0.25 * i, 500, 200) for i in range(240)]
    engine = mixed(max_running_requests=128)
    run = serve(burst + steady, policy, engine=engine, model=profile("h100-llama31-8b"))
    late = [ttft_s(run, index) for index in range(220, 340)]
    assert run.result.latency.completed == 340
    assert max(late) < 2.0


# 5 ---------------------------------------------------------------------------------- knee


class Jump:
    """30 ms up to 32 rows, 80 ms beyond: 32 rows make 1,067 tokens/s, 77 rows 962."""

    leaps = True

    def __init__(self, beyond_ms: float = 80.0) -> None:
        self._beyond_ms = beyond_ms

    def step_ms(self, rows: int, kv_tokens: int, prefill_tokens: int) -> float:
        return 30.0 if rows <= 32 else self._beyond_ms

    def decode_steps_ms(self, rows: int, kv_tokens: int, steps: int) -> FloatArray:
        return np.full(steps, self.step_ms(rows, kv_tokens, 0))


def _after_a_push(policy: str, config: dict[str, Any]) -> float:
    """Mean batch in the last third, after a burst that pushes the batch over the knee; the
    31 req/s of 32 tokens that follow need 992 tokens/s."""
    burst = [Request(0.0, 16, 32)] * 77
    steady = [Request(i / 31, 16, 32) for i in range(1, 31 * 60)]
    run = serve(burst + steady, policy, engine=mixed(), model=Jump(), config=config)
    done = run.decode_done_ms()
    third = done[2 * len(done) // 3 :]
    steps = np.diff(third)
    return float((steps > 50).mean())


KNEE = {"l_min_ms": 30.0, "b0": 32, "h0_tokens": 1024.0}


@pytest.mark.xfail(
    strict=True,
    reason="H0 = B0 times the mean length does not hold the batch at B0: with a full queue the "
    "paper's law allows 2 H0 / sigma, here 768 tokens at sigma 2.7, which is 46 rows of 16.5 "
    "tokens mean remaining; sigma has no integral action to push further",
)
def test_05_the_batch_returns_below_the_knee() -> None:
    """A latency model with a jump at batch 32: at rate 31 the batch never came back."""
    assert _after_a_push("twp", KNEE) < 0.1


@pytest.mark.parametrize("itl_slo_ms", [50.0, 120.0])
@pytest.mark.parametrize(
    "known",
    [
        {"graph_ceiling_rows": 32, "l_min_ms": 30.0, "prefill_ms_per_token": 0.0},
        {"graph_ceiling_rows": 32},
        {},
    ],
    ids=["profile and ceiling", "ceiling", "nothing"],
)
def test_05_slo_returns_below_a_ceiling_that_is_stated_or_learned(
    known: dict[str, float], itl_slo_ms: float
) -> None:
    """With 120 ms it is the rule of tokens per second alone that keeps it out of the jump."""
    assert _after_a_push("slo", {**known, "itl_slo_ms": itl_slo_ms}) < 0.1


def test_05_slo_goes_beyond_a_ceiling_where_that_makes_more() -> None:
    """30 ms up to 32 rows, 40 beyond: 64 rows make half as many tokens again."""
    workload = [Request(i / 40, 16, 32) for i in range(1, 40 * 30)]
    config = {"graph_ceiling_rows": 32, "l_min_ms": 30.0, "prefill_ms_per_token": 0.0}
    config["itl_slo_ms"] = 100.0
    run = serve(workload, "slo", engine=mixed(), model=Jump(40.0), config=config)
    assert max(ttft_s(run, index) for index in range(len(workload))) < 3.0


def test_05_stock_stays_above_the_knee() -> None:
    assert _after_a_push("fcfs", {}) > 0.9


def test_05_a_window_that_fits_the_knee_returns() -> None:
    """The safe start H0 <= (B0 + 1) rbar / 2: the same law comes back."""
    assert _after_a_push("twp", {**KNEE, "h0_tokens": 33 * 16.5 / 2}) < 0.1


# 6 --------------------------------------------------------------------------------- aging


@pytest.mark.parametrize("policy", BOTH)
def test_06_cold_requests_are_not_passed_for_ever(policy: str) -> None:
    """95 % of requests hit the prefix cache; the cold 5 % waited 20-60 s."""
    prefix = (PrefixBlock("system", 4000),)
    workload = [
        Request(0.08 * i, 4100, 100, prefix=() if i % 20 == 7 else prefix) for i in range(400)
    ]
    run = serve(workload, policy, engine=mixed(kv_tokens=413_696), model=profile(A100))
    cold = [ttft_s(run, index) for index in range(7, 400, 20)]
    warm = [ttft_s(run, index) for index in range(400) if index % 20 != 7]
    assert max(cold) < max(5.0, 2 * max(warm))
    assert run.result.prefix_hit_tokens > 300 * 4000


# 7 -------------------------------------------------------------------------- head of line


def _head_of_line(policy: str) -> Run:
    """8k/512 running, one 16k head, eight 1k/512 behind it, KV for 20k."""
    workload = [Request(0.0, 8000, 512), Request(1.0, 16_000, 512)]
    workload += [Request(1.001 + 0.001 * i, 1000, 512) for i in range(8)]
    engine = mixed(kv_tokens=20_000, chunk_tokens=2048)
    # A window wide enough to leave the decision to memory.
    config = {"h0_tokens": 50_000.0}
    model = affine(l_min_ms=60.0, prefill_ms_per_token=0.05)
    return serve(workload, policy, engine=engine, model=model, config=config)


@pytest.mark.parametrize("policy", BOTH)
def test_07_short_requests_do_not_wait_for_a_head_that_does_not_fit(policy: str) -> None:
    """The gate itself skips nobody; the ranking's term per job size puts the short ones
    before the head, and T_max bounds for how long."""
    run, strict = _head_of_line(policy), _head_of_line("fcfs")
    # Strict order begins the head when the first request ends, after 31 s, then the rest.
    assert max(ttft_s(run, index) for index in range(2, 10)) < 10.0
    assert min(ttft_s(strict, index) for index in range(2, 10)) > 31.0
    assert ttft_s(run, 1) < 1.3 * ttft_s(strict, 1)


def test_07_strict_order_is_kept_without_a_bypass() -> None:
    run = _head_of_line("fcfs")
    assert min(ttft_s(run, index) for index in range(2, 10)) >= ttft_s(run, 1)


# 8 ------------------------------------------------------------------- whole prompt checked


@pytest.mark.parametrize("policy", ["off", "fcfs", "twp", "slo"])
def test_08_a_prompt_that_does_not_fit_whole_is_not_begun(policy: str) -> None:
    """Four 100k inputs fill 90 % of KV; a fifth was let in on its first chunk."""
    workload = [Request(0.2 * i, 100_000, 300) for i in range(5)]
    engine = mixed(kv_tokens=444_000, chunk_tokens=8192)
    # Late forcing and a wide window: memory alone decides.
    config = {"h0_tokens": 100_000.0}
    run = serve(workload, policy, engine=engine, model=profile("h100-llama31-8b"), config=config)
    assert run.result.retractions == 0
    assert run.result.latency.completed == 5
    last = run.requests[4]
    others_done = min(
        float(run.decode_done_ms()[request.segments[-1].end - 1]) for request in run.requests[:4]
    )
    assert last.segments[0].first_token_ms > others_done


def test_08_declared_limits_far_above_the_answers_start_no_loop() -> None:
    """The same pool and clients that declare 40 times what comes: retraction stays rare and
    nobody loses its memory twice."""
    rng = np.random.default_rng(8)
    workload = [
        Request(0.4 * i, int(rng.integers(20_000, 100_000)), int(rng.integers(50, 150)), 4096)
        for i in range(120)
    ]
    engine = mixed(kv_tokens=444_000, chunk_tokens=8192)
    run = serve(workload, "slo", engine=engine, model=profile("h100-llama31-8b"))
    assert run.result.latency.completed == 120
    assert run.result.retractions <= 2
    assert max(request.retractions for request in run.requests) <= 1


# 9 ---------------------------------------------------------------------- impossible request


@pytest.mark.parametrize("policy", ALL)
def test_09_a_request_that_can_never_fit_is_refused_at_once(policy: str) -> None:
    workload = [Request(0.0, 100, 50), Request(0.1, 9000, 2000), Request(0.2, 100, 50)]
    run = serve(workload, policy, engine=settings(kv_tokens=10_000))
    assert [request.status for request in run.requests] == ["completed", "refused", "completed"]
    assert "11000 KV tokens" in run.requests[1].reason
    assert run.result.refused == {"larger than the KV pool": 1}


# 10 ----------------------------------------------------------------------------- overload


@pytest.mark.parametrize("policy", ALL)
def test_10_under_overload_every_request_is_answered(policy: str) -> None:
    """128 running, 96 queued, 3,000 requests a minute: nobody may be left hanging."""
    workload = [Request(0.02 * i, 800, 400) for i in range(1500)]
    engine = mixed(max_running_requests=128, max_queued_requests=96, kv_tokens=199_680)
    run = serve(workload, policy, engine=engine, model=profile("l40s-llama31-8b"))
    statuses = [request.status for request in run.requests]
    assert set(statuses) == {"completed", "refused"}
    assert run.result.refused["queue full"] == statuses.count("refused")
    assert statuses.count("completed") > 96


# 11 ------------------------------------------------------------------------ stale signals


def test_11_a_router_counts_what_it_sent_since_the_last_load_report() -> None:
    """Load signals 50 ms old, dispatch every 1 ms, a burst of 500."""
    engine = mixed()
    engines = [Engine(engine, StepTimer(affine()), None) for _ in range(4)]
    burst = [LiveRequest(Request(0.001 * i, 200, 50), i, float(i)) for i in range(500)]
    placed = serve_replicas(engines, LeastTokens(engines, report_every_ms=50.0), burst)
    counts = np.bincount(placed, minlength=4)
    assert counts.max() - counts.min() <= 25  # half a report interval of requests
    runs = np.diff(np.flatnonzero(np.diff(placed)))
    assert runs.max() < 10  # never a whole report interval to one place


# 12 -------------------------------------------------------------------------- preemption


def _four_long_then(priority: int, policy: str, *, preemption: bool) -> Run:
    workload = [Request(0.0, 100, 3000)] * 4 + [Request(2.0, 100, 10, priority=priority)]
    engine = mixed(max_running_requests=4, priority_preemption=preemption)
    return serve(workload, policy, engine=engine, config={"h0_tokens": 20_000.0})


@pytest.mark.parametrize("policy", ALL)
def test_12_high_priority_waits_a_bounded_time_when_preemption_is_on(policy: str) -> None:
    """Four slots of long low-priority decodes, one high-priority arrival."""
    run = _four_long_then(20, policy, preemption=True)
    assert ttft_s(run, 4) < 1.0
    assert run.result.preemptions == 1
    assert run.result.latency.completed == 5
    assert ttft_s(_four_long_then(20, policy, preemption=False), 4) > 20.0


@pytest.mark.parametrize("policy", ALL)
def test_12_equal_priorities_never_swap(policy: str) -> None:
    assert _four_long_then(0, policy, preemption=True).result.preemptions == 0


def test_12_where_the_objective_and_not_the_slots_is_full_a_row_makes_way_too() -> None:
    """Rows cost 5 ms each: 7 keep 50 ms, and all are taken by long answers."""
    workload = [Request(0.1 * i, 100, 1500) for i in range(8)]
    workload.append(Request(20.0, 100, 10, priority=20))
    model = {"l_min_ms": 10.0, "a_ms": 5.0, "prefill_ms_per_token": 0.01}
    waits = {}
    for preemption in (True, False):
        engine = mixed(priority_preemption=preemption)
        run = serve(workload, "slo", engine=engine, model=affine(**model), config=model)
        assert run.result.latency.completed == 9
        assert run.result.preemptions == preemption
        waits[preemption] = ttft_s(run, 8)
    assert waits[True] < 0.5
    assert waits[False] > 10.0


def _stream_of_high_priorities(policy: str) -> Run:
    """Two a second, each taking one of two slots for a second; two long answers in between."""
    workload = [Request(0.0, 100, 1000)] * 2
    workload += [Request(1.0 + 0.5 * i, 100, 80, priority=20) for i in range(120)]
    engine = mixed(max_running_requests=2, priority_preemption=True)
    return serve(workload, policy, engine=engine, config={"h0_tokens": 20_000.0})


@pytest.mark.parametrize("policy", TWP_DECIDES)
def test_12_a_stream_of_high_priorities_does_not_preempt_the_same_request_for_ever(
    policy: str,
) -> None:
    """By its doubling protection a request is preempted a handful of times, and everybody ends."""
    run = _stream_of_high_priorities(policy)
    assert run.result.latency.completed == 122
    infos = [request.info for request in run.requests[:2]]
    assert all(info is not None and 1 <= info.preemptions <= 6 for info in infos)


@pytest.mark.parametrize("policy", ["off", "observe"])
def test_12_stock_preempts_the_same_request_over_and_over(policy: str) -> None:
    assert _stream_of_high_priorities(policy).result.preemptions > 60
