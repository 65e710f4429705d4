"""The command line against an engine-like HTTP peer with a known step time."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.unit.calibration.calibration_peer import EnginePeer, serving
from twp_sglang.calibrate import _shown, main
from twp_sglang.calibration.arguments import settings_from
from twp_sglang.calibration.errors import CalibrationError
from twp_sglang.calibration.launched import complete
from twp_sglang.calibration.plan import DecodeTask, half_octaves, make_plan
from twp_sglang.calibration.profile import Profile, read_profile
from twp_sglang.calibration.run import calibrate
from twp_sglang.calibration.server import Server
from twp_sglang.config_values import OptionsError
from twp_sglang.serving import options


def step_ms(batch: int) -> float:
    return 10.0 + 3.0 * max(batch - 4, 0)


SMALL = ("--batches", "1,2,4,6,8,10", "--steps", "36", "--rounds", "1", "--contexts", "8")


async def run(peer: EnginePeer, out: Path, *flags: str) -> tuple[int, Profile]:
    settings = settings_from(["--url", peer.url, "--out", str(out), *flags])
    status = await calibrate(settings, Console(quiet=True), "test")
    return status, read_profile(out)


async def failing(peer: EnginePeer, out: Path, *flags: str) -> CalibrationError:
    with pytest.raises(CalibrationError) as caught:
        await run(peer, out, *flags)
    return caught.value


async def test_trace_gives_the_known_step_time_and_a_profile_for_the_server(tmp_path: Path) -> None:
    trace = tmp_path / "steps.jsonl"
    trace.write_text("{}\n")
    flags = (*SMALL, "--prefill", "100,200", "--mean-output-tokens", "50")
    async with serving(EnginePeer(lambda batch: step_ms(batch) / 4, trace=trace)) as peer:
        status, profile = await run(peer, tmp_path / "p.json", *flags)
        assert len({tuple(prompt) for prompt in peer.prompts}) == len(peer.prompts)
        assert peer.flushes == 1
    assert status == 0
    assert profile.source == "trace"
    assert profile.complete
    assert profile.b0 == 4
    assert profile.l_min_ms == pytest.approx(2.5, rel=0.02)
    assert profile.alpha_ms == pytest.approx(0.75, rel=0.03)
    assert profile.prefill_ms_per_token == pytest.approx(0.05, rel=0.05)
    assert profile.h0_tokens == 4 * 50
    assert profile.window.safe_h0_tokens == pytest.approx(5 * 25.5 / 2)
    assert {p.batch: p.n for p in profile.decode_points} == dict.fromkeys((1, 2, 4, 6, 8, 10), 36)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    config = options.parse(["--twp-profile", str(tmp_path / "p.json")]).config
    assert (config.b0, config.h0_tokens) == (4, 200.0)
    assert config.l_min_ms == profile.l_min_ms
    # The peer's step is flat up to 4 rows and 0.75 ms longer for each row above.
    model = config.step_model()
    assert model is not None
    assert model.l_min_ms == profile.c_ms == pytest.approx(2.5, rel=0.03)
    assert model.alpha_ms == profile.alpha_ms
    assert model.step_ms(10) == pytest.approx(2.5 + 0.75 * 6, rel=0.03)
    assert model.prefill_ms_per_token == profile.prefill_ms_per_token
    assert config.prefill_free_tokens == profile.prefill_free_tokens


async def test_streams_give_nearly_the_same(tmp_path: Path) -> None:
    async with serving(EnginePeer(step_ms)) as peer:
        status, profile = await run(peer, tmp_path / "p.json", *SMALL, "--prefill", "none")
    assert status == 0
    assert profile.source == "stream"
    at = {p.batch: p.median_ms for p in profile.decode_points}
    # Timers wake late, never early: the bounds are one-sided.
    for batch, seen in at.items():
        assert 0.97 * step_ms(batch) <= seen <= 1.5 * step_ms(batch) + 2.0
    assert profile.h0_tokens is None
    assert "output lengths" in profile.window.explanation


async def test_spent_budget_leaves_what_was_measured(tmp_path: Path) -> None:
    flags = ("--batches", "1,2,3,4", "--steps", "8", "--rounds", "50", "--budget-s", "3")
    async with serving(EnginePeer(step_ms)) as peer:
        _, profile = await run(peer, tmp_path / "p.json", *flags, "--prefill", "none")
    assert not profile.complete
    assert 0 < len(profile.decode_points) < 200
    assert any("--budget-s" in warning for warning in profile.warnings)


async def test_too_little_for_a_fit_is_status_1_and_no_profile_to_serve(tmp_path: Path) -> None:
    flags = ("--batches", "1,2,3,4", "--steps", "8", "--rounds", "1", "--prefill", "none")
    async with serving(EnginePeer(step_ms)) as peer:
        status, profile = await run(peer, tmp_path / "p.json", *flags)
    assert status == 1
    assert profile.l_min_ms is None
    assert any(warning.startswith("no fit:") for warning in profile.warnings)
    with pytest.raises(OptionsError, match="holds none of"):
        options.parse(["--twp-profile", str(tmp_path / "p.json")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers_info": False}, "not as SGLang"),
        ({"twp": {"policy": "twp", "deciding": True}}, "--twp-policy fcfs"),
        ({"info": {"speculative_algorithm": "EAGLE"}}, "speculatively"),
        ({"info": {"dp_size": 2}}, "one replica"),
        ({"info": {"max_total_num_tokens": 400}}, "batch 4 does not fit: .*KV cache"),
        ({"refuse": "model is broken"}, "model is broken"),
    ],
)
async def test_a_server_that_cannot_be_calibrated_is_status_2(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    async with serving(EnginePeer(step_ms, **change)) as peer:
        error = await failing(peer, tmp_path / "p.json", "--batches", "1,2,3,4")
    assert error.status == 2
    assert re.search(message, str(error))
    assert not (tmp_path / "p.json").exists()


async def test_a_busy_server_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twp_sglang.calibration.run._IDLE_AT_START_S", 0.2)
    async with serving(EnginePeer(step_ms, foreign=3)) as peer:
        error = await failing(peer, tmp_path / "p.json")
    assert error.status == 2
    assert "3 requests run or wait" in str(error)


async def test_traffic_that_starts_later_ends_the_run_with_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twp_sglang.calibration.sweep._IDLE_LIMIT_S", 0.2)
    flags = ("--batches", "1,2,3,4", "--steps", "8", "--prefill", "none")
    async with serving(EnginePeer(step_ms)) as peer:

        async def others() -> None:
            while len(peer.prompts) < 12:
                await asyncio.sleep(0.01)
            peer.foreign = 2

        intruder = asyncio.create_task(others())
        error = await failing(peer, tmp_path / "p.json", *flags)
        await intruder
    assert error.status == 1
    assert "somebody else" in str(error)
    profile = read_profile(tmp_path / "p.json")
    assert profile.decode_points
    assert not profile.complete


async def test_ctrl_c_writes_what_was_measured(tmp_path: Path) -> None:
    flags = ("--batches", "1,2,3,4", "--steps", "16", "--rounds", "60", "--prefill", "none")
    async with serving(EnginePeer(step_ms)) as peer:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "twp_sglang.calibrate", "--url", peer.url, "--out",
            str(tmp_path / "p.json"), "--no-png", *flags,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        while len(peer.prompts) < 25:
            await asyncio.sleep(0.05)
            assert process.returncode is None
        process.send_signal(signal.SIGINT)
        _, error = await asyncio.wait_for(process.communicate(), 30.0)
    assert process.returncode == 1
    assert b"interrupted; what was measured is in" in error
    assert b"Traceback" not in error
    profile = read_profile(tmp_path / "p.json")
    assert not profile.complete
    assert len(profile.decode_points) >= 4
    assert "interrupted: only part of the plan was measured" in profile.warnings


def test_no_server_is_one_message_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["--url", "http://127.0.0.1:9", "--out", str(tmp_path / "p.json")])
    assert status == 2
    error = capsys.readouterr().err
    assert error.startswith("calibrate: no server answers at http://127.0.0.1:9")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "either --url"),
        (["--url", "http://h:1", "--batches", "8"], "fewer than 4"),
        (["--url", "http://h:1", "--steps", "2"], "--steps 2"),
        (["--url", "http://h:1", "--budget-s", "nan"], "--budget-s nan"),
        (["--url", "http://h:1", "--out", "p.toml"], "must end in .json"),
        (["--url", "http://h:1", "--", "--model-path", "m"], "belong to --launch"),
        (["--launch"], "after '--'"),
        (["--url", "http://h:1", "--mean-output-tokens", "5", "--output-lengths", "const:9"],
         "one of the two"),
        (["--url", "http://h:1", "--out", "/proc/deep/p.json"], "cannot be written"),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_message_and_status_2(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_unknown_flag_exits_2() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--url", "http://h:1", "--batch", "3"])
    assert caught.value.code == 2


def test_secrets_of_a_launched_server_stay_out_of_the_profile() -> None:
    shown = _shown(["--launch", "--", "--api-key", "abc", "--admin-api-key=xyz", "--tp", "2"])
    assert "abc" not in shown
    assert "xyz" not in shown
    assert "--tp 2" in shown


def test_launched_server_gets_what_it_lacks_and_keeps_what_was_given(tmp_path: Path) -> None:
    words, url = complete(["--model-path", "m", "--port", "4321"], tmp_path)
    assert url == "http://127.0.0.1:4321"
    assert words[words.index("--twp-policy") + 1] == "fcfs"
    assert words[words.index("--twp-trace") + 1] == str(tmp_path)
    words, _ = complete(["--twp-policy=off"], tmp_path)
    assert "--twp-trace" not in words
    with pytest.raises(CalibrationError, match="gate would change"):
        complete(["--twp-policy", "twp"], tmp_path)


def server(**changes: Any) -> Server:
    facts: dict[str, Any] = dict.fromkeys(field.name for field in fields(Server))
    facts |= {"url": "http://127.0.0.1:1", "device": "cpu", "kv_tokens": 8192, "chunk_tokens": 64}
    return Server(**(facts | changes))


def test_default_batches_shrink_to_what_the_cache_holds_and_say_so() -> None:
    settings = settings_from(["--url", "http://h:1"])
    plan = make_plan(settings, server(kv_tokens=4096))
    batches = [task.batch for task in plan.tasks if isinstance(task, DecodeTask)]
    assert batches[0] == 1
    assert 8 <= max(batches) < 32
    assert any("left out" in note and "KV cache" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("changes", "longest", "batches"),
    [
        ({"kv_tokens": 100_000}, 512, {2, 4, 8}),
        ({"kv_tokens": 400_000, "device": "cuda"}, 512, {32, 64, 128}),
        ({"kv_tokens": 400_000, "emulated": True}, 512, {32, 64, 128}),
        ({"kv_tokens": 100_000, "max_prompt_tokens": 300}, 256, {4, 8, 16}),
    ],
)
def test_a_few_long_contexts_are_planned_beside_the_batch_sizes(
    changes: dict[str, Any], longest: int, batches: set[int]
) -> None:
    plan = make_plan(settings_from(["--url", "http://h:1"]), server(**changes))
    decodes = [task for task in plan.tasks if isinstance(task, DecodeTask)]
    assert {t.batch for t in decodes if t.context_tokens == longest} == batches
    assert {t.context_tokens for t in decodes} == {64, longest}


def test_stated_contexts_are_all_and_a_small_server_says_what_it_cannot_tell() -> None:
    stated = settings_from(["--url", "http://h:1", "--contexts", "32,48"])
    decodes = [t for t in make_plan(stated, server()).tasks if isinstance(t, DecodeTask)]
    assert {t.context_tokens for t in decodes} == {32, 48}
    plan = make_plan(settings_from(["--url", "http://h:1"]), server(max_prompt_tokens=200))
    assert any("what a KV token costs" in note for note in plan.notes)


def test_a_plan_is_shuffled_anew_each_round_and_the_same_for_a_seed() -> None:
    plan = make_plan(settings_from(["--url", "http://h:1"]), server(kv_tokens=100_000))
    first, second = plan.shuffled(0, 7), plan.shuffled(1, 7)
    assert sorted(map(str, first)) == sorted(map(str, second))
    assert first != second
    assert first == plan.shuffled(0, 7)


def test_half_octaves() -> None:
    assert half_octaves(20) == (1, 2, 3, 4, 6, 8, 12, 16, 20)


def test_profile_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"l_min_ms": 3}))
    with pytest.raises(ValueError, match="not a profile"):
        read_profile(path)
