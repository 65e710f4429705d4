"""Small pools for the tests, with loading times that can be added up on paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.simulator.runs import affine, settings
from twp_sglang.config import TwpConfig
from twp_sglang.simulator.metrics import token_times
from twp_sglang.simulator.placement import PlacementName
from twp_sglang.simulator.pool_settings import PoolModel, PoolSettings
from twp_sglang.simulator.serverless import PoolRun, simulate_pool
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.step_models import StepModel
from twp_sglang.workloads.request import Request

RATES = {
    "remote_gb_per_s": 1.0,
    "nvme_gb_per_s": 5.0,
    "dram_gb_per_s": 10.0,
    "instance_start_ms": 100.0,
    "ordinary_slowdown": 2.0,
}
"""A checkpoint of 10 GB takes 10.1 s from remote, 2.1 s from NVMe, 1.1 s from memory; an
ordinary loader 4.1 s from NVMe and 2.1 s from memory."""


def model(name: str, **fields: Any) -> PoolModel:
    """10 GB; asked for by the client of the same name."""
    return PoolModel.model_validate(
        {"name": name, "checkpoint_gb": 10.0, "clients": (name,), **fields}
    )


def pool(*models: PoolModel, **fields: Any) -> PoolSettings:
    """Two nodes of one GPU, :data:`RATES`."""
    return PoolSettings.model_validate(
        {"nodes": 2, "gpus_per_node": 1, "models": models, "rates": RATES, **fields}
    )


def ask(at_s: float, prompt: int, output: int, client: str = "a") -> Request:
    """One request of the model that ``client`` names."""
    return Request(at_s, prompt, output, client=client)


def serve(
    workload: Sequence[Request],
    settings_of_pool: PoolSettings,
    placement: PlacementName = "plain",
    policy: str = "fcfs",
    *,
    engine: EngineSettings | None = None,
    step: StepModel | None = None,
    **options: Any,
) -> PoolRun:
    """Run ``workload``: 10 ms steps, chunks of 50 tokens, no overlap, unless told otherwise."""
    return simulate_pool(
        workload,
        engine or settings(step_kind="mixed", chunk_tokens=50),
        lambda: step or affine(),
        TwpConfig.model_validate({"policy": policy}),
        settings_of_pool,
        placement,
        **options,
    )


def tokens_ms(run: PoolRun, index: int) -> list[float]:
    """Times of the output tokens of a request, rounded to a microsecond."""
    request = run.run.requests[index]
    engine = run.run.engines[run.run.placed[index]]
    done = np.frombuffer(engine.decode_done_ms, dtype=np.float64)
    return [round(float(at), 3) for at in token_times(request, done).token_ms]


def homes(run: PoolRun) -> list[int]:
    """Node of each request's container."""
    return [run.pool.containers[which].gpu.node for which in run.run.placed]
