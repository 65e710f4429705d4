"""A request is turned away before it joins the waiting queue, by SGLang's own abort."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from patches import active
from patches.contract import Hook
from patches.door import ASKED_ATTRIBUTE
from patches.sglang_0_5.engine_view import SCHEDULE_BATCH, SCHEDULER
from twp_sglang.scheduling.overload import Refusal

RETRY_AFTER_KEY = "twp_retry_after_s"
"""In the finish reason that reaches the HTTP process: whole seconds."""

REASON_KEY = "twp_reason"
"""There too: the refusal's name, as the metrics have it."""


def abort_on_queued_limit(original: Callable[..., Any], scheduler: Any, recv_req: Any) -> Any:
    """AROUND: SGLang's own bound first; True means that the request was answered and must
    not be queued."""
    if original(scheduler, recv_req):
        return True
    runtime = active.steering()
    if runtime is None:
        return False
    try:
        ended = runtime.policy.enforces and recv_req.to_finish is not None
        if ended:
            # SGLang found it unusable and would let it wait for its turn to say so.
            runtime.policy.tally.refused("invalid")
            _send(scheduler, recv_req, recv_req.to_finish.to_json())
            return True
        refusal = runtime.refusal(recv_req)
        if refusal is None:
            return False
        _send(scheduler, recv_req, finished_reason(refusal))
    except Exception:
        runtime.fault("refusal")
        return False
    return True


def finished_reason(refusal: Refusal) -> dict[str, Any]:
    """A refusal in the words of SGLang's abort, with what the HTTP process adds to it."""
    reason: dict[str, Any] = {
        "type": "abort",
        "message": refusal.message,
        "status_code": HTTPStatus(refusal.status),
        "err_type": HTTPStatus(refusal.status).phrase.replace(" ", ""),
        REASON_KEY: refusal.reason,
    }
    if refusal.retry_after_s is not None:
        reason[RETRY_AFTER_KEY] = refusal.retry_after_s
    return reason


def _send(scheduler: Any, req: Any, reason: dict[str, Any]) -> None:
    from sglang.srt.managers import scheduler as module

    # Since 0.5.20; before, SGLang filled the message in at each place.
    make = getattr(module, "_make_abort_req", None)
    abort = (
        module.AbortReq(rid=req.rid, finished_reason=reason)
        if make is None
        else make(req, finished_reason=reason)
    )
    # Since 0.5.23; before, the scheduler wrote to the channel itself.
    send = getattr(scheduler, "send_abort_output", None)
    if send is None:
        send = scheduler.ipc_channels.send_to_tokenizer.send_output
    send(abort, req)
    req.time_stats.trace_ctx.abort(abort_info={"reason": reason["message"]})


def init_req_max_new_tokens(scheduler: Any, req: Any) -> None:
    """BEFORE: SGLang clips the limit to what fits; note what was asked."""
    setattr(req, ASKED_ATTRIBUTE, req.sampling_params.max_new_tokens)


HOOKS = (
    Hook(
        target=f"{SCHEDULER}.Scheduler._abort_on_queued_limit",
        kind="around",
        function=f"{__name__}:abort_on_queued_limit",
        signatures=("self, recv_req",),
        replaces="nothing: SGLang's own bound (--max-queued-requests) is asked first",
        why="the one place where SGLang turns a request away before it joins the queue, with "
        "everything that it then cleans up; a request that SGLang itself found unusable is "
        "answered there too, instead of waiting for its turn behind the gate, and one whose prompt "
        "is empty or outside the vocabulary is answered instead of ending the process",
        until="SGLang asks an admission policy before it queues a request",
        reads=(
            f"{SCHEDULER}:_make_abort_req",
            f"{SCHEDULER}:Scheduler.ipc_channels",
            f"{SCHEDULE_BATCH}:Req.to_finish",
            f"{SCHEDULE_BATCH}:Req.multimodal_inputs",
            f"{SCHEDULE_BATCH}:Req.input_embeds",
            f"{SCHEDULER}:Scheduler.model_config",
            "sglang.srt.configs.model_config:ModelConfig.vocab_size",
            "sglang.srt.configs.model_config:ModelConfig.hf_text_config",
            f"{SCHEDULE_BATCH}:Req.time_stats",
            f"{SCHEDULE_BATCH}:FINISH_ABORT.to_json",
        ),
    ),
    Hook(
        target=f"{SCHEDULER}.Scheduler.init_req_max_new_tokens",
        kind="before",
        function=f"{__name__}:init_req_max_new_tokens",
        signatures=("self, req",),
        replaces="nothing: SGLang clips the output limit as stock",
        why="whoever wants a refusal instead of a silent cut (oversized = refuse) needs the limit "
        "before the cut",
        until="SGLang keeps the limit that was asked for",
        reads=(f"{SCHEDULER}:Scheduler.max_total_num_tokens", f"{SCHEDULER}:Scheduler.page_size"),
    ),
)
