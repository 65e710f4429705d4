"""What TWP adds to SGLang's own answers: its state and its proof."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from patches import active, control, questions
from patches.contract import Hook
from patches.sglang_0_5.engine_view import SCHEDULER

logger = logging.getLogger(__name__)


def get_internal_state(original: Callable[..., Any], scheduler: Any, recv_req: Any) -> Any:
    """AROUND: answer TWP's own questions, which ride on this request because it reaches every
    rank in one pass and its answer may hold anything; else add ``twp`` to SGLang's answer."""
    question = questions.asked(recv_req.rid)
    if question is not None:
        return _output(control.answer(active.installed(), scheduler, question))
    result = original(scheduler, recv_req)
    runtime = active.installed()
    if runtime is None:
        return result
    try:
        result.internal_state["twp"] = runtime.state()
    except Exception:
        # A fault while reporting must not end the steering.
        logger.exception("TWP cannot report its state")
    return result


def _output(answer: dict[str, Any]) -> Any:
    from sglang.srt.managers.io_struct import GetInternalStateReqOutput

    return GetInternalStateReqOutput(internal_state={questions.ANSWER: answer})


def get_init_info(result: dict[str, Any], scheduler: Any) -> None:
    """AFTER: the launcher learns that TWP decides in this process."""
    runtime = active.installed()
    result["twp"] = None if runtime is None else runtime.policy.name


HOOKS = (
    Hook(
        target=f"{SCHEDULER}.Scheduler.get_internal_state",
        kind="around",
        function=f"{__name__}:get_internal_state",
        signatures=("self, recv_req",),
        replaces="nothing of SGLang's own: adds one key, and answers requests that only TWP makes",
        why="/server_info is where an operator looks; and the HTTP process needs a way to ask "
        "and to change the configuration on all ranks in one pass",
        until="SGLang lets a plug-in add to the internal state and send requests of its own",
        reads=(
            "sglang.srt.managers.io_struct:GetInternalStateReqOutput.internal_state",
            "sglang.srt.managers.io_struct:GetInternalStateReq",
            "sglang.srt.managers.io_struct:BaseReq.rid",
            f"{SCHEDULER}:Scheduler.last_batch",
        ),
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
