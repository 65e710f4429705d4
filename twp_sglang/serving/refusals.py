"""SGLang features under which TWP does not steer (yet), refused at start.

Each names the flag and the way out. Serving on regardless would look like TWP and not be
it: the decode side of a disaggregated pair never meets the gate, a pipeline stage has
several batches in flight, speculative decoding emits several tokens per step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

_WAY_OUT = "or serve it with --twp-policy off"


class _Refusal(NamedTuple):
    flag: str
    asked: Callable[[Any], bool]
    why: str


def _set(name: str) -> Callable[[Any], bool]:
    return lambda arguments: bool(getattr(arguments, name, None))


def _above_one(name: str) -> Callable[[Any], bool]:
    return lambda arguments: (getattr(arguments, name, None) or 1) > 1


_REFUSALS = (
    _Refusal(
        "--pipeline-parallel-size",
        _above_one("pp_size"),
        "several batches are in flight, and step time is not inter-token latency; use tensor "
        "parallelism",
    ),
    _Refusal(
        "--disaggregation-mode",
        lambda a: (getattr(a, "disaggregation_mode", None) or "null") != "null",
        "the decode server admits through another queue that the gate never sees",
    ),
    _Refusal("--encoder-only", _set("encoder_only"), "an encoder generates no tokens"),
    _Refusal(
        "--dllm-algorithm",
        _set("dllm_algorithm"),
        "a diffusion model has no token-by-token steps to pace",
    ),
    _Refusal("--enable-pdmux", _set("enable_pdmux"), "it runs its own scheduling loop"),
    _Refusal(
        "--enable-hisparse",
        _set("enable_hisparse"),
        "it moves requests from prefill to decode outside the running batch",
    ),
    _Refusal(
        "--speculative-algorithm",
        _set("speculative_algorithm"),
        "a step then yields several tokens per request, and the load is not yet counted so",
    ),
    _Refusal("--is-embedding", _set("is_embedding"), "there is no inter-token latency to pace"),
    _Refusal(
        "--enable-lora",
        lambda a: bool(getattr(a, "enable_lora", False) or getattr(a, "lora_paths", None)),
        "SGLang skips requests whose adapter is not loaded, and the gate never skips its head; "
        "merge the adapter into the weights",
    ),
    _Refusal(
        "--attn-dp-size / --enable-dp-attention",
        lambda a: bool(
            (getattr(a, "attn_dp_size", None) or 1) > 1 or getattr(a, "enable_dp_attention", False)
        ),
        "each attention group would need its own controller; use plain --data-parallel-size",
    ),
    _Refusal(
        "--schedule-policy",
        lambda a: (getattr(a, "schedule_policy", None) or "fcfs") != "fcfs",
        "the waiting queue has one order, and TWP gives it; leave the flag out",
    ),
    _Refusal("--use-ray", _set("use_ray"), "Ray starts the schedulers itself, without the proof"),
    _Refusal(
        "--grpc-mode",
        lambda a: bool(getattr(a, "grpc_mode", False) or getattr(a, "smg_grpc_mode", False)),
        "that server starts its schedulers itself, without the proof; serve over HTTP",
    ),
)

_REFUSED_ENVIRONMENT = {
    "SGLANG_USE_MLX": "the MLX runner has its own loop",
    "SGLANG_RUST_SERVER": "the Rust front end is not tried under TWP",
}

_STOCK_ORDER_ALLOWED = ("observe",)


def refused(arguments: Any, policy: str) -> list[str]:
    """Why SGLang's ``arguments`` cannot be served under ``policy``; empty if they can."""
    reasons = [
        f"{refusal.flag}: {refusal.why}, {_WAY_OUT}"
        for refusal in _REFUSALS
        if refusal.asked(arguments)
        and not (refusal.flag == "--schedule-policy" and policy in _STOCK_ORDER_ALLOWED)
    ]
    reasons += [
        f"{name}={os.environ[name]}: {why}, {_WAY_OUT}"
        for name, why in _REFUSED_ENVIRONMENT.items()
        if os.environ.get(name, "").lower() in ("1", "true", "yes")
    ]
    return reasons
