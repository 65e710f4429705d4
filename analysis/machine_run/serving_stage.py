"""One setting on a real server: started, calibrated where asked, given the traffic, stopped."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from rich.console import Console

from analysis.judging.engine import JudgementError, serving, twp_of
from analysis.machine_run.commands import run_module
from analysis.machine_run.engine_set_up import EngineSetUp
from analysis.machine_run.traffic import (
    CPU_LENGTHS,
    GPU_LENGTHS,
    Traffic,
    mean_tokens,
    sized,
)
from analysis.sweeping.served import metrics_of, window_swing
from twp_sglang.benchmarking.results import read_report
from twp_sglang.calibration.profile import Profile, read_profile

_PATIENCE = 4.0
"""Times its expected length before traffic is given up: an overloaded engine drains slowly."""

_CPU_CALIBRATION = (
    *("--batches", "1,2,3,4,6,8,12,16", "--steps", "24", "--rounds", "2"),
    *("--contexts", "32", "--prefill", "32,64,128"),
)
_GPU_CALIBRATION = ("--max-batch", "128", "--contexts", "64,512")
"""Two contexts on a GPU, where KV tokens carry much of a step."""

_TWO_ROUNDS_S = 100.0
"""One round of that takes most of a minute; a second one shows drift."""


class StageFailed(RuntimeError):
    """A stage that has not reached its aim; the message is one line.

    ``content`` is what it found all the same.
    """

    def __init__(self, message: str, content: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.content = content or {}


class Served(NamedTuple):
    """What a serving stage found, and what it took."""

    content: dict[str, Any]
    start_s: float
    calibrate_s: float
    traffic_s: float


class Orders(NamedTuple):
    """What a serving stage is to do beyond starting a server.

    Attributes:
        flags: of this setting.
        traffic: None where it is to be sized by a calibration of this very server.
        calibrate_s: budget of that calibration.
        traffic_s: length of the traffic to be sized.
    """

    flags: tuple[str, ...]
    traffic: Traffic | None
    calibrate_s: float = 0.0
    traffic_s: float = 0.0


async def serve(
    set_up: EngineSetUp,
    orders: Orders,
    folder: Path,
    console: Console,
    *,
    load: float,
    burst_factor: float,
    seed: int,
    slo: str,
) -> Served:
    """Serve with ``orders`` and measure.

    Raises:
        StageFailed: the server did not start, or nothing could be measured.
    """
    begun = time.monotonic()
    calibrate_s = 0.0
    try:
        async with (
            serving([*set_up.flags, *orders.flags], folder, console) as engine,
            aiohttp.ClientSession(trust_env=False) as session,
        ):
            start_s = time.monotonic() - begun
            traffic = orders.traffic
            content: dict[str, Any] = {}
            if traffic is None:
                before = time.monotonic()
                profile = await _calibrated(set_up, engine.url, folder, orders.calibrate_s)
                calibrate_s = time.monotonic() - before
                traffic = sized(
                    profile,
                    GPU_LENGTHS if set_up.gpu else CPU_LENGTHS,
                    load=load,
                    seconds=orders.traffic_s,
                    burst_factor=burst_factor,
                    seed=seed,
                )
                content["calibration"] = _short(profile)
            first_pass = int(twp_of(await engine.info(session))["pass"])
            before = time.monotonic()
            metrics, cautions = await _loaded(engine.url, traffic, folder, slo)
            traffic_s = time.monotonic() - before
            info = await engine.info(session)
            state = twp_of(info)
            content |= {
                "flags": list(orders.flags),
                "traffic": traffic.model_dump(mode="json"),
                "cautions": cautions,
                "passes": [first_pass, int(state["pass"])],
                "deciding": bool(state.get("deciding")),
                "fallbacks": int(state.get("fallbacks") or 0),
                "config": state.get("config"),
                "kv_tokens": info.get("max_total_num_tokens"),
                "emulated": bool(state.get("emulated")),
                "attention_backend": info.get("attention_backend"),
                "sglang": info.get("version"),
            }
    except JudgementError as error:
        raise StageFailed(_one_line(str(error), folder)) from None
    except TimeoutError:
        raise StageFailed(
            f"took more than {_PATIENCE:g} times its expected length; see {folder}"
        ) from None
    swing = window_swing(folder / "steps")
    content["metrics"] = {**metrics, **swing}
    return Served(content, start_s, calibrate_s, traffic_s)


async def _calibrated(set_up: EngineSetUp, url: str, folder: Path, budget_s: float) -> Profile:
    out = folder / "profile.json"
    output = mean_tokens((GPU_LENGTHS if set_up.gpu else CPU_LENGTHS)[1])
    words = [
        *("--url", url, "--out", str(out), "--budget-s", f"{budget_s:g}"),
        *("--mean-output-tokens", f"{output:g}"),
        *(_GPU_CALIBRATION if set_up.gpu else _CPU_CALIBRATION),
    ]
    if set_up.gpu:
        words += ["--rounds", "2" if budget_s >= _TWO_ROUNDS_S else "1"]
    ended = await run_module(
        "twp_sglang.calibrate", words, folder / "calibrate.log", _PATIENCE * budget_s + 30.0
    )
    if ended.status == 2 or not out.exists():
        raise StageFailed(f"calibrate: {ended.last_line}")
    return read_profile(out)


async def _loaded(
    url: str, traffic: Traffic, folder: Path, slo: str
) -> tuple[dict[str, Any], list[str]]:
    out = folder / "bench.json"
    words = ["run", "--url", url, "--json", str(out), *traffic.bench_words(slo)]
    ended = await run_module(
        "twp_sglang.bench", words, folder / "bench.log", _PATIENCE * traffic.seconds + 60.0
    )
    if not out.exists():
        raise StageFailed(f"bench: {ended.last_line}")
    report = read_report(out)
    metrics = metrics_of(report)
    if "error" in metrics:
        raise StageFailed(f"bench: {metrics['error']}")
    metrics["completed"] = report.summary.completed
    metrics["failed"] = sum(report.summary.failed.values())
    return metrics, list(report.summary.cautions)


def _short(profile: Profile) -> dict[str, Any]:
    """What the report says of a calibration."""
    decode = profile.decode
    return {
        "l_min_ms": profile.l_min_ms,
        "b0": profile.b0,
        "alpha_ms": profile.alpha_ms,
        "h0_tokens": profile.h0_tokens,
        "prefill_ms_per_token": profile.prefill_ms_per_token,
        "shape": None if decode is None else decode.shape,
        "complete": profile.complete,
        "warnings": list(profile.warnings),
    }


_TELLING = ("error", "Error", "out of memory", "launch_server:", "No module", "not supported")


def _one_line(text: str, folder: Path) -> str:
    """What became of the server, and the line of its last words that tells most."""
    summary, *words = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in words if any(sign in line for sign in _TELLING)]
    last = (telling or words or [""])[-1]
    return f"{summary.partition(' (whole log')[0]}: {last[:300]} (log: {folder / 'server.log'})"
