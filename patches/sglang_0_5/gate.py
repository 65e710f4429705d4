"""The admission gate, and the prompt budget of a mixed step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patches import active
from patches.contract import Hook

POLICY = "sglang.srt.managers.schedule_policy"


def add_one_req(
    original: Callable[..., Any], adder: Any, req: Any, *args: Any, **kwargs: Any
) -> Any:
    """AROUND: OTHER while the gate is closed, stock otherwise.

    OTHER ends this pass's admissions and nothing else. NO_TOKEN would also set
    ``batch_is_full``, after which SGLang stops asking for an order; the engine's own
    NO_TOKEN for a granted request stays in force.
    """
    runtime = active.steering()
    if runtime is not None:
        try:
            if not runtime.may_admit(req):
                return _other()
        except Exception:
            runtime.fault("may_admit")
    result = original(adder, req, *args, **kwargs)
    runtime = active.steering()
    if runtime is not None:
        try:
            taken = adder.can_run_list
            if taken and taken[-1] is req:
                runtime.admitted(req)
        except Exception:
            runtime.fault("admitted")
    return result


def _other() -> Any:
    from sglang.srt.managers.schedule_policy import AddReqResult

    return AddReqResult.OTHER


def prefill_adder_init(
    returned: Any,
    adder: Any,
    page_size: Any,
    tree_cache: Any,
    allocator: Any,
    running_batch: Any,
    new_token_ratio: Any,
    rem_input_tokens: Any,
    rem_chunk_tokens: Any,
    num_mixed_decode_tokens: int = 0,
    *args: Any,
    **kwargs: Any,
) -> None:
    """AFTER: the prompt budget of this step, while somebody decodes."""
    runtime = active.steering()
    if runtime is None or not runtime.policy.enforces or adder.rem_chunk_tokens is None:
        return
    # SGLang took one token per decoding row off the chunk; C is prompt tokens.
    whole = adder.rem_chunk_tokens + num_mixed_decode_tokens
    try:
        chunk = runtime.step_chunk_tokens(running_batch, page_size)
    except Exception:
        runtime.fault("step_chunk_tokens")
        return
    adder.rem_chunk_tokens = whole if chunk is None else min(whole, chunk)


HOOKS = (
    Hook(
        target=f"{POLICY}.PrefillAdder.add_one_req",
        kind="around",
        function=f"{__name__}:add_one_req",
        signatures=("self, req, has_chunked_req, truncation_align_size",),
        replaces="SGLang's admission, which asks for memory only",
        why="the token window and the KV threshold decide; what fits physically is still "
        "SGLang's own decision",
        until="SGLang asks an admission policy before it takes a request",
        reads=(
            f"{POLICY}:PrefillAdder.can_run_list",
            f"{POLICY}:AddReqResult.OTHER",
        ),
    ),
    Hook(
        target=f"{POLICY}.PrefillAdder.__init__",
        kind="after",
        function=f"{__name__}:prefill_adder_init",
        signatures=(
            "self, page_size, tree_cache, token_to_kv_pool_allocator, running_batch, "
            "new_token_ratio, rem_input_tokens, rem_chunk_tokens, num_mixed_decode_tokens=, "
            "priority_scheduling_preemption_threshold=, max_prefill_bs=, "
            "max_running_requests=, prefill_max_requests=, prefill_delayer_single_pass=, "
            "dllm_config=, waiting_queue_len=, prefill_tile_block_m=",
        ),
        replaces="the prompt budget of a step, which in SGLang is the same whether or not "
        "anybody decodes, and from which a mixed step takes one token per decoding row",
        why="C bounds what a prompt costs those who decode (section IV-B3 iii): with nobody "
        "decoding it would only delay the first token, and with 64 rows decoding a chunk of "
        "64 would never move",
        until="SGLang sizes chunks by who is decoding and counts prompt tokens in mixed steps",
        reads=(f"{POLICY}:PrefillAdder.rem_chunk_tokens",),
    ),
)
