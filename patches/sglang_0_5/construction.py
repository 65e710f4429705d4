"""The runtime is built when SGLang's scheduler is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patches.contract import Hook
from patches.sglang_0_5 import observability
from patches.sglang_0_5.engine_view import SCHEDULER

_on_constructed: Callable[[Any], None] | None = None


def when_constructed(callback: Callable[[Any], None]) -> None:
    """Call ``callback`` with the scheduler that this process builds."""
    global _on_constructed
    _on_constructed = callback


def scheduler_init(returned: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER: an exception here ends the process before it serves; that is meant."""
    if _on_constructed is not None:
        _on_constructed(scheduler)


HOOKS = (
    Hook(
        target=f"{SCHEDULER}.Scheduler.__init__",
        kind="after",
        function=f"{__name__}:scheduler_init",
        signatures=(),
        replaces="nothing",
        why="the policy needs the size of the KV pool, known once the scheduler stands",
        until="SGLang calls plug-ins when its scheduler is ready",
        reads=(
            f"{SCHEDULER}:Scheduler.max_total_num_tokens",
            f"{SCHEDULER}:Scheduler.token_to_kv_pool_allocator",
            f"{SCHEDULER}:Scheduler.tree_cache",
            f"{SCHEDULER}:Scheduler.is_generation",
            f"{SCHEDULER}:Scheduler.page_size",
            f"{SCHEDULER}:Scheduler.truncation_align_size",
            *observability.READS,
        ),
    ),
)
