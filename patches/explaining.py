"""Why one request waits, or how far it is: the parts of SGLang that the answer needs."""

from __future__ import annotations

from typing import Any

from patches.arrivals import info_of
from patches.runtime import Runtime
from patches.sglang_0_5 import engine_view
from twp_sglang.scheduling.explanation import facts_of, hold, place_of, prompt_to_serve
from twp_sglang.scheduling.request import RequestInfo


def explain(runtime: Runtime, scheduler: Any, rid: str, now_s: float) -> dict[str, Any] | None:
    """What is known of the request that its sender calls ``rid``; None where nothing is.

    Args:
        now_s: this process's ``time.perf_counter``.
    """
    for req in scheduler.waiting_queue:
        if req.rid == rid:
            return _waiting(runtime, scheduler, req, now_s)
    for req in engine_view.running_requests(scheduler):
        if req.rid == rid and not req.finished():
            return _running(scheduler, req)
    return None


def _waiting(runtime: Runtime, scheduler: Any, req: Any, now_s: float) -> dict[str, Any]:
    state = runtime.state()
    view = runtime.view(scheduler.running_batch)
    orders = runtime.deciding and runtime.policy.enforces
    line = _twp_order(runtime, scheduler, view) if orders else _engine_order(scheduler)
    info = next(one for one in line if one.handle is req)
    place = place_of(info, line)
    assert place is not None
    tokens = view.owed_prompt_tokens + place.prompt_tokens_ahead + prompt_to_serve(info)
    whole = sum(one.prompt_tokens for one in line[: place.position])
    wait = runtime.watching.waiting_time.until_served(tokens, view.owed_prompt_tokens + whole)
    facts = facts_of(state)
    reason = hold(facts, info.expected_tokens if place.position == 1 else None)
    remark = runtime.policy.remark(info) if orders else ""
    since = engine_view.queued_since_s(req)
    return {
        "rid": req.rid,
        "state": "waiting",
        "position": place.position,
        "waiting": len(line),
        "prompt_tokens_ahead": place.prompt_tokens_ahead,
        "prompt_tokens": info.prompt_tokens,
        "cached_tokens": info.cached_tokens,
        "expected_output_tokens": info.expected_tokens,
        "retracted": info.retracted,
        "held_by": facts.closed or "next pass",
        "why": _why(runtime, place.position, reason, remark),
        "waited_s": None if since is None else round(max(0.0, now_s - since), 3),
        "waited_passes": max(0, runtime.pass_index - info.arrival_pass),
        "expected_wait_s": None if wait.seconds is None else round(wait.seconds, 3),
        "expected_wait_how": wait.how,
        "order": "TWP's" if orders else "SGLang's own",
    }


def _why(runtime: Runtime, position: int, reason: str, remark: str) -> str:
    if not runtime.deciding:
        return (
            f"TWP fell back to stock scheduling (fault in {runtime.fallback_reason}); number "
            f"{position} in SGLang's own order"
        )
    if not runtime.policy.enforces:
        text = f"SGLang decides, in its own order, where it is number {position}. TWP would say: "
    elif position == 1:
        text = "It is next. "
    else:
        others = "one request is" if position == 2 else f"{position - 1:,} requests are"
        text = f"{others} before it, and the first of them waits as well: ".capitalize()
    return text + reason + (f". Besides, {remark}" if remark else "") + "."


def _twp_order(runtime: Runtime, scheduler: Any, view: Any) -> list[RequestInfo]:
    """The policy's order; aborted requests leave SGLang's queue without a word, and such as
    came past TWP stand at its end."""
    present = {id(req) for req in scheduler.waiting_queue}
    line = [one for one in runtime.policy.waiting_order(view) if id(one.handle) in present]
    known = {id(one.handle) for one in line}
    return line + [one for one in _engine_order(scheduler) if id(one.handle) not in known]


def _engine_order(scheduler: Any) -> list[RequestInfo]:
    return [_known(req) for req in scheduler.waiting_queue]


def _known(req: Any) -> RequestInfo:
    info = info_of(req)
    if info is not None and info.handle is req:
        return info
    prompt, max_new, produced = engine_view.request_numbers(req)
    return RequestInfo(req.rid, -1, 0, prompt + produced, max(0, max_new - produced), handle=req)


def _running(scheduler: Any, req: Any) -> dict[str, Any]:
    prompt, max_new, produced = engine_view.request_numbers(req)
    owed = engine_view.owed_prompt_tokens(req) if req is scheduler.chunked_req else 0
    if owed:
        why = f"It runs: {owed:,} of its {prompt:,} prompt tokens are still to be computed."
    else:
        why = f"It runs: {produced:,} of at most {max_new:,} output tokens are there."
    return {
        "rid": req.rid,
        "state": "running",
        "phase": "prompt" if owed else "decoding",
        "prompt_tokens": prompt,
        "cached_tokens": _known(req).cached_tokens,
        "prompt_tokens_left": owed,
        "output_tokens": produced,
        "max_new_tokens": max_new,
        "progress": round(produced / max_new, 4) if max_new else 1.0,
        "why": why,
    }
