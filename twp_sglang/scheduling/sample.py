"""What the engine tells the scheduler: one measured step, one scheduling pass."""

from __future__ import annotations

from typing import Literal, NamedTuple

from twp_sglang.scheduling.active_rows import RowsReader, nobody

StepKind = Literal["decode", "prefill", "mixed"]


class StepSample(NamedTuple):
    """One finished step as rank 0 measured it.

    ``duration_ms`` is the time between the completion of the previous step and of this
    one (Definition 1 of the paper), or None where that span means nothing: the engine was
    idle in between, the step drained the pipeline, or it belongs to the warm-up.
    """

    step: int
    kind: StepKind
    duration_ms: float | None
    batch: int
    """Requests that decoded in the step, B."""
    prefill_tokens: int
    """Prompt tokens that the step processed."""
    kv_tokens: int
    """KV-cache tokens held when the step was launched."""


class PassView(NamedTuple):
    """The engine at the start of one scheduling pass, after finished requests left."""

    pass_index: int
    """Scheduling passes since start; the unit in which waiting is counted, because every
    tensor-parallel rank makes the same passes while their clocks differ."""
    load_tokens: int
    """K: remaining output tokens of running and chunked requests."""
    batch: int
    """Active requests, the chunked one included."""
    kv_free_tokens: int
    """KV tokens free or evictable, less the prompt tokens still owed to chunked requests."""
    kv_capacity_tokens: int
    """KV tokens of the whole pool."""
    owed_prompt_tokens: int = 0
    """Prompt tokens that chunked requests still have to compute; above 0, one of ``batch``
    does not decode yet."""
    now_ms: float = 0.0
    """Rank 0's clock, as all ranks know it; 0 where no policy reads it."""
    rows: RowsReader = nobody
    """The active requests one by one, for policies with ``reads_rows``; valid during the pass."""
    preemption_threshold: int | None = None
    """Difference of priority above which the engine preempts; None where it never does."""
