"""Identification finds what made a trace, says how sure it is, and refuses what it cannot know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_traces import Truth, request_trace, write_trace

from controllers.identification import PARAMETERS, Identification, identify
from controllers.identification.knee_moments import Terms
from controllers.identification.segmented import fit_segmented
from controllers.trace_reader import read_step_trace

RICH = Truth(kappa_ms_per_token=0.002, prefill_ms_per_token=0.02, outliers=0.02)
TRUTHS = {
    "plain": (Truth(), {}),
    "every term and outliers": (RICH, {}),
    "correlated noise": (Truth(kappa_ms_per_token=5e-4, correlation=0.6, noise=0.05), {}),
    "steep": (Truth(alpha_ms=10.75, kappa_ms_per_token=0.003, prefill_ms_per_token=0.03), {}),
    "large batch": (
        Truth(l_min_ms=20, b0=32, alpha_ms=0.6, kappa_ms_per_token=2e-4),
        {"h0_tokens": 1600.0},
    ),
    "knee between batches": (Truth(b0=6.5, alpha_ms=3), {}),
    "slope below the knee": (Truth(a_ms=1.0, alpha_ms=4), {}),
}


def identified(
    folder: Path, truth: Truth, seed: int = 0, steps: int = 3000, **over: Any
) -> Identification:
    path = folder / f"{seed}.jsonl"
    write_trace(path, request_trace(truth, steps=steps, seed=seed, **over))
    return identify(read_step_trace(path), seed=seed)


def holds(found: Identification, truth: Truth) -> bool:
    """Whether every parameter lies inside its interval, all at once."""
    for name in PARAMETERS:
        estimate = getattr(found.summary, name)
        if estimate is None or not estimate.lo <= getattr(truth, name) <= estimate.hi:
            return False
    return True


@pytest.mark.parametrize("case", TRUTHS)
def test_recovers_the_truth(tmp_path: Path, case: str) -> None:
    truth, over = TRUTHS[case]
    found = [identified(tmp_path, truth, seed, **over) for seed in range(5)]
    assert all(f.summary.identifiable for f in found)
    # Joint 95 % intervals: two misses in five happen once in forty by chance.
    assert sum(holds(f, truth) for f in found) >= 4
    for f in found:
        assert f.summary.b0 is not None
        assert f.summary.alpha_ms is not None
        assert f.summary.b0.value == pytest.approx(truth.b0, rel=0.1)
        assert f.summary.alpha_ms.value == pytest.approx(truth.alpha_ms, rel=0.15)


def test_one_hundred_traces(tmp_path: Path) -> None:
    cases = list(TRUTHS.values())
    found = []
    for seed in range(100):
        truth, over = cases[seed % len(cases)]
        found.append(holds(identified(tmp_path, truth, seed, steps=2000, **over), truth))
    assert sum(found) >= 90


@pytest.mark.parametrize(
    ("truth", "over", "code"),
    [
        (Truth(), {"max_batch": 8}, "knee-not-reached"),
        (RICH, {"max_batch": 7}, "knee-not-reached"),
        (Truth(correlation=0.5), {"load": 0.25, "burst": 1.0}, "knee-not-reached"),
        (RICH, {"max_batch": 9}, "knee-hardly-passed"),
        (Truth(), {"steps": 150}, "too-short"),
        (Truth(), {"max_batch": 2}, "batch-constant"),
    ],
)
def test_refuses_without_excitation(
    tmp_path: Path, truth: Truth, over: dict[str, Any], code: str
) -> None:
    for seed in range(4):
        summary = identified(tmp_path, truth, seed, **over).summary
        assert not summary.identifiable
        assert summary.alpha_ms is None
        assert summary.b0 is None
        assert code in {refusal.code for refusal in summary.refusals}
        assert all(refusal.wanted for refusal in summary.refusals)


def test_refuses_when_light_load_was_never_seen(tmp_path: Path) -> None:
    records = [r for r in request_trace(Truth(b0=2), steps=3000, load=10.0) if r["batch"] > 6]
    found = identify(read_step_trace(write_trace(tmp_path / "t.jsonl", records)))
    assert [r.code for r in found.summary.refusals] == ["floor-not-reached"]


def test_a_line_from_batch_one_is_a_knee_at_one(tmp_path: Path) -> None:
    truth = Truth(b0=1.0, l_min_ms=20, alpha_ms=5.0)
    found = identified(tmp_path, truth, load=8.0, h0_tokens=300.0)
    summary = found.summary
    assert summary.identifiable
    assert summary.l_min_ms is not None
    assert summary.alpha_ms is not None
    assert summary.b0 is not None
    assert summary.b0.value == 1.0
    assert summary.l_min_ms.lo <= 20 <= summary.l_min_ms.hi
    assert summary.alpha_ms.lo <= 5 <= summary.alpha_ms.hi
    assert any("No knee" in note for note in summary.notes)


def test_leaving_out_kv_and_prefill_biases_the_knee(tmp_path: Path) -> None:
    """The reason for the other terms: without them the knee of this trace is found too low."""
    truth = Truth(kappa_ms_per_token=0.01, prefill_ms_per_token=0.03)
    found = identified(tmp_path, truth, seed=3, steps=4000)
    assert found.summary.b0 is not None
    assert found.summary.b0.lo <= 8.0 <= found.summary.b0.hi
    knee_only = fit_segmented(found.samples, Terms(a=False, knee=True, kv=False, prefill=False))
    assert knee_only.b0 < 7.4


def test_outliers_do_not_move_the_constant(tmp_path: Path) -> None:
    truth = Truth(outliers=0.08)
    found = identified(tmp_path, truth, seed=5)
    assert found.summary.l_min_ms is not None
    assert found.summary.l_min_ms.lo <= truth.l_min_ms <= found.summary.l_min_ms.hi
    assert found.summary.outlier_percent == pytest.approx(8, abs=2)


def test_noise_free_trace_is_found_exactly(tmp_path: Path) -> None:
    truth = Truth(noise=0.0, b0=7.25, kappa_ms_per_token=0.001)
    summary = identified(tmp_path, truth).summary
    assert summary.identifiable
    for name in PARAMETERS:
        estimate = getattr(summary, name)
        assert estimate.value == pytest.approx(getattr(truth, name), rel=1e-3, abs=1e-6)
    assert summary.fit_percent == pytest.approx(100, abs=0.1)


def test_validation_numbers(tmp_path: Path) -> None:
    white = identified(tmp_path, RICH, seed=1).summary
    assert white.fit_percent is not None
    assert 70 < white.fit_percent < 95
    assert white.noise_percent == pytest.approx(3.0, rel=0.1)
    assert white.ljung_box_p is not None
    assert white.ljung_box_p > 0.001
    coloured = identified(tmp_path, Truth(correlation=0.7), seed=1).summary
    assert coloured.ljung_box_p is not None
    assert coloured.ljung_box_p < 1e-6
    assert coloured.residual_lag1 == pytest.approx(0.7, abs=0.07)
    assert any("repeat" in note for note in coloured.notes)


def test_correlated_noise_widens_intervals(tmp_path: Path) -> None:
    def width(truth: Truth) -> float:
        estimate = identified(tmp_path, truth, seed=2).summary.alpha_ms
        assert estimate is not None
        return estimate.hi - estimate.lo

    assert width(Truth(correlation=0.8)) > 1.5 * width(Truth())


def test_the_same_trace_and_seed_give_the_same_answer(tmp_path: Path) -> None:
    first = identified(tmp_path, RICH, seed=4).summary
    second = identified(tmp_path, RICH, seed=4).summary
    assert first == second


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_delay_from_sample_step_and_from_the_filter(tmp_path: Path, delay: int) -> None:
    truth = Truth(delay_steps=delay)
    records = request_trace(truth, steps=1500, beta=0.3)
    told = identify(read_step_trace(write_trace(tmp_path / "a.jsonl", records))).summary.delay
    assert told is not None
    assert (told.delay_steps, told.source) == (delay, "sample_step")
    hidden = [record | {"sample_step": None} for record in records]
    seen = identify(read_step_trace(write_trace(tmp_path / "b.jsonl", hidden))).summary.delay
    assert seen is not None
    assert (seen.delay_steps, seen.source) == (delay, "itl_ms")
    assert seen.beta == pytest.approx(0.3, rel=1e-3)
    hidden = [record | {"itl_ms": None} for record in hidden]
    seen = identify(read_step_trace(write_trace(tmp_path / "c.jsonl", hidden))).summary.delay
    assert seen is not None
    assert (seen.delay_steps, seen.source) == (delay, "sigma")
    hidden = [record | {"sigma": None} for record in hidden]
    seen = identify(read_step_trace(write_trace(tmp_path / "d.jsonl", hidden))).summary.delay
    assert seen is not None
    assert seen.plausible_steps == (0, 1)


def test_length_law(tmp_path: Path) -> None:
    summary = identified(tmp_path, Truth(), steps=6000, mean_output=50.0).summary
    assert summary.lengths is not None
    assert summary.lengths.mean_tokens == pytest.approx(50, rel=0.08)
    low, high = summary.lengths.mean_remaining_lo, summary.lengths.mean_remaining_hi
    assert low < summary.lengths.mean_remaining_tokens < high
    assert low <= 50.5 <= high or summary.lengths.mean_remaining_tokens == pytest.approx(
        50, rel=0.1
    )


def test_without_finished_requests_the_step_time_is_still_found(tmp_path: Path) -> None:
    records = [record | {"finished": []} for record in request_trace(Truth(), steps=3000)]
    found = identify(read_step_trace(write_trace(tmp_path / "t.jsonl", records)))
    assert found.summary.identifiable
    assert found.latency is not None
    assert found.lengths is None
    assert [r.code for r in found.summary.refusals] == ["no-lengths"]


def test_prefill_cost_from_steps_of_their_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    records: list[dict[str, Any]] = []
    for record in request_trace(Truth(), steps=3000):
        if record["prefill_tokens"]:
            tokens = record["prefill_tokens"]
            took = (30 + 0.05 * tokens) * (1 + 0.02 * rng.normal())
            alone = {"kind": "prefill", "batch": 0, "duration_ms": took}
            records.append(record | alone | {"step": 2 * record["step"]})
        rest = {"prefill_tokens": 0, "step": 2 * record["step"] + 1, "sample_step": None}
        kind = "idle" if record["duration_ms"] is None else "decode"
        records.append(record | rest | {"kind": kind, "finished": record["finished"]})
    summary = identify(read_step_trace(write_trace(tmp_path / "t.jsonl", records))).summary
    assert summary.prefill_ms_per_token is not None
    assert summary.prefill_ms_per_token.lo <= 0.05 <= summary.prefill_ms_per_token.hi


def test_a_trace_without_decode_steps_is_refused_and_not_a_crash(tmp_path: Path) -> None:
    records = [r | {"kind": "idle", "duration_ms": None} for r in request_trace(Truth(), steps=50)]
    summary = identify(read_step_trace(write_trace(tmp_path / "t.jsonl", records))).summary
    assert summary.refusals[0].code == "too-short"


def test_scatter_that_hides_the_knee_is_refused(tmp_path: Path) -> None:
    """A third of a step of scatter: a line fits as well as the truth, so neither is claimed."""
    for seed in range(4):
        noisy = identified(tmp_path, Truth(noise=0.3, outliers=0.1), seed, steps=1500)
        if noisy.summary.identifiable:
            assert holds(noisy, Truth())
        else:
            assert noisy.summary.b0 is None


def test_an_engine_that_follows_kv_is_told_of_the_predictive_law(tmp_path: Path) -> None:
    truth = Truth(l_min_ms=8, alpha_ms=0, kappa_ms_per_token=4e-4, b0=64)
    found = identified(tmp_path, truth, h0_tokens=6000.0, load=1.0, mean_prompt=1500.0)
    refusal = found.summary.refusals[0]
    assert refusal.code == "knee-not-reached"
    assert "only predictive" in refusal.wanted
    assert found.summary.kappa_ms_per_token is not None
    assert found.summary.kappa_ms_per_token.lo <= 4e-4 <= found.summary.kappa_ms_per_token.hi


def test_idle_gaps_do_not_look_like_delay(tmp_path: Path) -> None:
    """One step in ten is a pass without a batch: the sample after it is old, not slow."""
    records = request_trace(Truth(delay_steps=1), steps=3000)
    last = None
    for record in records:
        known = record["sample_step"]
        record["sample_step"] = known if last is None or known is None else max(known - 5, 0)
        if record["step"] % 10 == 9:
            record |= {"kind": "idle", "duration_ms": None, "finished": []}
            last = record["step"]
        elif last is not None and record["step"] - last > 2:
            last, record["sample_step"] = None, known
    found = identify(read_step_trace(write_trace(tmp_path / "t.jsonl", records)))
    assert found.summary.delay is not None
    assert found.summary.delay.plausible_steps == (1,)
