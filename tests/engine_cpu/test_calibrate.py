"""Calibration of the real engine on the tiny random model."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine_cpu.server import free_port, serving
from twp_sglang.calibration.profile import Profile, read_profile
from twp_sglang.serving import options

SHORT = (
    "--batches", "1,2,4,8", "--steps", "60", "--rounds", "3", "--contexts", "32",
    "--budget-s", "25",
)  # fmt: skip


def calibrate(out: Path, *flags: str) -> tuple[subprocess.CompletedProcess[str], Profile]:
    """Run the command line; 1 is no failure here: a busy machine may hide the knee."""
    done = subprocess.run(
        [sys.executable, "-m", "twp_sglang.calibrate", "--out", str(out), *flags],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done, read_profile(out)


def medians(profile: Profile) -> dict[int, float]:
    """Fastest visit of each batch size: the one that neighbours disturbed least."""
    sizes = {point.batch for point in profile.decode_points}
    return {
        b: min(p.median_ms for p in profile.decode_points if p.batch == b) for b in sorted(sizes)
    }


def test_launch_measures_and_leaves_no_server(model: Path, tmp_path: Path) -> None:
    port = free_port()
    out = tmp_path / "profile.json"
    flags = ["--model-path", str(model), "--load-format", "dummy", "--skip-tokenizer-init"]
    _, profile = calibrate(
        out, *SHORT, "--prefill", "32,64,192", "--mean-output-tokens", "40", "--launch", "--",
        *flags, "--max-total-tokens", "8192", "--port", str(port),
    )  # fmt: skip
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", port)) != 0
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
        config = options.parse(["--twp-profile", str(out)]).config
        assert config.l_min_ms == profile.l_min_ms
        plans_with_it(model, tmp_path, out)
    assert out.with_suffix(".png").stat().st_size > 10_000


def plans_with_it(model: Path, folder: Path, file: Path) -> None:
    """A server under policy slo starts with the profile's step model and objectives."""
    profile = read_profile(file)
    auto = ("--twp-itl-slo", "auto", "--twp-ttft-slo", "auto")
    flags = ("--twp-policy", "slo", "--twp-profile", str(file), *auto)
    with serving(model, folder, "--max-total-tokens", "8192", *flags) as server:
        assert server.generate(list(range(5, 40)), 8).status == 200
        state = server.twp()
    assert state["fallbacks"] == 0
    assert state["model_source"] == "calibrated"
    assert profile.c_ms is not None
    assert profile.a_ms is not None
    assert state["model"]["l_min_ms"] == profile.c_ms
    assert state["model"]["kappa_ms_per_token"] == profile.kappa_ms_per_token
    assert state["model"]["prefill_ms_per_token"] == profile.prefill_ms_per_token
    assert state["itl_slo_ms"] == pytest.approx(5 * (profile.c_ms + profile.a_ms), rel=1e-6)
    assert state["itl_slo_source"].endswith("calibrated")


def test_streams_and_trace_tell_the_same_of_one_server(model: Path, tmp_path: Path) -> None:
    trace = ("--twp-policy", "fcfs", "--twp-trace", str(tmp_path / "trace"))
    found = {}
    with serving(model, tmp_path, "--max-total-tokens", "8192", *trace) as server:
        for source in ("trace", "stream"):
            _, found[source] = calibrate(
                tmp_path / f"{source}.json", *SHORT, "--url", server.url, "--prefill", "none",
                "--no-png", "--source", source,
            )  # fmt: skip
            assert found[source].source == source
        server.wait_idle()
        assert server.twp()["fallbacks"] == 0
    traced, streamed = medians(found["trace"]), medians(found["stream"])
    for batch, step_ms in traced.items():
        assert streamed[batch] == pytest.approx(step_ms, rel=0.5)


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
