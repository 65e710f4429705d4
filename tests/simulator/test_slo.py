"""Policy slo on the simulated engine: what it promises, beside those who do not."""

from __future__ import annotations

import numpy as np
import pytest
from runs import longest_gap_s, serve, settings, ttft_s

from twp_sglang.simulator.metrics import token_times
from twp_sglang.simulator.simulate import Run
from twp_sglang.simulator.step_models import Affine, AffineStep
from twp_sglang.workloads.request import PrefixBlock, Request

STEP = {"l_min_ms": 6.2, "a_ms": 0.006, "kappa_ms_per_token": 4e-5, "prefill_ms_per_token": 0.02}
"""Close to the 8B profile of an H100: 50 ms hold some 2,000 prompt tokens."""

MIXED = settings(kv_tokens=400_000, step_kind="mixed", overlap=True, chunk_tokens=8192)


def machine() -> Affine:
    return Affine(AffineStep.model_validate(STEP))


def traffic(rate: float, count: int, longest: int = 8000, seed: int = 1) -> list[Request]:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    prompts = np.minimum(rng.lognormal(7.0, 1.0, count), longest).astype(int) + 1
    outputs = rng.integers(20, 300, count)
    return [
        Request(float(t), int(p), int(o))
        for t, p, o in zip(arrivals, prompts, outputs, strict=True)
    ]


def itl_p99(run: Run) -> list[float]:
    """Of each request, ms."""
    done = run.decode_done_ms(0)
    gaps = [np.diff(token_times(request, done).token_ms) for request in run.requests]
    return [float(np.percentile(one, 99)) for one in gaps if len(one)]


@pytest.mark.parametrize("model", [STEP, {}])
@pytest.mark.parametrize("itl_slo_ms", [30.0, 50.0])
def test_steps_keep_the_objective_with_and_without_a_profile(
    model: dict[str, float], itl_slo_ms: float
) -> None:
    run = serve(
        traffic(20.0, 500),
        "slo",
        engine=MIXED,
        model=machine(),
        config={"itl_slo_ms": itl_slo_ms, **model},
        noise=0.03,
    )
    assert run.result.latency.completed == 500
    held = np.mean([p99 <= itl_slo_ms for p99 in itl_p99(run)])
    # Without a profile the first second serves by a guess.
    assert held >= (0.99 if model else 0.95)
    stock = serve(traffic(20.0, 500), "off", engine=settings(kv_tokens=400_000), model=machine())
    assert np.mean([p99 <= itl_slo_ms for p99 in itl_p99(stock)]) < 0.5


def test_a_wrong_profile_is_corrected() -> None:
    wrong = {**STEP, "prefill_ms_per_token": 0.01}
    run = serve(traffic(20.0, 500), "slo", engine=MIXED, model=machine(), config=wrong, noise=0.03)
    assert np.mean([p99 <= 50.0 for p99 in itl_p99(run)]) >= 0.95


def overload() -> list[Request]:
    """A minute with a fifth more than the engine can take, a long prompt in the middle."""
    short = [Request(index / 36, 1600, 20) for index in range(2160)]
    return sorted([*short, Request(20.0, 30_000, 20)], key=lambda request: request.arrival_s)


def test_the_late_share_bounds_the_wait_of_a_long_prompt() -> None:
    workload = overload()
    long = next(i for i, request in enumerate(workload) if request.input_tokens == 30_000)

    def wait_s(policy: str, **fields: float) -> float:
        config = {**STEP, "late_after_ms": 10_000.0, **fields}
        run = serve(workload, policy, engine=MIXED, model=machine(), config=config)
        return ttft_s(run, long)

    # It waits behind all who became late before it, on the share that these may take.
    small, large = wait_s("slo", late_share=0.1), wait_s("slo", late_share=0.5)
    assert 10.0 < large < 0.7 * small
    # Shortest prompt first lets it wait until nothing shorter is left.
    assert small < 0.9 * wait_s("priority")


