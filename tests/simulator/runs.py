"""Small runs for the tests: workloads by hand, step models that can be added up on paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from twp_sglang.config import TwpConfig
from twp_sglang.simulator.live_request import LiveRequest
from twp_sglang.simulator.metrics import token_times
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.simulate import Run, simulate
from twp_sglang.simulator.step_models import Affine, AffineStep, StepModel
from twp_sglang.workloads.request import Request


def affine(**terms: float) -> Affine:
    """10 ms per step unless ``terms`` say otherwise."""
    return Affine(AffineStep.model_validate({"l_min_ms": 10.0, **terms}))


def settings(**fields: Any) -> EngineSettings:
    """Stock, without overlap, so that every pass sees the step before."""
    return EngineSettings.model_validate({"kv_tokens": 100_000, "overlap": False, **fields})


def serve(
    workload: Sequence[Request],
    policy: str = "off",
    *,
    engine: EngineSettings | None = None,
    model: StepModel | None = None,
    leap: bool = True,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> Run:
    """Run ``workload`` under ``policy``."""
    return simulate(
        workload,
        engine or settings(),
        lambda: model or affine(),
        TwpConfig.model_validate({"policy": policy, **(config or {})}),
        leap=leap,
        **options,
    )


def tokens_ms(run: Run, index: int) -> list[float]:
    """Times of the output tokens of request ``index``, rounded to a microsecond."""
    request = run.requests[index]
    times = token_times(request, run.decode_done_ms(run.placed[index])).token_ms
    return [round(float(value), 3) for value in times]


def ttft_s(run: Run, index: int) -> float:
    """Time to first token, infinite without one."""
    request: LiveRequest = run.requests[index]
    if not request.segments:
        return math.inf
    return (request.segments[0].first_token_ms - request.arrival_ms) / 1e3


def longest_gap_s(run: Run, indices: Sequence[int] | None = None) -> float:
    """Longest inter-token gap of some or all requests."""
    gaps = [0.0]
    for index in range(len(run.requests)) if indices is None else indices:
        times = token_times(run.requests[index], run.decode_done_ms(run.placed[index])).token_ms
        if len(times) > 1:
            gaps.append(float(np.diff(times).max()) / 1e3)
    return max(gaps)
