"""The order of the waiting queue, and with it the decision of the pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patches import active
from patches.contract import Hook
from patches.sglang_0_5.engine_view import SCHEDULER

POLICY = "sglang.srt.managers.schedule_policy"


def calc_priority(
    original: Callable[..., Any],
    schedule_policy: Any,
    waiting_queue: list[Any],
    running_batch: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """AROUND: stock first (it matches prefixes where a cache wants that), then reorder in
    place. SGLang calls this with a non-empty queue and free slots only."""
    returned = original(schedule_policy, waiting_queue, running_batch, *args, **kwargs)
    runtime = active.steering()
    if runtime is not None:
        try:
            runtime.order(waiting_queue, running_batch)
        except Exception:
            runtime.fault("order")
    return returned


HOOKS = (
    Hook(
        target=f"{POLICY}.SchedulePolicy.calc_priority",
        kind="around",
        function=f"{__name__}:calc_priority",
        signatures=("self, waiting_queue, running_batch=, processed_tokens=",),
        replaces="the order in which SGLang offers waiting requests to the prefill batch",
        why="the decision of the pass needs the active set after finished requests left and "
        "before the first candidate; the granted requests are put first, the rest keeps its "
        "order, none is removed",
        until="SGLang takes a schedule policy object from outside",
        reads=(f"{SCHEDULER}:Scheduler.waiting_queue",),
    ),
)
