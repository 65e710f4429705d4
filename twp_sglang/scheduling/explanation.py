"""What holds a waiting request, in words that a person on call can act on.

Pure functions on plain numbers: the server's answer to "why does it wait", the live page and
the terminal say the same sentence because all of them ask here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from twp_sglang.scheduling.request import RequestInfo


class Facts(NamedTuple):
    """What the sentences are made of. Numbers that a policy has not are None."""

    policy: str
    deciding: bool
    queue: int
    batch: int
    closed: str
    """Why the last decision left somebody waiting, as the step trace names it."""
    fallback_reason: str | None = None
    load_tokens: float | None = None
    window_tokens: float | None = None
    kv_free: float | None = None
    """Share of the KV cache that is free."""
    kv_threshold: float | None = None
    """Share of it that an admission must leave free."""
    itl_ms: float | None = None
    itl_limit_ms: float | None = None
    """Objective or target of the inter-token latency."""
    itl_plan_ms: float | None = None
    """What is left of the objective once delivery and the margin for the model's errors are off;
    where the objective cannot be kept, the longest step that is planned in its place."""
    itl_reachable: bool = True
    """False where even one row takes longer than the objective of policy slo."""


class Place(NamedTuple):
    """Where a request stands in the order of admission."""

    position: int
    """1 is next."""
    prompt_tokens_ahead: int
    """Prompt tokens of all those before it."""


def facts_of(state: Mapping[str, Any]) -> Facts:
    """Facts from a state as the server reports it; what is missing stays unknown."""
    limit, theta = state.get("itl_slo_ms"), state.get("theta")
    steps = state.get("itl_step_goal_ms", limit)
    return Facts(
        policy=str(state.get("policy", "unknown")),
        deciding=bool(state.get("deciding")),
        queue=int(state.get("queue") or 0),
        batch=int(state.get("batch") or 0),
        closed=str(state.get("closed") or ""),
        fallback_reason=state.get("fallback_reason"),
        load_tokens=state.get("load_tokens"),
        window_tokens=state.get("window_tokens"),
        kv_free=state.get("kv_free"),
        kv_threshold=state.get("kv_threshold"),
        itl_ms=state.get("itl_ms"),
        itl_limit_ms=limit if limit is not None else state.get("itl_target_ms"),
        itl_plan_ms=None if steps is None or theta is None else steps * theta,
        itl_reachable=bool(state.get("itl_slo_reachable", True)),
    )


def place_of(request: RequestInfo, order: Sequence[RequestInfo]) -> Place | None:
    """The place of ``request`` in ``order``; None where it is not in it."""
    ahead = 0
    for position, other in enumerate(order, start=1):
        if other is request:
            return Place(position, ahead)
        ahead += prompt_to_serve(other)
    return None


def prompt_to_serve(request: RequestInfo) -> int:
    """Prompt tokens that the engine has to compute for ``request``."""
    return max(0, request.prompt_tokens - request.cached_tokens)


def status_line(facts: Facts) -> str:
    """One sentence: who waits, and why now."""
    if facts.fallback_reason:
        return (
            f"TWP FELL BACK to stock SGLang scheduling (fault in {facts.fallback_reason}, the "
            f"log has the traceback); {_waiting(facts.queue)} in SGLang's own order. Restart the "
            "server to have TWP decide again."
        )
    if not facts.queue:
        running = f"{_count(facts.batch, 'request')} {_verb(facts.batch, 'runs', 'run')}"
        idle = f"Nobody waits; {running}." if facts.batch else "Idle: nobody waits, nobody runs."
        return idle + _out_of_reach(facts)
    waiting = _waiting(facts.queue)
    why = hold(facts)
    if not facts.deciding:
        return f"{waiting}. SGLang decides, TWP only watches and would say: {why}."
    # The window's own sentence says it already.
    return f"{waiting}: {why}." + ("" if facts.closed == "window" else _out_of_reach(facts))


def _out_of_reach(facts: Facts) -> str:
    return "" if facts.itl_reachable else f" {_unkept(facts)}."


def _unkept(facts: Facts) -> str:
    limit = "" if facts.itl_limit_ms is None else f" of {facts.itl_limit_ms:,.0f} ms"
    plan = (
        "longer steps"
        if facts.itl_plan_ms is None
        else f"steps of up to {facts.itl_plan_ms:,.0f} ms"
    )
    return f"The ITL objective{limit} cannot be kept even by one row; {plan} are planned"


def hold(facts: Facts, expected_tokens: int | None = None) -> str:
    """Why the next request must wait.

    Args:
        facts: of the last pass.
        expected_tokens: output that the next request would add, where it is known.
    """
    words = {
        "window": _window,
        "kv": _memory,
        "target": _target,
    }.get(facts.closed)
    if words is not None:
        return words(facts, expected_tokens)
    if facts.closed in _PLAIN:
        return _PLAIN[facts.closed]
    return f"the gate is shut ({facts.closed})"


_PLAIN = {
    "": "it has just come, and the next pass decides",
    "engine": "SGLang takes no more in this step: its slots, its chunk of prompt tokens or its "
    "memory are used up",
    "chunk": "the prompt tokens of this step are spent: a bound on them (chunk_tokens, or what "
    "policy slo's objective leaves) protects those who decode",
    "forced-limit": "requests that waited past T_max go first, and no more of them may enter in "
    "one pass (forced_per_step), or not so many of their prompt tokens (forced_tokens_per_step)",
    "limit": "so many enter in one pass and no more; the next pass goes on",
}


def _window(facts: Facts, expected_tokens: int | None) -> str:
    load, window = facts.load_tokens, facts.window_tokens
    if facts.policy == "slo" and not facts.itl_reachable:
        return (
            "with one more request in the batch the predicted step, and the prompts that keep "
            f"coming, would be longer than is planned. {_unkept(facts)}"
        )
    if facts.policy == "slo":
        limit = "" if facts.itl_limit_ms is None else f" of {facts.itl_limit_ms:,.0f} ms"
        plan = (
            ""
            if facts.itl_plan_ms is None
            else (f", of which the errors of its model leave {facts.itl_plan_ms:,.0f} ms")
        )
        return (
            "with one more request in the batch the predicted step, and the prompts that keep "
            f"coming, would not keep within the ITL objective{limit}{plan}"
        )
    if load is None or window is None:
        return "the token window is full"
    owed = f"those who run still owe {load:,.0f} output tokens"
    if load > window:
        return f"{owed}, which is more than the window of {window:,.0f} already"
    adds = (
        "the next one would add"
        if expected_tokens is None
        else (f"the next one would add {expected_tokens:,},")
    )
    return f"{owed}, and {adds} more than the window of {window:,.0f} takes"


def _memory(facts: Facts, expected_tokens: int | None) -> str:
    if facts.policy == "slo":
        now = "" if facts.kv_free is None else f" ({facts.kv_free:.0%} of it is free now)"
        return (
            "by the forecast of their lengths, those who run and the next request would come to "
            f"need more KV cache than there is{now}"
        )
    if facts.kv_free is None or facts.kv_threshold is None:
        return "the KV cache is too full for the next prompt"
    return (
        f"the KV cache is {facts.kv_free:.0%} free, and the next prompt would leave less than the "
        f"{facts.kv_threshold:.1%} that must stay free"
    )


def _target(facts: Facts, expected_tokens: int | None) -> str:
    if facts.itl_ms is None or facts.itl_limit_ms is None:
        return "the inter-token latency is above its target"
    return (
        f"the inter-token latency of {facts.itl_ms:,.1f} ms is above the target of "
        f"{facts.itl_limit_ms:,.0f} ms, so the batch may not grow"
    )


def _waiting(queue: int) -> str:
    return f"{_count(queue, 'request')} {_verb(queue, 'waits', 'wait')}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _verb(number: int, one: str, many: str) -> str:
    return one if number == 1 else many