def test_under_overload_those_who_can_be_served_in_time_are() -> None:
    workload = overload()
    in_time = {
        policy: np.mean(
            [
                ttft_s(run, index) <= 2.0
                for run in [serve(workload, policy, engine=MIXED, model=machine(), config={**STEP})]
                for index in range(len(workload))
            ]
        )
        for policy in ("slo", "fcfs")
    }
    assert in_time["fcfs"] < 0.4
    assert in_time["slo"] > 0.6


def test_a_step_never_waits_for_a_whole_prompt() -> None:
    workload = [Request(0.0, 100, 400), Request(0.5, 20_000, 10)]
    run = serve(workload, "slo", engine=MIXED, model=machine(), config=STEP)
    assert longest_gap_s(run, [0]) < 0.05
    stock = serve(workload, "off", engine=settings(kv_tokens=400_000), model=machine())
    assert longest_gap_s(stock, [0]) > 0.3


def test_a_request_after_a_pause_is_not_taken_for_a_late_one() -> None:
    # The last sample before it is a minute old; its arrival is stamped by the clock.
    workload = [Request(0.0, 100, 20), *(Request(60.0, 4000, 20) for _ in range(6))]
    run = serve(workload, "slo", engine=MIXED, model=machine(), config=STEP)
    waits = [ttft_s(run, index) for index in range(1, 7)]
    assert waits == sorted(waits), "first come first served while all can be in time"


def test_prefixes_in_the_cache_are_not_counted_as_prompts() -> None:
    """A hundred at once share 4,000 tokens: all can be in time, and none is called late."""
    prefix = (PrefixBlock("system", 4000),)
    workload = [Request(0.0, 4050, 5, prefix=prefix)]
    workload += [Request(2.0, 4050, 5, prefix=prefix) for _ in range(100)]
    # Last of all, but it can be in time as well; were all prompts counted whole, it could not.
    workload += [Request(2.0, 6000, 5)]
    run = serve(workload, "slo", engine=MIXED, model=machine(), config=STEP)
    assert ttft_s(run, 101) < 1.0
    assert max(ttft_s(run, index) for index in range(1, 101)) < 1.0


def test_a_requests_own_inter_token_objective_is_kept_while_it_runs() -> None:
    calm = traffic(20.0, 300)
    hasty = [Request(2.0 + 2.0 * i, 200, 100, itl_slo_ms=20.0) for i in range(5)]
    workload = sorted([*calm, *hasty], key=lambda request: request.arrival_s)
    # A token is there when its step ends: nothing of the objective goes to delivery.
    told = {**STEP, "itl_delivery_ms": 0.0}
    run = serve(workload, "slo", engine=MIXED, model=machine(), config=told, noise=0.03)
    assert run.result.latency.completed == 305
    done = run.decode_done_ms(0)
    own = [
        np.percentile(np.diff(token_times(request, done).token_ms), 99)
        for request in run.requests
        if request.spec.itl_slo_ms is not None
    ]
    assert len(own) == 5
    assert max(own) <= 20.0
    assert np.mean([p99 <= 50.0 for p99 in itl_p99(run)]) >= 0.99


def test_twp_with_learned_lengths_lets_in_more_of_those_who_declare_too_much() -> None:
    # Answers of some 160 tokens; all declare 4,096, which a window of 8,192 holds twice.
    loose = [one._replace(max_new_tokens=4096) for one in traffic(4.0, 200, longest=500)]
    waits = {}
    for source in ("declared", "learned"):
        config = {"h0_tokens": 8192.0, "length_source": source}
        run = serve(loose, "twp", engine=MIXED, model=machine(), config=config)
        assert run.result.latency.completed == 200
        waits[source] = np.mean([ttft_s(run, index) for index in range(100, 200)])
    assert waits["learned"] < 0.2 * waits["declared"]
