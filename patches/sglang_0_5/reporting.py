"""What TWP adds to SGLang's own answers: its state and its proof."""

from __future__ import annotations

import logging
from typing import Any

from patches import active
from patches.contract import Hook
from patches.sglang_0_5.engine_view import SCHEDULER

logger = logging.getLogger(__name__)


def get_internal_state(result: Any, scheduler: Any, *args: Any) -> None:
    """AFTER: add ``twp`` to the scheduler's part of /server_info."""
    runtime = active.installed()
    if runtime is None:
        return
    try:
        result.internal_state["twp"] = runtime.state()
    except Exception:
        # A fault while reporting must not end the steering.
        logger.exception("TWP cannot report its state")


def get_init_info(result: dict[str, Any], scheduler: Any) -> None:
    """AFTER: the launcher learns that TWP decides in this process."""
    runtime = active.installed()
    result["twp"] = None if runtime is None else runtime.policy.name


HOOKS = (
    Hook(
        target=f"{SCHEDULER}.Scheduler.get_internal_state",
        kind="after",
        function=f"{__name__}:get_internal_state",
        signatures=("self, recv_req",),
        replaces="nothing: adds one key",
        why="/server_info is where an operator looks",
        until="SGLang lets a plug-in add to the internal state",
        reads=("sglang.srt.managers.io_struct:GetInternalStateReqOutput.internal_state",),
    ),
    Hook(
        target=f"{SCHEDULER}.Scheduler.get_init_info",
        kind="after",
        function=f"{__name__}:get_init_info",
        signatures=("self",),
        replaces="nothing: adds one key",
        why="the launcher must not serve unless every scheduler answered with TWP's name",
        until="SGLang reports the plug-ins of a scheduler process",
    ),
)
