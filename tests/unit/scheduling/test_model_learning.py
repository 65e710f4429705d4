"""When a step model that was given gives way to what serving shows, and how far either goes."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from scheduling_builders import config, sample

from controllers.models.latency import LatencyModel
from twp_sglang.scheduling.model_learning import (
    EXTRAPOLATE,
    PROBE_STEPS,
    ROWS_EXTRAPOLATE,
    TRUSTED_AFTER,
)
from twp_sglang.scheduling.step_model import OnlineStepModel

V100 = LatencyModel(l_min_ms=43.0, b0=8.0, alpha_ms=4.3)
STEEP = V100.model_copy(update={"alpha_ms": 8.6})


def model(told: LatencyModel = V100, **fields: Any) -> OnlineStepModel:
    values = {
        "l_min_ms": told.l_min_ms,
        "b0": round(told.b0) or 8,
        "alpha_ms": told.alpha_ms,
        "prefill_ms_per_token": told.prefill_ms_per_token,
        "itl_slo_ms": 86.0,
    }
    return OnlineStepModel(config(**{**values, **fields}))


def serve(
    online: OnlineStepModel, machine: LatencyModel, steps: int, noise: float = 0.0, seed: int = 1
) -> int:
    """Steps of ``machine`` with a queue that never empties and nothing but decoding: up to two
    rows a step join while they may, and some end. The largest batch of the second half."""
    rng = random.Random(seed)
    batch, largest = 1, 0
    for step in range(steps):
        for _ in range(2):
            batch += online.admits(batch, 0, 1000)
        duration = machine.step_ms(batch, 0) * math.exp(noise * rng.gauss(0.0, 1.0))
        online.observe(sample(duration, step=step, batch=batch, kv_tokens=0), 0, 1000)
        largest = max(largest, batch) if 2 * step > steps else 0
        batch = max(1, batch - rng.choice([0, 0, 1, 2, 3]))
    return largest


@pytest.mark.parametrize("term", ["l_min_ms", "alpha_ms", "b0"])
@pytest.mark.parametrize("factor", [0.5, 1.5])
@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1])
def test_a_wrong_term_does_not_decide_whether_rows_pay(
    term: str, factor: float, noise: float
) -> None:
    """On the V100 more rows pay (8 * 4.3 < 43); told an alpha of 6.45, or a constant of 21.5, one
    would think that they do not, and never find out at 8 rows."""
    told = V100.model_copy(update={term: factor * getattr(V100, term)})
    online = model(told)
    assert 12 <= serve(online, V100, 600, noise) <= 18


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1])
def test_where_rows_do_not_pay_a_few_are_tried_and_then_no_more(noise: float) -> None:
    online = model(STEEP)
    assert online.admits(9, 0), "ten rows are a quarter more"
    assert not online.admits(10, 0)
    serve(online, STEEP, 200, noise)
    assert not online.admits(8, 0)
    assert online.source == "calibrated"


def test_a_right_model_stands() -> None:
    for seed in range(5):
        online = model()
        serve(online, V100, 2000, 0.1, seed)
        assert online.source == "calibrated"
        assert online.model.alpha_ms == V100.alpha_ms


def test_a_machine_beyond_the_reach_of_the_gains() -> None:
    """Told a machine seven times as fast: the gains end at twice."""
    online = model(LatencyModel(l_min_ms=6.0, b0=0.0, alpha_ms=0.0, a_ms=0.006))
    serve(online, V100, 100)
    assert online.source == "learned"
    assert online.predicted_ms(8, 0) == pytest.approx(43.0, rel=0.12)


def test_an_engine_that_always_does_the_same_is_followed_too() -> None:
    """One bucket shows no direction, but that the scale is wrong. The first step may be a pause."""
    online = model(LatencyModel(l_min_ms=6.0, b0=0.0, alpha_ms=0.0))
    for step in range(9):
        online.observe(sample(43.0, step=step, batch=8, kv_tokens=0), 0, 0)
    assert online.predicted_ms(8, 0) == pytest.approx(43.0, rel=0.02)


def test_beyond_what_was_seen_a_given_model_is_believed_once_it_has_stood() -> None:
    flat = LatencyModel(l_min_ms=10.0, b0=0.0, alpha_ms=0.0, prefill_ms_per_token=0.001)
    online = model(flat)
    assert online.admits(9, 0)
    assert not online.admits(10, 0), "10 rows are a quarter beyond 8"
    assert online.chunk_tokens(8, 0) == EXTRAPOLATE * 512
    for step in range(TRUSTED_AFTER):
        online.observe(sample(10.0, step=step, batch=8, kv_tokens=0), 0, 0)
    assert online.admits(200, 0)
    assert online.chunk_tokens(8, 0) == 8192


def test_only_rows_that_kept_the_objective_were_seen() -> None:
    online = OnlineStepModel(config(itl_slo_ms=50.0))
    online.observe(sample(120.0, batch=40, kv_tokens=0), 0, 0)
    assert not online.admits(math.ceil(ROWS_EXTRAPOLATE * 8), 0)
    online.observe(sample(20.0, batch=12, kv_tokens=0), 0, 0)
    assert online.admits(math.ceil(ROWS_EXTRAPOLATE * 12) - 1, 0)


def test_a_knee_nobody_knew_of_is_no_objective_out_of_reach() -> None:
    """Fits up to 8 rows show none; at 20 the step is twice the objective. That is the batch's
    fault: one row keeps it, and nothing longer may be planned for."""
    online = OnlineStepModel(config(itl_slo_ms=86.0))
    for step in range(600):
        batch = 1 + step % 8
        online.observe(sample(43.0, step=step, batch=batch, kv_tokens=300 * batch), 0, 0)
    for step in range(7):
        online.observe(sample(146.0, step=step, batch=20, kv_tokens=6000), 0, 0)
        assert online.snapshot()["itl_slo_reachable"] is True
    online.observe(sample(146.0, batch=20, kv_tokens=6000), 0, 0)
    assert online.predicted_ms(20, 6000) == pytest.approx(146.0, rel=0.1), "and is learnt at once"
    assert not online.admits(19, 6000)


def test_a_knee_taken_over_from_a_wrong_model_is_tried_too() -> None:
    """Told the V100 on a machine seven times as fast without any knee: what stays of the V100 in
    the fit, 4.3 ms per row beyond 8, would lock it in there."""
    fast = LatencyModel(l_min_ms=6.2, b0=0.0, alpha_ms=0.0, a_ms=0.006)
    assert serve(model(itl_slo_ms=50.0), fast, 400) > 100


def test_probing_needs_so_many_steps() -> None:
    online = model(STEEP)
    for step in range(PROBE_STEPS):
        assert online.admits(8, 0), step
        online.observe(sample(STEEP.step_ms(10, 0), step=step, batch=10, kv_tokens=0), 0, 9)
    assert not online.admits(8, 0)


@pytest.mark.parametrize("told", [V100, None])
@pytest.mark.parametrize("slo_ms", [1.0, 20.0, 40.0])
def test_out_of_reach_shows_to_an_engine_that_is_always_full_too(
    told: LatencyModel | None, slo_ms: float
) -> None:
    """There is no step of one or two rows then, and without one it would stay at 10 rows for good;
    twice the step of one row is 18."""
    fields = {"itl_slo_ms": slo_ms}
    online = OnlineStepModel(config(**fields)) if told is None else model(told, **fields)
    for step in range(100):
        batch = 6 + step % 5
        ms = V100.step_ms(batch, 0)
        online.observe(sample(ms, step=step, batch=batch, kv_tokens=300 * batch), 0, 1000)
    assert online.snapshot()["itl_slo_reachable"] is False
    assert online.admits(10, 300 * 10, 1000)


def test_a_step_that_keeps_the_objective_says_that_it_is_in_reach() -> None:
    online = model(itl_slo_ms=44.0)
    for step in range(500):
        batch = 8 if step % 50 == 0 else 10
        online.observe(sample(V100.step_ms(batch, 0), step=step, batch=batch, kv_tokens=0), 0, 9)
    assert online.snapshot()["itl_slo_reachable"] is True


def test_a_guess_of_a_fiftieth_does_not_hold_the_fit_at_itself() -> None:
    """An objective of 1 ms makes a guess of 0.25 ms a step."""
    online = OnlineStepModel(config(itl_slo_ms=1.0))
    for step in range(64):
        batch = 4 + step % 8
        ms = V100.step_ms(batch, 0)
        online.observe(sample(ms, step=step, batch=batch, kv_tokens=300 * batch), 0, 9)
    assert online.predicted_ms(8, 2400) == pytest.approx(43.0, rel=0.05)


def test_steps_too_short_for_any_model_are_no_fit() -> None:
    for told in (V100, None):
        online = OnlineStepModel(config(itl_slo_ms=30.0)) if told is None else model(told)
        for step in range(64):
            batch = 1 + step % 20
            online.observe(sample(1e-30, step=step, batch=batch, kv_tokens=100 * batch), 0, 9)
        assert online.model.l_min_ms >= 1e-6


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_a_machine_that_became_slower_is_not_mixed_with_what_it_was(
    given: bool, factor: float
) -> None:
    """Held to the objective, it does other steps than before: what was seen of the faster machine
    stayed in every fit, and steps of twice the objective were planned for good."""
    fast = LatencyModel(
        l_min_ms=6.2, b0=0.0, alpha_ms=0.0, a_ms=0.05,
        kappa_ms_per_token=2e-5, prefill_ms_per_token=0.02,
    )  # fmt: skip
    fields = {"a_ms": 0.05, "kappa_ms_per_token": 2e-5, "itl_slo_ms": 40.0}
    online = model(fast, **fields) if given else OnlineStepModel(config(itl_slo_ms=40.0))
    rng = random.Random(1)
    for step in range(3000):
        batch = rng.randint(60, 120) if step < 2000 else rng.randint(8, 30)
        kv = batch * rng.randint(300, 1500)
        prompt = rng.choice([0, 64, 300, 900] if step < 2000 else [0, 32, 100, 200, 400])
        ms = fast.step_ms(batch, kv, prompt) * (factor if step >= 2000 else 1.0)
        ms *= math.exp(0.03 * rng.gauss(0.0, 1.0))
        taken = sample(ms, step=step, batch=batch, kv_tokens=kv, prefill_tokens=prompt)
        online.observe(taken, 0, 1000)
    for prompt in (0, 300):
        true = factor * fast.step_ms(20, 20_000, prompt)
        assert online.predicted_ms(20, 20_000, prompt) == pytest.approx(true, rel=0.1)
    assert online.theta > 0.8


H100 = LatencyModel(
    l_min_ms=6.2, b0=0.0, alpha_ms=0.0, a_ms=0.006, kappa_ms_per_token=4e-5,
    prefill_ms_per_token=0.02,
)  # fmt: skip
FREE_TOKENS = 350
"""Prompt tokens per step that cost the H100 nothing."""


def h100_ms(batch: int, kv: int, prompt: int) -> float:
    return H100.step_ms(batch, kv, max(0, prompt - FREE_TOKENS))


def told_h100(**wrong: float) -> OnlineStepModel:
    told = {**H100.model_dump(exclude={"b0"}), "prefill_free_tokens": float(FREE_TOKENS), **wrong}
    return OnlineStepModel(config(itl_slo_ms=50.0, **told))


def first_steps(online: OnlineStepModel, seed: int) -> None:
    """A trickle of prompts beside few rows, scattering by 10 %: many buckets, few visits each."""
    rng = random.Random(seed)
    batch, kv = 1, 6000
    for step in range(130):
        prompt = rng.choice([0, 350, 350, 350, 700])
        batch = min(10, max(1, batch + rng.choice([-1, 0, 0, 1])))
        kv = max(3000, kv + rng.choice([-1500, 350, 350]))
        ms = h100_ms(batch, kv, prompt) * math.exp(0.1 * rng.gauss(0.0, 1.0))
        online.observe(
            sample(ms, step=step, batch=batch, kv_tokens=kv, prefill_tokens=prompt), 0, 9
        )


def test_scatter_alone_contradicts_nobody() -> None:
    """The means of buckets seen once are off by what a single step is; a fit to them with five
    terms leaves less and would double the next chunk's step."""
    for seed in range(40):
        online = told_h100()
        first_steps(online, seed)
        assert online.source == "calibrated", seed


