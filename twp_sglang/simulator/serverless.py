"""One run of a workload on a serverless pool."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from controllers.laws.base import FrozenModel
from twp_sglang.config import TwpConfig
from twp_sglang.latency_metrics import Distribution, Slo, distribution
from twp_sglang.simulator.container_pool import ContainerPool
from twp_sglang.simulator.containers import Container
from twp_sglang.simulator.engine import Engine
from twp_sglang.simulator.live_request import LiveRequest
from twp_sglang.simulator.placement import PlacementName, build_placement
from twp_sglang.simulator.pool_settings import TIERS, PoolModel, PoolSettings
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.simulate import Run, live_requests, policy_of, result_of
from twp_sglang.simulator.step_models import StepModel, StepTimer
from twp_sglang.workloads.request import Request

_SHARES = 7
"""Tells the draw of models apart from other draws by the same seed."""


class PoolStats(FrozenModel):
    """What the pool did.

    Attributes:
        requests: per model.
        cold_starts: containers started, by the tier that their checkpoint came from.
        loading_ms: of those starts, queue on the node included.
        startup_ms: cs of equation (1) over the requests that had any: from arrival until a
            container was ready.
        warm_requests: requests without.
        migrations, migrated_requests, recomputed_tokens: live migrations, requests that had
            begun and moved, tokens computed again for them.
        closed: containers closed before the end, by reason.
        container_s: GPU seconds that containers held, loading included.
    """

    requests: dict[str, int]
    cold_starts: dict[str, int]
    loading_ms: Distribution
    startup_ms: Distribution
    warm_requests: int
    migrations: int
    migrated_requests: int
    recomputed_tokens: int
    closed: dict[str, int]
    container_s: float


class PoolRun(NamedTuple):
    """A finished run on a pool. ``run.placed`` holds the (last) container of each request."""

    run: Run
    stats: PoolStats
    pool: ContainerPool


def models_of(workload: Sequence[Request], settings: PoolSettings, seed: int) -> list[PoolModel]:
    """The model of each request: its client's, or drawn by the shares."""
    by_client = {client: model for model in settings.models for client in model.clients}
    shares = np.array([model.share for model in settings.models])
    drawn = np.random.default_rng([seed, _SHARES]).choice(
        len(settings.models), size=len(workload), p=shares / shares.sum()
    )
    return [
        by_client.get(request.client) or settings.models[which]
        for request, which in zip(workload, drawn, strict=True)
    ]


def simulate_pool(
    workload: Sequence[Request],
    settings: EngineSettings,
    model: Callable[[], StepModel],
    config: TwpConfig,
    pool: PoolSettings,
    placement: PlacementName = "plain",
    *,
    noise: float = 0.0,
    seed: int = 0,
    slos: Sequence[Slo] = (),
    progress: Callable[[int], None] | None = None,
    leap: bool = True,
) -> PoolRun:
    """Serve ``workload`` on a pool of containers and summarise.

    Arguments as in :func:`~twp_sglang.simulator.simulate.simulate`; ``settings`` and
    ``model`` are those of every container, whatever model it holds.

    Raises:
        ValueError: arrivals out of order.
        SimulationStalled: a policy admits nobody to an idle engine.
    """
    began = time.perf_counter()
    if not any(request.prefix for request in workload):
        settings = settings.model_copy(update={"prefix_cache": False})
    live = live_requests(workload)
    left = 0

    def make_engine(container: Container, ready_ms: float) -> Engine:
        def on_left(request: LiveRequest) -> None:
            nonlocal left
            container.left(request)
            left += 1
            if progress is not None:
                progress(left)

        return Engine(
            settings,
            StepTimer(model(), noise, seed + container.index),
            policy_of(config),
            leap=leap,
            start_ms=ready_ms,
            on_left=on_left,
        )

    served = ContainerPool(pool, settings, build_placement(placement), model(), make_engine)
    asked = models_of(workload, pool, seed)
    served.serve(list(zip(live, asked, strict=True)))
    engines = [c.engine for c in served.containers if c.engine is not None]
    placed = [served.placed[request.index] for request in live]
    result = result_of(live, engines, placed, slos, began)
    return PoolRun(Run(result, live, engines, placed), _stats(served, asked), served)


def _stats(pool: ContainerPool, asked: Sequence[PoolModel]) -> PoolStats:
    tiers = Counter(start.load.tier for start in pool.starts)
    delayed = [delay for delay in pool.startup_ms.values() if delay > 0]
    counts = Counter(model.name for model in asked)
    return PoolStats(
        requests={model.name: counts[model.name] for model in pool.settings.models},
        cold_starts={tier: tiers[tier] for tier in TIERS},
        loading_ms=distribution([s.load.queued_ms + s.load.load_ms for s in pool.starts]),
        startup_ms=distribution(delayed),
        warm_requests=len(asked) - len(delayed),
        migrations=len(pool.moves),
        migrated_requests=sum(move.requests for move in pool.moves),
        recomputed_tokens=sum(move.tokens for move in pool.moves),
        closed=dict(pool.closed),
        container_s=sum(
            (container.closed_ms or 0.0) - container.opened_ms for container in pool.containers
        )
        / 1e3,
    )
