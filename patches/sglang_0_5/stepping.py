"""Per step: the start and end of a scheduling pass, and the result of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patches import active
from patches.contract import Hook
from patches.sglang_0_5.engine_view import READS, SCHEDULER


def get_next_batch_to_run(
    original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any
) -> Any:
    """AROUND: number the pass before, note the batch after. Never skipped: this call also
    drains the grammar queue."""
    runtime = active.steering()
    if runtime is not None:
        try:
            runtime.begin_pass()
        except Exception:
            runtime.fault("begin_pass")
    plan = original(scheduler, *args, **kwargs)
    runtime = active.steering()
    if runtime is not None:
        try:
            runtime.end_pass(plan)
        except Exception:
            runtime.fault("end_pass")
    return plan


def process_batch_result(
    original: Callable[..., Any], scheduler: Any, batch: Any, result: Any
) -> Any:
    """AROUND: a step is complete when its result is processed."""
    returned = original(scheduler, batch, result)
    runtime = active.steering()
    if runtime is not None:
        try:
            runtime.completed(batch)
        except Exception:
            runtime.fault("completed")
    return returned


HOOKS = (
    Hook(
        target=f"{SCHEDULER}.Scheduler.get_next_batch_to_run",
        kind="around",
        function=f"{__name__}:get_next_batch_to_run",
        signatures=("self, running_batch, last_batch",),
        replaces="nothing: the batch is formed as stock, by the hooks below",
        why="waiting is counted in passes and the trace needs one line per step; "
        "get_new_batch_prefill will not do, the prefill-decode interval skips it",
        until="SGLang calls a listener once per scheduling pass",
        reads=READS,
    ),
    Hook(
        target=f"{SCHEDULER}.Scheduler.process_batch_result",
        kind="around",
        function=f"{__name__}:process_batch_result",
        signatures=("self, batch, result",),
        replaces="nothing: the result is processed as stock",
        why="the inter-token latency is the time between the completions of two steps",
        until="SGLang reports each step's completion time to a listener",
        reads=(f"{SCHEDULER}:Scheduler.enable_overlap",),
    ),
)
