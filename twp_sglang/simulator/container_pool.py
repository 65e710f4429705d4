"""The pool: nodes, GPUs and containers on one clock, several models sharing them.

Requests are placed as they arrive. One that finds no GPU waits in the pool, in order; then
the longest-standing container of another model is drained for it, so that no model can keep
the others out. While somebody waits, or a migration is under way, the engines advance pass
by pass, so that a GPU changes hands when it falls free and not at the next arrival.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from twp_sglang.simulator.checkpoints import Load, Node
from twp_sglang.simulator.containers import Container, Gpu
from twp_sglang.simulator.engine import Engine, SimulationStalled
from twp_sglang.simulator.live_request import LiveRequest
from twp_sglang.simulator.migration import Migration, Moved
from twp_sglang.simulator.placement import Placement
from twp_sglang.simulator.pool_settings import PoolModel, PoolSettings
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.step_models import StepModel

EngineMaker = Callable[[Container, float], Engine]
"""Makes the engine of a container that is ready at the given time, ms."""


class Start(NamedTuple):
    """One cold start."""

    at_ms: float
    model: str
    node: int
    gpu: int
    load: Load


class ContainerPool:
    """See the module's text."""

    def __init__(
        self,
        settings: PoolSettings,
        engine_settings: EngineSettings,
        placement: Placement,
        step: StepModel,
        make_engine: EngineMaker,
    ) -> None:
        """An empty pool. ``step`` is asked for estimates only; engines have their own."""
        self.settings = settings
        self.engine_settings = engine_settings
        self.step = step
        self.nodes = [Node(index, settings) for index in range(settings.nodes)]
        self.gpus = [
            Gpu(node, node * settings.gpus_per_node + slot)
            for node in range(settings.nodes)
            for slot in range(settings.gpus_per_node)
        ]
        self.containers: list[Container] = []
        """Every container there ever was, in order of opening."""
        self.starts: list[Start] = []
        self.moves: list[Moved] = []
        self.closed: Counter[str] = Counter()
        """Containers closed, by reason: expired, evicted, drained."""
        self.placed: dict[int, int] = {}
        """Container of each request by its index; the last one where it moved."""
        self.startup_ms: dict[int, float] = {}
        """cs of equation (1): from arrival until a container was ready for the request."""
        self._placement = placement
        self._make_engine = make_engine
        self._keep_alive_ms = settings.keep_alive_s * 1e3
        self._waiting: deque[tuple[LiveRequest, PoolModel]] = deque()
        self._migrations: list[Migration] = []

    # ------------------------------------------------------------------- placement

    def serving(self, model: PoolModel) -> list[Container]:
        """Containers that take requests of ``model``, loading and promised ones included."""
        return [
            container
            for gpu in self.gpus
            for container in (gpu.container, gpu.promised)
            if container is not None and container.model is model and container.serves
        ]

    def available(self) -> list[Gpu]:
        """GPUs on which a container may start: empty ones, then the longest idle."""
        return sorted(
            (gpu for gpu in self.gpus if gpu.available()),
            key=lambda gpu: -math.inf if gpu.container is None else gpu.container.idle_since_ms,
        )

    def open(self, model: PoolModel, gpu: Gpu, now_ms: float) -> Container:
        """Start a container of ``model`` on an available GPU."""
        if gpu.container is not None:
            # Its last step may end a little after the arrival that takes the GPU.
            now_ms = max(now_ms, gpu.container.idle_since_ms)
            gpu.container.close(now_ms)
            self.closed["evicted"] += 1
        container = Container(len(self.containers), model, gpu)
        self.containers.append(container)
        self._begin(container, now_ms)
        return container

    def migrate(self, source: Container, to: Gpu, model: PoolModel, now_ms: float) -> Container:
        """Move ``source``'s requests to GPU ``to``; ``model`` gets the GPU it leaves."""
        gpu = source.gpu
        destination = self.open(source.model, to, now_ms)
        self._migrations.append(
            Migration(
                source,
                destination,
                self.settings.migration,
                self.step,
                self.engine_settings.chunk_tokens,
            )
        )
        promised = Container(len(self.containers), model, gpu)
        self.containers.append(promised)
        gpu.promised = promised
        return promised

    def _place(self, model: PoolModel, now_ms: float) -> Container | None:
        self._expire(now_ms)
        return self._placement.place(self, model, now_ms)

    def _begin(self, container: Container, now_ms: float) -> None:
        gpu = container.gpu
        gpu.container = container
        load = self.nodes[gpu.node].load(container.model, now_ms, fast=self._placement.fast_loader)
        self.starts.append(Start(now_ms, container.model.name, gpu.node, gpu.index, load))
        container.begin(load, self._make_engine(container, load.ready_ms), now_ms)
        for index, request in container.members.items():
            self.startup_ms[index] = load.ready_ms - request.arrival_ms

    def _give(self, request: LiveRequest, container: Container, now_ms: float) -> None:
        container.take(request, now_ms)
        self.placed[request.index] = container.index
        if container.load is not None:
            self.startup_ms[request.index] = max(now_ms, container.ready_ms) - request.arrival_ms

    # ------------------------------------------------------------------------ time

    def serve(self, requests: list[tuple[LiveRequest, PoolModel]]) -> None:
        """Serve ``requests``, in order of arrival, to the end.

        Raises:
            SimulationStalled: a policy admits nobody, so that a GPU is never given back.
        """
        for request, model in requests:
            now_ms = request.arrival_ms
            self.advance(now_ms)
            # Nobody overtakes a request of the same model that waits for a GPU.
            behind = any(waiting is model for _, waiting in self._waiting)
            container = None if behind else self._place(model, now_ms)
            if container is None:
                self._waiting.append((request, model))
                self._drain(now_ms)
            else:
                self._give(request, container, now_ms)
        self.advance(math.inf)
        if self._waiting:
            raise SimulationStalled(
                f"{len(self._waiting)} requests wait for a GPU that nobody gives back"
            )
        self._close_all()

    def advance(self, until_ms: float) -> None:
        """Let everything happen that happens before ``until_ms``."""
        while True:
            event = min(self._migrations, key=lambda m: m.next_ms, default=None)
            if event is None or event.next_ms > until_ms:
                self._run(until_ms)
                # Requests that fell due in the last stretch may have begun a migration.
                if not any(m.next_ms <= until_ms for m in self._migrations):
                    return
                continue
            self._run(event.next_ms)
            self._round(event)

    def _run(self, until_ms: float) -> None:
        """Run the engines to ``until_ms``, handing on GPUs that fall free."""
        while self._waiting:
            busy = [
                container
                for gpu in self.gpus
                if (container := gpu.container) is not None
                and container.members
                and container.engine is not None
                and container.engine.now_ms < until_ms
            ]
            if not busy:
                break
            earliest = min(busy, key=lambda c: c.engine.now_ms if c.engine else math.inf)
            earliest.step()
            if not earliest.members:
                self._serve_waiting(earliest.idle_since_ms)
                if any(m.next_ms < until_ms for m in self._migrations):
                    return
        for gpu in self.gpus:
            if gpu.container is not None:
                gpu.container.run(until_ms)

    def _round(self, migration: Migration) -> None:
        now_ms = migration.next_ms
        if migration.next_round(now_ms):
            return
        self._migrations.remove(migration)
        gpu, destination = migration.source.gpu, migration.destination
        for index in migration.source.members:
            self.placed[index] = destination.index
        moved = migration.hand_over(now_ms)
        self.moves.append(moved)
        promised, gpu.promised = gpu.promised, None
        assert promised is not None
        self._begin(promised, moved.stopped_ms)

    # --------------------------------------------------------- waiting for a GPU

    def _serve_waiting(self, now_ms: float) -> None:
        """Place who waits, in order, as far as GPUs allow."""
        for gpu in self.gpus:
            container = gpu.container
            if container is not None and container.draining and container.evictable():
                container.close(max(now_ms, container.idle_since_ms))
                self.closed["drained"] += 1
        still: deque[tuple[LiveRequest, PoolModel]] = deque()
        refused: list[PoolModel] = []
        for request, model in self._waiting:
            container = None
            if model not in refused:
                container = self._place(model, now_ms)
            if container is None:
                refused.append(model)
                still.append((request, model))
            else:
                self._give(request, container, now_ms)
        self._waiting = still
        self._drain(now_ms)

    def _drain(self, now_ms: float) -> None:
        """One draining container per model that waits; none where nobody does."""
        wanting = []
        for _, model in self._waiting:
            if model not in wanting:
                wanting.append(model)
        here = [gpu.container for gpu in self.gpus if gpu.container is not None]
        draining = [c for c in here if c.draining and not c.moving]
        for container in draining[len(wanting) :]:
            container.draining = False
        missing = len(wanting) - len(draining)
        if missing <= 0:
            return
        counts = Counter(c.model.name for c in here if c.serves)
        candidates = sorted(
            (c for c in here if c.serves and not c.moving and c.model not in wanting),
            key=lambda c: (counts[c.model.name] < 2, c.opened_ms, c.index),
        )
        for container in candidates[:missing]:
            container.draining = True

    # ---------------------------------------------------------------- keep-alive

    def _expire(self, now_ms: float) -> None:
        for gpu in self.gpus:
            container = gpu.container
            if container is None or not container.evictable():
                continue
            ends_ms = container.idle_since_ms + self._keep_alive_ms
            if ends_ms <= now_ms:
                container.close(ends_ms)
                self.closed["expired"] += 1

    def _close_all(self) -> None:
        """The run is over: what still keeps alive is counted to its end of service."""
        for gpu in self.gpus:
            if gpu.container is not None:
                gpu.container.close(gpu.container.idle_since_ms)
