"""Containers: one model on one GPU, from cold to warm and back.

A container is *cold* until its checkpoint is asked for, *loading* until it is on the GPU,
then *warm*; one that takes no new requests because its GPU is wanted is *draining*. Once
idle for the keep-alive time, or when its GPU is wanted at once, it is cold again.

Loading is charged to requests as equation (1) has it, TTFT = cs + prefill: the engine is
ready only when the checkpoint is there, and the clock of a request runs from its arrival.
"""

from __future__ import annotations

import math
from typing import Literal

from twp_sglang.simulator.checkpoints import Load
from twp_sglang.simulator.engine import Engine
from twp_sglang.simulator.live_request import LiveRequest
from twp_sglang.simulator.pool_settings import PoolModel

State = Literal["cold", "loading", "warm", "draining"]


class Gpu:
    """One GPU: who is on it, and who was promised it next."""

    def __init__(self, node: int, index: int) -> None:
        self.node = node
        self.index = index
        self.container: Container | None = None
        self.promised: Container | None = None

    def available(self) -> bool:
        """Whether a container may start here now: empty, or held by an idle one."""
        if self.promised is not None:
            return False
        return self.container is None or self.container.evictable()


class Container:
    """One model on one GPU. Times are milliseconds on the simulation's clock."""

    def __init__(self, index: int, model: PoolModel, gpu: Gpu) -> None:
        self.index = index
        self.model = model
        self.gpu = gpu
        self.engine: Engine | None = None
        self.load: Load | None = None
        self.opened_ms = math.nan
        self.closed_ms: float | None = None
        self.draining = False
        self.moving = False
        """Part of a live migration, at either end."""
        self.members: dict[int, LiveRequest] = {}
        """Unfinished requests by index."""

    def state(self, now_ms: float) -> State:
        """Where the container stands at ``now_ms``."""
        if self.load is None or self.closed_ms is not None:
            return "cold"
        if self.draining:
            return "draining"
        return "loading" if now_ms < self.load.ready_ms else "warm"

    @property
    def serves(self) -> bool:
        """Whether new requests may come here, now or once it is loaded."""
        return self.closed_ms is None and not self.draining

    @property
    def unfinished(self) -> int:
        """Requests that are here or on the way."""
        return len(self.members)

    @property
    def ready_ms(self) -> float:
        """When it can serve; infinite before its loading began."""
        return math.inf if self.load is None else self.load.ready_ms

    @property
    def idle_since_ms(self) -> float:
        """When the last request left; only meaningful without unfinished ones."""
        assert self.engine is not None
        return max(self.engine.now_ms, self.engine.gpu_free_ms, self.ready_ms)

    def evictable(self) -> bool:
        """Whether another model may have the GPU at once."""
        return self.engine is not None and not self.members and not self.moving

    def begin(self, load: Load, engine: Engine, now_ms: float) -> None:
        """Loading starts; requests that came before it are handed to the engine."""
        self.load, self.engine, self.opened_ms = load, engine, now_ms
        for request in self.members.values():
            engine.submit(request)

    def take(self, request: LiveRequest, now_ms: float) -> None:
        """``request`` is routed here at ``now_ms``, its arrival or later."""
        engine = self.engine
        if engine is not None:
            if not self.members:
                # An idle engine's clock stands at its last step; it cannot serve before now.
                engine.now_ms = max(engine.now_ms, now_ms)
            engine.submit(request)
        self.members[request.index] = request

    def left(self, request: LiveRequest) -> None:
        """``request`` completed, was refused or failed."""
        del self.members[request.index]

    def run(self, until_ms: float) -> None:
        """Serve up to ``until_ms``."""
        if self.engine is not None:
            self.engine.run(until_ms)

    def step(self) -> None:
        """Serve for one scheduling pass, and to the end of its pipeline when idle after it."""
        assert self.engine is not None
        self.engine.run(math.nextafter(self.engine.now_ms, math.inf))
        if not self.members:
            self.engine.run()

    def close(self, at_ms: float) -> None:
        """Cold again; the GPU is free."""
        assert self.gpu.container is self
        self.closed_ms = at_ms
        self.gpu.container = None
