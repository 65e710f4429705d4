"""Step models: arithmetic, tables, profiles, replay, scatter."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.models.latency import LatencyModel
from tests.simulator.runs import affine, serve, settings
from twp_sglang.config import TwpConfig
from twp_sglang.simulator.step_models import StepTimer, Table, TableStep
from twp_sglang.simulator.step_replay import replay_file
from twp_sglang.simulator.step_sources import data_dir, off_record, step_source
from twp_sglang.simulator.steps import StepFile, header_for
from twp_sglang.step_profiles import ProfileError, named_profile, profile_names, read_profile
from twp_sglang.workloads.request import Request

TABLE = TableStep(
    rows=(1, 8, 32),
    context_tokens=(512, 1024, 2048),
    decode_ms=((6.0, 6.2, 6.6), (6.4, 7.0, 8.2), (8.0, 10.0, None)),
    prefill_ms_per_token=0.01,
    prefill_free_tokens=100,
)


@given(st.integers(1, 300), st.integers(0, 10**6), st.integers(1, 50))
def test_steps_ahead_equal_single_steps_to_the_bit(rows: int, kv: int, steps: int) -> None:
    for model in (
        affine(b0=8, alpha_ms=0.3, a_ms=0.01, kappa_ms_per_token=4.15e-5),
        Table(TABLE),
    ):
        ahead = model.decode_steps_ms(rows, kv, steps)
        singly = [model.step_ms(rows, kv + i * rows, 0) for i in range(steps)]
        assert ahead.tolist() == singly


def test_affine_terms_add_up() -> None:
    model = affine(
        b0=4,
        alpha_ms=2,
        a_ms=0.5,
        kappa_ms_per_token=0.001,
        prefill_ms_per_token=0.1,
        prefill_free_tokens=20,
    )
    assert model.step_ms(6, 1000, 50) == pytest.approx(10 + 3 + 4 + 1 + 3)
    assert model.step_ms(4, 0, 20) == pytest.approx(10 + 2)


def test_a_table_gives_its_points_and_the_line_between_them() -> None:
    table = Table(TABLE)
    assert table.step_ms(8, 8 * 1024, 0) == pytest.approx(7.0)
    assert table.step_ms(8, 8 * 1536, 0) == pytest.approx(7.6)
    # The unmeasured corner follows the slope of its row: 10 + 2 * (2048 - 1024) / 512.
    assert table.step_ms(32, 32 * 2048, 0) == pytest.approx(14.0)
    assert table.step_ms(8, 8 * 512, 300) == pytest.approx(6.4 + 2.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": (8, 1, 32)}, "rows must ascend"),
        ({"decode_ms": ((1.0, 2.0, 3.0),)}, "3 lines of 3 values"),
        ({"decode_ms": ((1.0, None, None),) * 3}, "fewer than two measured contexts at 1 rows"),
    ],
)
def test_a_table_that_is_no_grid_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Table(TABLE.model_copy(update=change))


@pytest.mark.parametrize("name", profile_names())
def test_profiles_name_their_sources_and_what_they_leave_out(name: str) -> None:
    profile = named_profile(name)
    assert profile.name == name
    assert profile.sources
    assert profile.leaves_out
    assert profile.kv_tokens
    model = step_source(name).model
    assert 1.0 < model.step_ms(1, 100, 0) < model.step_ms(64, 200_000, 0) < 500.0


def test_the_profiles_that_were_promised_are_there() -> None:
    assert {
        "h100-llama31-8b",
        "h200-llama31-8b",
        "a100-llama31-8b",
        "l40s-llama31-8b",
        "h100-llama31-70b-tp4",
        "paper-v100",
    } <= set(profile_names())


@pytest.mark.skipif(data_dir() is None, reason="no data folder (TWP_DATA_DIR)")
@pytest.mark.parametrize(
    ("which", "profile"),
    [
        ("llama31_8b/h100_sxm_sglang_0.5.14", "h100-llama31-8b"),
        ("llama31_8b/h200_sxm_sglang_0.5.14", "h200-llama31-8b"),
        ("llama31_8b/a100_sxm_vllm_0.14.0", "a100-llama31-8b"),
        ("llama31_8b/l40s_sglang_0.5.14", "l40s-llama31-8b"),
        ("llama31_70b_tp4/h100_sxm_sglang_0.5.14", "h100-llama31-70b-tp4"),
    ],
)
def test_profiles_agree_with_the_tables_they_come_from(which: str, profile: str) -> None:
    table, model = step_source(f"table:{which}").model, step_source(profile).model
    errors = [
        model.step_ms(rows, rows * context, 0) / table.step_ms(rows, rows * context, 0) - 1
        for rows in (1, 8, 32, 64, 128)
        for context in (512, 2048, 4096)
        if rows * context <= 300_000
    ]
    assert np.abs(errors).mean() < 0.05
    assert np.abs(errors).max() < 0.14


def test_an_unknown_profile_lists_those_there_are() -> None:
    with pytest.raises(ProfileError, match=r"'b200': no such profile.* are a100-llama31-70b-tp4,"):
        step_source("b200")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must hold one JSON object"),
        ('{"l_min_ms": -1}', r"l_min_ms = -1"),
        ('{"b0": 4}', "l_min_ms"),
        ('{"name": "x", "step": {"kind": "cubic"}}', "step"),
    ],
)
def test_a_bad_model_file_names_the_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message):
        read_profile(path)


def test_a_flat_file_of_terms_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"l_min_ms": 20, "b0": 4, "alpha_ms": 1, "fitted": "by hand"}))
    assert step_source(str(path)).model.step_ms(6, 0, 0) == 22.0


def test_the_profile_of_a_calibration_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    terms = LatencyModel(l_min_ms=20, b0=4, alpha_ms=1, kappa_ms_per_token=0.001)
    profile: dict[str, object] = {
        "schema_version": "twp-profile/1",
        "l_min_ms": 24.0,  # at the knee, not the model's constant
        "decode": {"model": terms.model_dump()},
        "prefill_ms_per_token": 0.05,
        "engine": {"kv_tokens": 5000, "chunk_tokens": None},
        "decode_points": [],
    }
    path.write_text(json.dumps(profile))
    source = step_source(str(path))
    assert source.model.step_ms(6, 1000, 100) == pytest.approx(28.0)
    assert source.profile is not None
    assert source.profile.kv_tokens == 5000
    in_doubt = {"model": None, "predicts": terms.model_dump()}
    path.write_text(json.dumps({**profile, "decode": in_doubt, "prefill_free_tokens": 80}))
    assert step_source(str(path)).model.step_ms(6, 1000, 100) == pytest.approx(24.0)
    path.write_text(json.dumps({**profile, "decode": None}))
    with pytest.raises(ProfileError, match="could not fit a decode step time"):
        step_source(str(path))


def test_a_recorded_run_replays_to_the_same_times(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    model = affine(kappa_ms_per_token=0.001, a_ms=0.2, prefill_ms_per_token=0.05)
    workload = [Request(0.0, 50 + i, 20 + i % 7) for i in range(40)]
    engine = settings(overlap=False)
    config = TwpConfig(policy="off")
    with StepFile(path, header_for(engine, config, "m")) as sink:
        recorded = serve(workload, engine=engine, model=model, sinks=[sink], noise=0.1, seed=3)
    replay = replay_file(path)
    again = serve(workload, engine=engine, model=replay)
    # The first step follows an idle engine and has no duration; all others are the record's.
    assert off_record(replay) == 1
    np.testing.assert_allclose(
        np.diff(again.decode_done_ms()), np.diff(recorded.decode_done_ms()), atol=1e-3
    )


def test_a_replay_needs_steps(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    with StepFile(path, header_for(settings(), TwpConfig(), "m")):
        pass
    with pytest.raises(ValueError, match="steps"):
        replay_file(path)


def test_scatter_has_mean_one_and_its_own_seed() -> None:
    timers = [StepTimer(affine(), 0.2, seed) for seed in (1, 1, 2)]
    draws = [[timer.step_ms(1, 0, 0) for _ in range(20_000)] for timer in timers]
    assert draws[0] == draws[1] != draws[2]
    assert np.mean(draws[0]) == pytest.approx(10.0, rel=0.01)
    assert np.std(np.log(draws[0])) == pytest.approx(0.2, rel=0.03)
    with pytest.raises(ValueError, match="noise"):
        StepTimer(affine(), -0.1)
