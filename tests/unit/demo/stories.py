"""Stories and records for the tests of the demo."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from twp_sglang.benchmarking.results import Failure, RequestRecord
from twp_sglang.demonstration.story import Point, Story


def point(
    t_s: float = 0.0,
    *,
    window: float | None = 400.0,
    load: float = 100.0,
    sigma: float | None = 1.0,
    itl: float | None = 120.0,
    l_min: float | None = None,
    batch: int = 4,
    queue: int = 0,
    admitted: int = 4,
    forced: int = 0,
    deciding: bool = True,
) -> Point:
    """A state of the server with everything that a test does not care about filled in."""
    return Point(t_s, load, window, sigma, itl, l_min, batch, queue, admitted, forced, deciding)


def story(points: Sequence[Point] = (), policy: str = "twp") -> Story:
    """A story of 12 requests of up to 48 tokens."""
    return Story(12, 48, policy, points=deque(points))


def record(
    index: int,
    *,
    error: str | None = None,
    ttft_ms: float = 500.0,
    itl_ms: Sequence[float] = (120.0, 130.0),
    arrival_s: float = 0.0,
) -> RequestRecord:
    """One request of three tokens, or a failed one."""
    e2e_ms = ttft_ms + sum(itl_ms)
    return RequestRecord(
        index=index,
        arrival_s=arrival_s,
        lateness_ms=0.0,
        ttft_ms=ttft_ms,
        itl_ms=tuple(itl_ms),
        chunk_tokens=(1,) * (len(itl_ms) + 1),
        e2e_ms=e2e_ms,
        planned_input_tokens=None,
        planned_output_tokens=48,
        prompt_tokens=80,
        cached_tokens=0,
        output_tokens=len(itl_ms) + 1,
        count_source="server",
        finish_reason="length",
        error=Failure(kind=error, message=error) if error else None,
        ended_s=arrival_s + e2e_ms / 1000.0,
    )
