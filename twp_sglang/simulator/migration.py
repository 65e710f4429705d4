"""Live migration of a container's requests: token ids travel, KV is computed again.

As in ServerlessLLM (OSDI 2024, section 5): once the destination has the model, the source
sends the tokens of its running requests and goes on decoding while the destination computes
their KV. What was decoded meanwhile is sent in the next round, until the gap is small; then
the source stops and the destination computes the rest before it goes on. So a request
pauses for one small prefill, and the KV cache, thousands of times larger than the token ids, never
travels.

The rounds are costed by the step model of an otherwise idle destination; that they would slow
requests that it already serves is left out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from twp_sglang.simulator.containers import Container
from twp_sglang.simulator.live_request import LiveRequest, Segment
from twp_sglang.simulator.metrics import token_times
from twp_sglang.simulator.pool_settings import MigrationSettings
from twp_sglang.simulator.step_models import StepModel


class Moved(NamedTuple):
    """One finished migration."""

    model: str
    from_node: int
    to_node: int
    requests: int
    """Requests that had output or KV and moved with it."""
    tokens: int
    """Tokens computed again at the destination, all rounds."""
    rounds: int
    stopped_ms: float
    """When the source stopped."""


def recompute_ms(step: StepModel, tokens: int, chunk_tokens: int | None) -> float:
    """Time to compute the KV of ``tokens`` tokens on an idle engine, in its chunks, ms."""
    total, done = 0.0, 0
    while done < tokens:
        chunk = tokens - done if chunk_tokens is None else min(chunk_tokens, tokens - done)
        done += chunk
        total += step.step_ms(0, done, chunk)
    return total


def kv_tokens(container: Container) -> dict[int, int]:
    """Tokens with KV of each request that the container's engine has begun."""
    engine = container.engine
    if engine is None:
        return {}
    rows = engine.batcher.rows
    return {
        index: request.spec.input_tokens
        + (rows.produced(request) if request in rows.running else request.produced)
        for index, request in container.members.items()
        if request.status == "active"
    }


class Migration:
    """One migration under way; the pool calls :meth:`next_round` at :attr:`next_ms`."""

    def __init__(
        self,
        source: Container,
        destination: Container,
        settings: MigrationSettings,
        step: StepModel,
        chunk_tokens: int | None,
    ) -> None:
        self.source = source
        self.destination = destination
        self.next_ms = destination.ready_ms
        self.rounds = 0
        self.recomputed_tokens = 0
        self._settings = settings
        self._step = step
        self._chunk = chunk_tokens
        self._there: dict[int, int] = {}
        source.moving = source.draining = destination.moving = True

    def next_round(self, now_ms: float) -> bool:
        """Send the gap, unless it is small enough to stop; False when it is.

        The engines have served up to ``now_ms``.
        """
        held = kv_tokens(self.source)
        gaps = {index: tokens - self._there.get(index, 0) for index, tokens in held.items()}
        settings = self._settings
        widest = max(gaps.values(), default=0)
        if widest <= settings.gap_tokens or self.rounds >= settings.most_rounds:
            return False
        self._there = held
        gap = sum(gaps.values())
        self.rounds += 1
        self.recomputed_tokens += gap
        duration = settings.transfer_ms(gap) + recompute_ms(self._step, gap, self._chunk)
        self.next_ms = now_ms + duration
        return True

    def hand_over(self, now_ms: float) -> Moved:
        """Stop the source and give everything to the destination."""
        source, destination = self.source, self.destination
        begun = kv_tokens(source)
        assert source.engine is not None
        assert destination.engine is not None
        source.engine.hand_over()
        stopped_ms = max(now_ms, source.engine.now_ms)
        done_ms = np.frombuffer(source.engine.decode_done_ms, dtype=np.float64)
        gap = moved = 0
        for index in sorted(source.members, key=lambda index: (index not in begun, index)):
            request = source.members[index]
            _detach(request, done_ms)
            if index in begun:
                moved += 1
                # One token is left to compute at least: the next one comes from it.
                request.carried_tokens = min(self._there.get(index, 0), request.fill_tokens - 1)
                gap += request.fill_tokens - request.carried_tokens
            destination.take(request, stopped_ms)
        source.members.clear()
        self.recomputed_tokens += gap
        if gap:
            arrived_ms = stopped_ms + self._settings.transfer_ms(gap)
            destination.engine.now_ms = max(destination.engine.now_ms, arrived_ms)
        source.close(stopped_ms)
        source.moving = destination.moving = False
        return Moved(
            source.model.name,
            source.gpu.node,
            destination.gpu.node,
            moved,
            self.recomputed_tokens,
            self.rounds + (gap > 0),
            stopped_ms,
        )


def _detach(request: LiveRequest, done_ms: np.ndarray) -> None:
    """Make its output independent of the engine that it leaves: a segment per token."""
    times = token_times(request, done_ms).token_ms
    request.segments = [Segment(float(at), 0, 0) for at in times]
    request.status = "waiting"