def test_a_step_measured_late_and_the_next_measured_short_contradict_nobody() -> None:
    """Batches that only such steps had, between many that took what the model says."""
    online = model()
    plan = [(10, 51.6)] * 22 + [(10, 59.1), (5, 35.4), (4, 49.5), (9, 40.9)] + [(9, 47.3)] * 22
    plan += [(8, 42.1)] + [(8, 43.0)] * 13 + [(8, 46.5), (3, 39.4)] + [(3, 43.0)] * 13
    for step, (batch, ms) in enumerate(plan):
        taken = sample(ms, step=step, batch=batch, kv_tokens=150 * batch)
        online.observe(taken, 0, 9)
    assert online.source == "calibrated"


def test_scatter_hides_no_wrong_term() -> None:
    for seed in range(10):
        online = told_h100(prefill_ms_per_token=0.1)
        first_steps(online, seed)
        assert online.source == "learned", seed


@pytest.mark.parametrize("seed", range(10))
def test_chunks_grow_no_faster_than_the_steps_allow(seed: int) -> None:
    """The first fit knows one prompt, which cost nothing; what it says of larger ones is no reason
    to go from 38 ms to 80."""
    online = OnlineStepModel(config(itl_slo_ms=50.0))
    rng = random.Random(seed)
    kv = 400

    def take(prompt: int) -> float:
        ms = h100_ms(1, kv, prompt)
        measured = ms * math.exp(0.03 * rng.gauss(0.0, 1.0))
        online.observe(sample(measured, batch=1, kv_tokens=kv, prefill_tokens=prompt), 0, 9)
        return ms

    for prompt in (0, 0, 0, 0, 0, 0, 386, 0):
        take(prompt)
    longest = 0.0
    for _ in range(100):
        chunk = online.chunk_tokens(1, kv)
        longest = max(longest, take(chunk))
        kv += chunk
    assert 35.0 < longest <= 50.0


