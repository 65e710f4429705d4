"""Several engines behind a router.

A router picks an engine for each request at its arrival. Load-aware routers see loads as the
engines reported them last; what the router itself sent since is added, because a report
that is a few milliseconds old would otherwise send a whole burst to one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from twp_sglang.simulator.engine import Engine
from twp_sglang.simulator.live_request import LiveRequest

RouterName = Literal["round-robin", "least-tokens", "cache-aware"]
ROUTER_NAMES: tuple[RouterName, ...] = ("round-robin", "least-tokens", "cache-aware")


class Router(Protocol):
    """Picks the engine, by index, for each request in order of arrival."""

    needs_state: bool
    """Whether engines must have served up to the arrival before it is asked."""

    def pick(self, request: LiveRequest) -> int:
        """Index of the engine that gets ``request``."""


class RoundRobin:
    """In rotation."""

    needs_state = False

    def __init__(self, engines: int) -> None:
        self._engines = engines
        self._next = 0

    def pick(self, request: LiveRequest) -> int:
        """See :class:`Router`."""
        chosen = self._next
        self._next = (chosen + 1) % self._engines
        return chosen


class ReportedLoad:
    """Outstanding tokens per engine as of the last report, plus what was sent since."""

    def __init__(self, engines: Sequence[Engine], every_ms: float) -> None:
        self._engines = engines
        self._every = every_ms
        self._reported_ms: float | None = None
        self.tokens = [0] * len(engines)

    def refresh(self, now_ms: float) -> None:
        """Take the engines' reports where they are due."""
        last = self._reported_ms
        if last is None or now_ms - last >= self._every:
            self._reported_ms = now_ms
            self.tokens = [engine.outstanding_tokens for engine in self._engines]

    def sent(self, engine: int, request: LiveRequest) -> None:
        """A request went to ``engine``; its next report will show it."""
        self.tokens[engine] += request.spec.input_tokens + request.max_new_tokens


class LeastTokens:
    """The engine that owes the fewest prompt and output tokens."""

    needs_state = True

    def __init__(self, engines: Sequence[Engine], report_every_ms: float = 0.0) -> None:
        """``report_every_ms``: age that a load report may have; 0 asks at each arrival."""
        self._load = ReportedLoad(engines, report_every_ms)

    def pick(self, request: LiveRequest) -> int:
        """See :class:`Router`."""
        load = self._load
        load.refresh(request.arrival_ms)
        chosen = min(range(len(load.tokens)), key=load.tokens.__getitem__)
        load.sent(chosen, request)
        return chosen


class CacheAware:
    """The engine that has seen the longest prefix, unless loads are out of balance.

    As SGLang's router: a prefix that covers more than half of the prompt decides; otherwise,
    or when the loads differ by more than 32 requests and by more than 0.01 %, the engine
    with the fewest outstanding requests.
    """

    needs_state = True
    MATCH_THRESHOLD = 0.5
    BALANCE_REQUESTS = 32
    BALANCE_RATIO = 1.0001

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self._seen: list[set[str]] = [set() for _ in engines]

    def pick(self, request: LiveRequest) -> int:
        """See :class:`Router`."""
        loads = [engine.unfinished for engine in self._engines]
        low, high = min(loads), max(loads)
        balanced = not (high - low > self.BALANCE_REQUESTS and high > self.BALANCE_RATIO * low)
        chosen = loads.index(low)
        if balanced:
            matched = [self._matched(seen, request) for seen in self._seen]
            best = max(range(len(matched)), key=lambda i: (matched[i], -loads[i]))
            if matched[best] > self.MATCH_THRESHOLD * request.spec.input_tokens:
                chosen = best
        self._seen[chosen].update(block.key for block in request.spec.prefix)
        return chosen

    @staticmethod
    def _matched(seen: set[str], request: LiveRequest) -> int:
        tokens = 0
        for block in request.spec.prefix:
            if block.key not in seen:
                break
            tokens += block.tokens
        return tokens


def build_router(
    name: RouterName, engines: Sequence[Engine], report_every_ms: float = 0.0
) -> Router:
    """The router called ``name``."""
    if name == "round-robin":
        return RoundRobin(len(engines))
    if name == "least-tokens":
        return LeastTokens(engines, report_every_ms)
    return CacheAware(engines)


def serve(engines: Sequence[Engine], router: Router, requests: Sequence[LiveRequest]) -> list[int]:
    """Serve ``requests`` to the end; the engine of each.

    Args:
        engines: idle engines.
        router: who picks.
        requests: in order of arrival.
    """
    placed = []
    for request in requests:
        if router.needs_state:
            for engine in engines:
                engine.run(request.arrival_ms)
        chosen = router.pick(request)
        engines[chosen].submit(request)
        placed.append(chosen)
    for engine in engines:
        engine.run()
    return placed
