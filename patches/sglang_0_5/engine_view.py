"""Numbers read off SGLang's objects: the only place that knows their attributes.

Functions take SGLang's objects untyped, because importing their types would import torch
in processes that only check or configure.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

SCHEDULE_BATCH = "sglang.srt.managers.schedule_batch"
SCHEDULER = "sglang.srt.managers.scheduler"

READS = (
    f"{SCHEDULER}:Scheduler.waiting_queue",
    f"{SCHEDULER}:Scheduler.running_batch",
    f"{SCHEDULER}:Scheduler.chunked_req",
    f"{SCHEDULER}:Scheduler.new_token_ratio_tracker",
    f"{SCHEDULER}:Scheduler.enable_priority_preemption",
    f"{SCHEDULER}:Scheduler.priority_scheduling_preemption_threshold",
    f"{SCHEDULE_BATCH}:Req.rid",
    f"{SCHEDULE_BATCH}:Req.origin_input_ids",
    f"{SCHEDULE_BATCH}:Req.output_ids",
    f"{SCHEDULE_BATCH}:Req.sampling_params",
    "sglang.srt.sampling.sampling_params:SamplingParams.custom_params",
    f"{SCHEDULE_BATCH}:Req.priority",
    f"{SCHEDULE_BATCH}:Req.finished",
    f"{SCHEDULE_BATCH}:Req.finished_reason",
    f"{SCHEDULE_BATCH}:ScheduleBatch.reqs",
    f"{SCHEDULE_BATCH}:ScheduleBatch.forward_mode",
    f"{SCHEDULE_BATCH}:ScheduleBatch.decoding_reqs",
    f"{SCHEDULE_BATCH}:ScheduleBatch.extend_num_tokens",
    f"{SCHEDULE_BATCH}:NextBatchPlan.batch_to_run",
    f"{SCHEDULE_BATCH}:NextBatchPlan.running_batch",
)


class BatchFacts(NamedTuple):
    """What a launched batch consists of."""

    kind: str
    decode_rows: int
    prefill_tokens: int


def request_numbers(req: Any) -> tuple[int, int, int]:
    """(prompt tokens, max new tokens, produced tokens) of one request."""
    return len(req.origin_input_ids), req.sampling_params.max_new_tokens, len(req.output_ids)


def was_aborted(req: Any) -> bool:
    """Whether a finished request was ended from outside."""
    reason = req.finished_reason
    return reason is not None and bool(reason.to_json().get("type") == "abort")


def prompt_ids(req: Any) -> Any:
    """Token ids of the prompt; None where the prompt is not made of them alone."""
    if req.multimodal_inputs is not None or req.input_embeds is not None:
        return None
    return req.origin_input_ids


def vocabulary(scheduler: Any) -> int:
    """How many token ids a prompt may use."""
    config = scheduler.model_config
    # Where a model speaks in another vocabulary than it reads, this is the larger of both.
    return max(int(config.vocab_size), int(config.hf_text_config.vocab_size))


def custom_params(req: Any) -> Any:
    """What the client sent in ``custom_params``, or None."""
    return req.sampling_params.custom_params


def queued_since_s(req: Any) -> float | None:
    """When the request joined the queue, on this process's ``time.perf_counter``; None where
    SGLang does not say. Differs between ranks: for reports only, never for decisions."""
    since = getattr(getattr(req, "time_stats", None), "wait_queue_entry_time", None)
    return float(since) if since else None


def running_requests(scheduler: Any) -> list[Any]:
    """Requests that SGLang has taken in, also those of a batch whose result is not in yet."""
    reqs = active_before(scheduler.running_batch, scheduler.chunked_req)
    last = getattr(scheduler, "last_batch", None)
    if last is not None:
        reqs += [req for req in last.reqs if req not in reqs]
    return reqs


def active_before(running_batch: Any, chunked_req: Any) -> list[Any]:
    """Running requests and the one in the middle of its prompt, which is not among them."""
    reqs = list(running_batch.reqs) if running_batch is not None else []
    if chunked_req is not None and chunked_req not in reqs:
        reqs.append(chunked_req)
    return reqs


def active_after(plan: Any, chunked_req: Any) -> list[Any]:
    """The active set once a pass has formed its batch: running, prefilling, chunked."""
    reqs = list(plan.running_batch.reqs)
    batch = plan.batch_to_run
    if batch is not None and batch is not plan.running_batch:
        reqs += batch.reqs
    if chunked_req is not None and chunked_req not in reqs:
        reqs.append(chunked_req)
    return reqs


def owed_prompt_tokens(chunked_req: Any) -> int:
    """Prompt tokens of the chunked request that hold no KV yet."""
    if chunked_req is None:
        return 0
    total = len(chunked_req.origin_input_ids) + len(chunked_req.output_ids)
    return int(max(0, total - prefix_tokens(chunked_req)))


def prefix_tokens(req: Any) -> int:
    """Tokens of ``req`` that hold KV when its next prompt tokens are computed; of a request that
    was just taken, what SGLang found in its prefix cache."""
    # 0.5.22 keeps a count; before, the length of the index tensor is the count.
    count = getattr(req, "prefix_len", None)
    return len(req.prefix_indices) if count is None else int(count)


def kv_free_tokens(scheduler: Any) -> int:
    """KV tokens that are free or can be evicted, of the full-attention pool."""
    allocator = scheduler.token_to_kv_pool_allocator
    cache = scheduler.tree_cache
    # Hybrid sliding-window pools count both kinds; the full-attention part runs out first.
    if hasattr(allocator, "full_available_size"):
        return int(allocator.full_available_size() + cache.full_evictable_size())
    return int(allocator.available_size() + cache.evictable_size())


def new_token_ratio(scheduler: Any) -> float:
    """Share of the outstanding output that SGLang reserves, 0 to 1; equal on all ranks, which
    take the same steps."""
    return float(scheduler.new_token_ratio_tracker.current)


def preemption_threshold(scheduler: Any) -> int | None:
    """Difference of priority above which SGLang preempts; None where it never does."""
    if not scheduler.enable_priority_preemption:
        return None
    return int(scheduler.priority_scheduling_preemption_threshold)


def kv_capacity_tokens(scheduler: Any) -> int:
    """KV tokens of the whole pool."""
    return int(scheduler.max_total_num_tokens)


def aligned_chunk(chunk_tokens: int, scheduler: Any) -> int:
    """C as a multiple of what a chunk must end on (page, state of a hybrid model): a
    smaller one would never be taken while somebody decodes."""
    grain = math.lcm(int(scheduler.page_size), int(scheduler.truncation_align_size or 1))
    return -(-chunk_tokens // grain) * grain


def batch_facts(batch: Any) -> BatchFacts:
    """Kind, decoding rows and prompt tokens of a batch about to run."""
    if batch.forward_mode.is_decode():
        return BatchFacts("decode", len(batch.reqs), 0)
    decoding = len(batch.decoding_reqs or ())
    # A mixed batch counts each decoding row as one token to extend by.
    prefill_tokens = int(batch.extend_num_tokens or 0) - decoding
    return BatchFacts("mixed" if decoding else "prefill", decoding, prefill_tokens)


def graph_ceiling_rows(scheduler: Any) -> int | None:
    """Largest batch whose decode step SGLang has captured as a CUDA graph; None where it has
    captured none, or more than it ever runs.

    Equal on all ranks: sizes follow from the server's arguments. Where SGLang keeps the runner
    elsewhere the answer is None, which costs a jump that must be learned and nothing else.
    """
    model_runner = getattr(getattr(scheduler, "tp_worker", None), "model_runner", None)
    runner = getattr(model_runner, "decode_cuda_graph_runner", None)
    sizes = getattr(runner, "capture_bs", None)
    if not sizes:
        return None
    rows = int(max(sizes))
    most = getattr(scheduler, "max_running_requests", None)
    return None if most is not None and rows >= most else rows
