"""What a demo runs, and a burst that makes the gate close and open on the machine at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from controllers.laws.base import FrozenModel
from twp_sglang.benchmarking.arrivals import Burst
from twp_sglang.benchmarking.lengths import parse_lengths
from twp_sglang.benchmarking.settings import RunSettings
from twp_sglang.config import PolicyName

CALM_SHARE = 1 / 6
"""Share of the requests that come before the burst: TWP learns its baseline from them."""

BURST_SHARE = 0.6
"""Share of the requests that come in the burst; the rest trickles in behind it."""

BURST_FACTOR = 12.0
"""The burst's rate over the calm one. On two cores a request takes about a second of the
engine's time and half a request a second comes in calm times, so the burst brings six
times what the engine can serve."""


class Traffic(FrozenModel):
    """How much is sent. Rate in requests per second outside the burst."""

    requests: int
    rate_rps: float


TRAFFIC_CPU = Traffic(requests=36, rate_rps=0.5)
"""About a minute on two cores."""

TRAFFIC_ACCELERATOR = Traffic(requests=400, rate_rps=20.0)
"""A 135M model on a GPU serves about a hundred times as fast; estimated, not tuned."""


class DemoSettings(FrozenModel):
    """One demo. ``requests`` and ``rate_rps`` unset are chosen by device."""

    policy: PolicyName = "twp"
    requests: int | None = Field(default=None, ge=1)
    rate_rps: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_tokens: int = Field(default=48, ge=1)
    """The paper's mean output; with its B0 = 8 the window holds about eight answers."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """None takes a free one."""
    out: Path
    start_timeout_s: float = Field(default=300.0, gt=0)
    """SGLang starts in 25 to 100 s on two cores, by what else runs there."""
    run_timeout_s: float = Field(default=300.0, gt=0)
    """Per request."""
    kv_tokens: int = Field(default=8192, ge=512)
    """KV cache: 0.4 GB in float32, four times what the window lets in."""
    engine_flags: tuple[str, ...] = ()


def traffic(settings: DemoSettings, device: str) -> Traffic:
    """Requests and rate: as given, else what fits the device the server reports."""
    default = TRAFFIC_CPU if device == "cpu" else TRAFFIC_ACCELERATOR
    return Traffic(
        requests=settings.requests or default.requests,
        rate_rps=settings.rate_rps or default.rate_rps,
    )


def burst_of(sent: Traffic) -> Burst:
    """The burst inside ``sent``, so that its shape stays when its size changes."""
    return Burst(
        factor=BURST_FACTOR,
        start_s=CALM_SHARE * sent.requests / sent.rate_rps,
        duration_s=BURST_SHARE * sent.requests / (BURST_FACTOR * sent.rate_rps),
    )


def replay_settings(settings: DemoSettings, sent: Traffic, url: str) -> RunSettings:
    """The demo's traffic as a run of the load generator."""
    return RunSettings(
        url=url,
        workload="gsm8k",
        api="openai-chat",
        json_path=settings.out / "bench.json",
        label=f"demo {settings.policy}",
        requests=sent.requests,
        rate_rps=sent.rate_rps,
        bursts=(burst_of(sent),),
        output_tokens=parse_lengths(str(settings.max_tokens)),
        prompts="text",
        timeout_s=settings.run_timeout_s,
        warmup=0,
        flush=False,
    )
