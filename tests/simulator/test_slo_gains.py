"""What policy slo gains over tuned static settings, on small inputs: a change that loses the
gain fails here. The full comparison is in docs/results/slo.md."""

from __future__ import annotations

import numpy as np
import pytest
from runs import serve, settings, ttft_s

from twp_sglang.simulator.metrics import token_times
from twp_sglang.simulator.simulate import Run
from twp_sglang.simulator.step_models import Affine, AffineStep, FloatArray
from twp_sglang.workloads.request import Request

TERMS = {
    "l_min_ms": 6.2,
    "a_ms": 0.006,
    "kappa_ms_per_token": 4e-5,
    "prefill_ms_per_token": 0.02,
    "prefill_free_tokens": 350.0,
}
"""The 8B profile of an H100, rounded."""


def machine() -> Affine:
    return Affine(AffineStep.model_validate(TERMS))


def conversation(rate: float, count: int, seed: int = 1) -> list[Request]:
    """Prompts of 1,100 tokens and answers of 200 on average, both with a long tail."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    prompts = np.minimum(rng.lognormal(6.5, 1.0, count), 6000).astype(int) + 20
    outputs = np.minimum(rng.lognormal(5.0, 0.8, count), 1000).astype(int) + 2
    return [
        Request(float(t), int(p), int(o))
        for t, p, o in zip(arrivals, prompts, outputs, strict=True)
    ]


def in_time(run: Run) -> float:
    """Share of requests with a TTFT up to 2 s and an ITL P99 up to 50 ms."""
    done = run.decode_done_ms(0)
    met = 0
    for index, request in enumerate(run.requests):
        gaps = np.diff(token_times(request, done).token_ms)
        calm = not len(gaps) or float(np.percentile(gaps, 99)) <= 50.0
        met += calm and ttft_s(run, index) <= 2.0
    return met / len(run.requests)


def static(workload: list[Request], kv_tokens: int, policy: str = "off") -> float:
    """The best of four chunks, tuned on the very requests."""
    return max(
        in_time(
            serve(
                workload,
                policy,
                engine=settings(
                    kv_tokens=kv_tokens, step_kind="mixed", overlap=True, chunk_tokens=chunk
                ),
                model=machine(),
            )
        )
        for chunk in (256, 512, 1024, 2048)
    )


def slo(workload: list[Request], kv_tokens: int, model: dict[str, float]) -> Run:
    engine = settings(kv_tokens=kv_tokens, step_kind="mixed", overlap=True, chunk_tokens=8192)
    # A token is there when its step ends: nothing of the objective goes to delivery.
    told = {**model, "itl_delivery_ms": 0.0}
    return serve(workload, "slo", engine=engine, model=machine(), config=told, noise=0.03)


@pytest.mark.parametrize("model", [TERMS, {}], ids=["profile", "none"])
def test_beyond_what_the_machine_carries_it_serves_many_more_in_time(
    model: dict[str, float],
) -> None:
    workload = conversation(40.0, 800)
    reached, best = in_time(slo(workload, 400_000, model)), static(workload, 400_000)
    assert reached > 1.6 * best
    assert reached > 0.85


@pytest.mark.parametrize("model", [TERMS, {}], ids=["profile", "none"])
def test_where_memory_is_short_chunks_stay_even(model: dict[str, float]) -> None:
    """46 rows of memory: prompts taken in lumps would leave most steps without any."""
    workload = conversation(19.0, 1000)
    assert in_time(slo(workload, 60_000, model)) > 0.97


def test_a_burst_is_met_with_large_chunks() -> None:
    """Four seconds at ten times the rate, out of calm and back."""
    calm = conversation(6.0, 60)
    burst = [r._replace(arrival_s=r.arrival_s + 10.0) for r in conversation(60.0, 240, seed=2)]
    after = [r._replace(arrival_s=r.arrival_s + 14.0) for r in conversation(6.0, 60, seed=3)]
    workload = sorted([*calm, *burst, *after], key=lambda request: request.arrival_s)
    run = slo(workload, 400_000, TERMS)
    assert in_time(run) > max(0.97, static(workload, 400_000))


class Drifting:
    """The machine, from some step on half as slow again."""

    leaps = False

    def __init__(self, from_step: int) -> None:
        self._model = machine()
        self._left = from_step

    def step_ms(self, rows: int, kv_tokens: int, prefill_tokens: int) -> float:
        self._left -= 1
        factor = 1.0 if self._left >= 0 else 1.5
        return factor * self._model.step_ms(rows, kv_tokens, prefill_tokens)

    def decode_steps_ms(self, rows: int, kv_tokens: int, steps: int) -> FloatArray:
        raise NotImplementedError("leaps is False")


@pytest.mark.parametrize("model", [TERMS, {}], ids=["profile", "none"])
def test_a_machine_that_gets_slower_is_followed_within_300_steps(model: dict[str, float]) -> None:
    workload = conversation(12.0, 700)
    engine = settings(kv_tokens=400_000, step_kind="mixed", overlap=True, chunk_tokens=8192)
    run = serve(workload, "slo", engine=engine, model=Drifting(2000), config=model)
    steps = np.diff(run.decode_done_ms(0))
    # Steps beside which something decoded; gaps without any are no steps.
    assert np.mean(steps[2300:] > 50.0) < 0.01
    assert run.result.latency.completed == 700


@pytest.mark.parametrize(
    ("name", "factor"),
    [("prefill_ms_per_token", 0.5), ("l_min_ms", 1.5), ("kappa_ms_per_token", 1.5)],
)
def test_a_wrong_constant_costs_less_than_three_points(name: str, factor: float) -> None:
    workload = conversation(27.0, 800)
    wrong = {**TERMS, name: factor * TERMS[name]}
    right = in_time(slo(workload, 400_000, TERMS))
    assert in_time(slo(workload, 400_000, wrong)) > right - 0.03