def test_a_pause_in_the_first_step_of_its_kind_is_no_prompt_cost() -> None:
    """It would be the only word on large chunks, and keep them from being tried again."""

    def predicted(*prompt_steps_ms: float) -> float:
        online = OnlineStepModel(config(itl_slo_ms=50.0))
        steps = [(20.0, 0 if step % 4 else 128) for step in range(64)]
        steps += [(ms, 512) for ms in prompt_steps_ms] + [(20.0, 0)] * 500
        for step, (ms, prompt) in enumerate(steps):
            taken = sample(ms, step=step, kv_tokens=4000, prefill_tokens=prompt)
            online.observe(taken, 0, 9)
        return online.predicted_ms(8, 4000, 512)

    assert predicted(600.0) == pytest.approx(predicted(), rel=0.02)
    assert predicted(300.0, 300.0) > 2 * predicted(), "twice the same is no pause"


@pytest.mark.parametrize("known", [True, False])
def test_slow_first_steps_do_not_stay_in_the_model(known: bool) -> None:
    """Ten times too slow, they say that prompts cost ten times what they do; chunks as small as
    that asks for would never show that it is not so."""
    machine = LatencyModel(
        l_min_ms=6.2, b0=0.0, alpha_ms=0.0, a_ms=0.05, kappa_ms_per_token=2e-5,
        prefill_ms_per_token=0.02,
    )  # fmt: skip
    told = machine.model_dump(exclude={"b0"}) if known else {}
    online = OnlineStepModel(config(itl_slo_ms=30.0, **told))
    rng, now_ms = random.Random(1), 0.0
    for step in range(6000):
        batch = rng.randint(20, 40)
        kv = batch * rng.randint(300, 900)
        chunk = online.chunk_tokens(batch, kv, 100_000, now_ms)
        duration = machine.step_ms(batch, kv, chunk) * (10.0 if step < 24 else 1.0)
        now_ms += duration
        # Rows keep somebody out, so chunks are even ones.
        online.pacing.crowded(now_ms)
        online.observe(
            sample(duration, step=step, batch=batch, kv_tokens=kv, prefill_tokens=chunk), 0, 100
        )
    foretold = online.predicted_ms(30, 18_000, 600)
    assert foretold == pytest.approx(machine.step_ms(30, 18_000, 600), rel=0.2)
