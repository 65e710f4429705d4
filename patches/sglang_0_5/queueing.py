"""A request joins the waiting queue, new or retracted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patches import active
from patches.contract import Hook
from patches.sglang_0_5 import prefix_view
from patches.sglang_0_5.engine_view import SCHEDULER


def add_request_to_queue(
    original: Callable[..., Any], scheduler: Any, req: Any, is_retracted: bool = False
) -> Any:
    """AROUND: SGLang may refuse the request (full queue), so look at what it did."""
    before = active.installed()
    if before is not None:
        before.preemptions.queued(req)
    returned = original(scheduler, req, is_retracted=is_retracted)
    runtime = active.steering()
    if runtime is not None:
        try:
            queue = scheduler.waiting_queue
            if queue and queue[-1] is req:
                runtime.enqueued(req, is_retracted)
        except Exception:
            runtime.fault("enqueued")
    return returned


HOOKS = (
    Hook(
        target=f"{SCHEDULER}.Scheduler._add_request_to_queue",
        kind="around",
        function=f"{__name__}:add_request_to_queue",
        signatures=("self, req, is_retracted=",),
        replaces="nothing: the request joins SGLang's queue as stock",
        why="the ranking keeps the queue's attributes in arrays as requests come, and a "
        "retracted request, which SGLang puts at the tail, must go first or a streaming "
        "user stalls",
        until="SGLang's waiting queue is an object with a listener",
        reads=(
            f"{SCHEDULER}:Scheduler.enable_priority_scheduling",
            f"{SCHEDULER}:Scheduler.schedule_low_priority_values_first",
            *prefix_view.READS,
        ),
    ),
)
