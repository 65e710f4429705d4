"""Calibration of the real engine on the tiny random model, and servers that take what it wrote."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.engine_cpu.calibrating import SHORT, calibrate, medians
from tests.engine_cpu.server import free_port, serving
from twp_sglang.calibration.profile import Profile
from twp_sglang.profile_step import main as profile_step
from twp_sglang.serving import options


class Launched(NamedTuple):
    """What a calibration wrote that started its server itself."""

    profile: Profile
    file: Path
    port: int


@pytest.fixture(scope="module")
def launched(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Launched:
    port = free_port()
    out = tmp_path_factory.mktemp("calibrate") / "profile.json"
    flags = ["--model-path", str(model), "--load-format", "dummy", "--skip-tokenizer-init"]
    _, profile = calibrate(
        out, *SHORT, "--prefill", "32,64,192", "--mean-output-tokens", "40", "--launch", "--",
        *flags, "--max-total-tokens", "8192", "--port", str(port),
    )  # fmt: skip
    return Launched(profile, out, port)


def test_launch_measures_and_leaves_no_server(launched: Launched) -> None:
    profile = launched.profile
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", launched.port)) != 0
    assert profile.source == "trace"
    assert profile.engine.policy == "fcfs"
    assert set(medians(profile)) == {1, 2, 4, 8}
    assert all(point.n == 60 for point in profile.decode_points)
    # With C = 64 beside decoding requests, 192 tokens are three chunks.
    assert {p.tokens: p.chunks for p in profile.prefill_points} == {32: 1, 64: 1, 192: 3}
    if profile.decode is None:
        # Neighbours on the machine disturbed too many visits: said, and nothing is claimed.
        assert profile.warnings
        assert profile.h0_tokens is None
        assert profile.l_min_ms is None
    else:
        assert profile.h0_tokens == pytest.approx(40.0 * profile.decode.b0)
        config = options.parse(["--twp-profile", str(launched.file)]).config
        assert config.l_min_ms == profile.l_min_ms
    assert launched.file.with_suffix(".png").stat().st_size > 10_000


def test_one_server_takes_the_profile_and_a_profiled_step_model(
    launched: Launched, model: Path, tmp_path: Path
) -> None:
    """The emulated engine takes steps as ``profile_step`` timed them here, and policy slo plans
    with what the calibration found, its objectives included."""
    steps = tmp_path / "measured-here.json"
    words = ["--model", "tiny", "--backend", "sdpa", "--device", "cpu", "--threads", "1"]
    grid = ["--batches", "1,2,4", "--contexts", "16,64", "--chunks", "8,32", "--repeats", "5"]
    assert profile_step([*words, *grid, "--out", str(steps)]) == 0
    flags = ["--twp-emulate", str(steps), "--twp-policy", "slo", "--max-total-tokens", "8192"]
    planned = launched.profile.decode is not None
    if planned:
        flags += ["--twp-profile", str(launched.file)]
        flags += ["--twp-itl-slo", "auto", "--twp-ttft-slo", "auto"]
    with serving(
        model,
        tmp_path,
        *flags,
        "--skip-server-warmup",
        environment={"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"},
        orderly=False,
    ) as server:
        # Before any step: these are of another engine than the calibrated one, and policy slo
        # gives up a profile that its steps contradict.
        at_start = server.twp()
        reply = server.generate([5, 6, 7, 8], 12)
        assert reply.status == 200
        assert reply.body["meta_info"]["completion_tokens"] == 12
        state = server.twp()
    assert state["emulated_profile"] == "measured-here"
    assert state["fallbacks"] == 0
    # What the step profile says of memory is for servers that are not told otherwise.
    assert json.loads(steps.read_text())["kv_tokens"] > 8192
    if planned:
        _plans_with(launched.profile, at_start)


def _plans_with(profile: Profile, state: dict[str, Any]) -> None:
    assert state["model_source"] == "calibrated"
    assert profile.c_ms is not None
    assert profile.a_ms is not None
    assert state["model"]["l_min_ms"] == profile.c_ms
    assert state["model"]["kappa_ms_per_token"] == profile.kappa_ms_per_token
    assert state["model"]["prefill_ms_per_token"] == profile.prefill_ms_per_token
    assert state["itl_slo_ms"] == pytest.approx(5 * (profile.c_ms + profile.a_ms), rel=1e-6)
    assert state["itl_slo_source"].endswith("calibrated")


def test_a_server_that_refuses_its_flags_is_status_2_with_its_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "twp_sglang.calibrate", "--out", str(tmp_path / "p.json"),
            "--launch", "--", "--model-path", "nothing", "--twp-gamma", "-1",
        ],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "gamma" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "p.json").exists()
