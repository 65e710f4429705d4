"""Rank 0's measurements to all ranks, on SGLang's own request broadcast.

Per-rank clocks differ; ranks that decided by their own would form different batches and
the collectives would hang. SGLang broadcasts what ``_poll_timeout_aborts`` returns on rank
0 together with the requests of the pass, so a sample put there arrives everywhere in the
same pass, at no extra collective.
"""

from __future__ import annotations

from typing import Any

from patches import active
from patches.contract import Hook
from patches.sample_relay import Envelope
from patches.sglang_0_5.engine_view import SCHEDULER


def poll_timeout_aborts(result: list[Any], scheduler: Any) -> list[Any] | None:
    """AFTER, on rank 0 only: append the samples not yet delivered."""
    return with_samples(result)


def with_samples(result: list[Any]) -> list[Any] | None:
    """``result`` and the samples not yet delivered; None where there are none."""
    runtime = active.steering()
    if runtime is None:
        return None
    try:
        envelope = runtime.outgoing()
    except Exception:
        runtime.fault("outgoing")
        return None
    return None if envelope is None else [*result, envelope]


def process_input_requests(
    scheduler: Any, recv_reqs: list[Any], *args: Any, **kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """BEFORE: take the samples out, whether or not TWP still decides: SGLang does not know
    the type."""
    if not any(isinstance(item, Envelope) for item in recv_reqs):
        return None
    requests = []
    runtime = active.steering()
    for item in recv_reqs:
        if not isinstance(item, Envelope):
            requests.append(item)
        elif runtime is not None:
            try:
                runtime.deliver(item)
            except Exception:
                runtime.fault("deliver")
                runtime = None
    return (scheduler, requests, *args), kwargs


HOOKS = (
    Hook(
        target=f"{SCHEDULER}.Scheduler._poll_timeout_aborts",
        kind="after",
        function=f"{__name__}:poll_timeout_aborts",
        signatures=("self",),
        replaces="nothing: timed-out requests are aborted as stock",
        why="its return value rides on the request broadcast from rank 0",
        until="SGLang has a channel for per-pass data from rank 0",
    ),
    Hook(
        target=f"{SCHEDULER}.Scheduler.process_input_requests",
        kind="before",
        function=f"{__name__}:process_input_requests",
        signatures=("self, recv_reqs",),
        replaces="nothing: requests are dispatched as stock",
        why="the samples must be taken out of the broadcast before SGLang dispatches it",
        until="SGLang has a channel for per-pass data from rank 0",
    ),
)
