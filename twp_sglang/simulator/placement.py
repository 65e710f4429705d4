"""Which container a request goes to, and where a new one starts.

Admission inside a container is the policy's; these rules decide between containers. The
plain rule serves every policy that has none of its own, so that they differ in nothing else.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Literal, Protocol

from twp_sglang.simulator.containers import Container, Gpu
from twp_sglang.simulator.migration import kv_tokens, recompute_ms
from twp_sglang.simulator.pool_settings import PoolModel

if TYPE_CHECKING:
    from twp_sglang.simulator.container_pool import ContainerPool

PlacementName = Literal["plain", "round-robin", "serverlessllm"]
PLACEMENT_NAMES: tuple[PlacementName, ...] = ("plain", "round-robin", "serverlessllm")


class Placement(Protocol):
    """Picks a container, or opens one."""

    fast_loader: bool
    """Whether checkpoints are loaded by ServerlessLLM's loader."""

    def place(self, pool: ContainerPool, model: PoolModel, now_ms: float) -> Container | None:
        """The container for a request of ``model``; None lets it wait for a GPU."""


def _least_loaded(containers: list[Container]) -> Container | None:
    return min(containers, key=lambda c: (c.unfinished, c.ready_ms, c.index), default=None)


class Plain:
    """The container with the fewest requests; another one once all have their target, on
    the first GPU that is free wherever the checkpoint lies."""

    fast_loader = False

    def place(self, pool: ContainerPool, model: PoolModel, now_ms: float) -> Container | None:
        """See :class:`Placement`."""
        best = _least_loaded(pool.serving(model))
        if best is not None and best.unfinished < pool.settings.target_ongoing_requests:
            return best
        free = pool.available()
        return pool.open(model, free[0], now_ms) if free else best


class RoundRobin:
    """Containers in rotation, one per GPU, whatever they have to do (Table I)."""

    fast_loader = False

    def __init__(self) -> None:
        self._next: dict[str, int] = defaultdict(int)

    def place(self, pool: ContainerPool, model: PoolModel, now_ms: float) -> Container | None:
        """See :class:`Placement`."""
        free = pool.available()
        for _ in pool.gpus:
            gpu = pool.gpus[self._next[model.name]]
            self._next[model.name] = (self._next[model.name] + 1) % len(pool.gpus)
            there = gpu.container
            if there is not None and there.serves and there.model is model:
                return there
            if gpu in free:
                return pool.open(model, gpu, now_ms)
        return None


class ServerlessLlm:
    """Locality-aware start-up with live migration (ServerlessLLM, section 6).

    A new container starts where the estimate, queue + start + size / rate of the tier that
    holds the checkpoint there, is least. Where that GPU is busy with another model, its
    requests are moved to a free GPU first, if moving and then loading still ends sooner
    than loading at the free GPU.
    """

    fast_loader = True

    def place(self, pool: ContainerPool, model: PoolModel, now_ms: float) -> Container | None:
        """See :class:`Placement`."""
        best = _least_loaded(pool.serving(model))
        if best is not None and best.unfinished < pool.settings.target_ongoing_requests:
            return best
        free = pool.available()
        if not free:
            return best
        gpu = min(free, key=lambda g: (self._ready_ms(pool, model, g, now_ms), _order(g)))
        direct_ms = self._ready_ms(pool, model, gpu, now_ms)
        if pool.settings.migration.enabled:
            ready_ms, source, to = self._by_migration(pool, model, free, now_ms)
            if source is not None and to is not None and ready_ms < direct_ms:
                return pool.migrate(source, to, model, now_ms)
        return pool.open(model, gpu, now_ms)

    def _ready_ms(self, pool: ContainerPool, model: PoolModel, gpu: Gpu, now_ms: float) -> float:
        return pool.nodes[gpu.node].estimate(model, now_ms, fast=True).ready_ms

    def _by_migration(
        self, pool: ContainerPool, model: PoolModel, free: list[Gpu], now_ms: float
    ) -> tuple[float, Container | None, Gpu | None]:
        """Earliest start behind a migration: (ready, whom to move, where to)."""
        best: tuple[float, Container | None, Gpu | None] = (math.inf, None, None)
        for gpu in pool.gpus:
            busy = gpu.container
            if busy is None or busy.model is model or gpu.promised is not None:
                continue
            if busy.moving or busy.state(now_ms) != "warm" or not busy.members:
                continue
            for to in free:
                if to.node == gpu.node:
                    continue  # the same tiers: nothing to gain
                moved_ms = self._ready_ms(pool, busy.model, to, now_ms)
                moved_ms += recompute_ms(
                    pool.step, sum(kv_tokens(busy).values()), pool.engine_settings.chunk_tokens
                )
                ready_ms = pool.nodes[gpu.node].estimate(model, moved_ms, fast=True).ready_ms
                if ready_ms < best[0]:
                    best = (ready_ms, busy, to)
        return best


def _order(gpu: Gpu) -> tuple[bool, int]:
    """Rather an empty GPU than one whose container still keeps alive."""
    return (gpu.container is not None, gpu.index)


def build_placement(name: PlacementName) -> Placement:
    """A fresh placement by name."""
    if name == "round-robin":
        return RoundRobin()
    return ServerlessLlm() if name == "serverlessllm" else Plain()
