"""A running request makes way for a higher priority."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patches import active
from patches.contract import Hook
from patches.sglang_0_5.engine_view import SCHEDULE_BATCH

POLICY = "sglang.srt.managers.schedule_policy"


def preempt_to_schedule(original: Callable[..., Any], adder: Any, req: Any, *args: Any) -> Any:
    """AROUND: only for a granted request, and never at the cost of a protected one.

    SGLang takes its victims from the running requests that are not in ``preempt_list``, so
    the protected ones stand in it for the length of the call.
    """
    runtime = active.steering()
    if runtime is None:
        return original(adder, req, *args)
    try:
        if not runtime.may_admit(req):
            return False
        spared: list[Any] = []
        if runtime.policy.enforces:
            spared = runtime.preemptions.protected(adder.running_batch.reqs)
    except Exception:
        runtime.fault("preempt_to_schedule")
        return original(adder, req, *args)
    before = adder.preempt_list
    adder.preempt_list = [*before, *spared]
    try:
        return original(adder, req, *args)
    finally:
        victims = adder.preempt_list[len(before) + len(spared) :]
        adder.preempt_list = [*before, *victims]
        _tell(runtime, victims)


def _tell(runtime: Any, victims: list[Any]) -> None:
    try:
        for victim in victims:
            runtime.preemptions.made_way(victim)
    except Exception:
        runtime.fault("preempted")


HOOKS = (
    Hook(
        target=f"{POLICY}.PrefillAdder.preempt_to_schedule",
        kind="around",
        function=f"{__name__}:preempt_to_schedule",
        signatures=("self, req", "self, req, server_args"),
        replaces="nothing that the policy granted: the victims are those that SGLang chooses among "
        "the requests that are not protected",
        why="SGLang preempts before it asks whether the request may enter, so a closed gate would "
        "cost the victim its memory for nobody; and a stream of high priorities would preempt the "
        "same request over and over",
        until="SGLang asks an admission policy before it preempts",
        reads=(
            f"{POLICY}:PrefillAdder.preempt_list",
            f"{POLICY}:PrefillAdder.running_batch",
            f"{SCHEDULE_BATCH}:ScheduleBatch.batch_is_full",
        ),
    ),
)
