"""What differs in SGLang 0.5.17, the newest for torch 2.11.

There is no ``_poll_timeout_aborts`` yet: the samples ride on what rank 0 has read from its
sockets, which SGLang broadcasts in the same call. Two functions take an argument less, an
abort is made by hand, and the prefix cache is another class.
"""

from __future__ import annotations

from typing import Any

from patches.contract import Hook
from patches.sglang_0_5 import consensus, gate, prefix_view, queueing, ranking, refusing
from patches.sglang_0_5.engine_view import SCHEDULER

RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver"


def pull_raw_reqs(result: list[Any] | None, receiver: Any) -> list[Any] | None:
    """AFTER: append the samples not yet delivered to what the reading rank has read.

    The other ranks get None here, and all of it by SGLang's broadcast.
    """
    return None if result is None else consensus.with_samples(result)


def _with(hooks: tuple[Hook, ...], method: str, signature: str) -> tuple[Hook, ...]:
    """``hooks`` with the one on ``method`` known to work with ``signature`` alone."""
    return tuple(
        hook._replace(signatures=(signature,)) if hook.target.endswith(method) else hook
        for hook in hooks
    )


CONSENSUS = (
    Hook(
        target=f"{RECEIVER}.SchedulerRequestReceiver._pull_raw_reqs",
        kind="after",
        function=f"{__name__}:pull_raw_reqs",
        signatures=("self",),
        replaces="nothing: requests are received as stock",
        why="its return value on rank 0 is what SGLang broadcasts to all ranks",
        until="0.5.17 is no longer served: 0.5.20 has _poll_timeout_aborts for it",
        reads=(f"{RECEIVER}:SchedulerRequestReceiver._broadcast_reqs_across_ranks",),
    ),
    *(hook for hook in consensus.HOOKS if hook.target.endswith(".process_input_requests")),
)

QUEUEING = tuple(
    hook._replace(
        reads=(
            *(name for name in hook.reads if name not in prefix_view.READS),
            *prefix_view.READS_BEFORE_0_5_20,
        )
    )
    for hook in queueing.HOOKS
)

REFUSING = tuple(
    hook._replace(
        reads=tuple(
            "sglang.srt.managers.io_struct:AbortReq"
            if name == f"{SCHEDULER}:_make_abort_req"
            else name
            for name in hook.reads
        )
    )
    for hook in refusing.HOOKS
)

RANKING = _with(
    ranking.HOOKS, "SchedulePolicy.calc_priority", "self, waiting_queue, running_batch="
)

GATE = _with(
    gate.HOOKS,
    "PrefillAdder.__init__",
    "self, page_size, tree_cache, token_to_kv_pool_allocator, running_batch, new_token_ratio, "
    "rem_input_tokens, rem_chunk_tokens, num_mixed_decode_tokens=, "
    "priority_scheduling_preemption_threshold=, max_prefill_bs=, max_running_requests=, "
    "prefill_max_requests=, prefill_delayer_single_pass=, dllm_config=, waiting_queue_len=",
)
