"""The few attributes of SGLang's objects that TWP reads in a pass, without an engine.

Light on purpose: what is timed is TWP's own work, and these cost no more to read than
SGLang's plain attributes do.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class SamplingParams:
    """The sampling parameters that TWP reads."""

    max_new_tokens: int
    custom_params: dict[str, Any] | None = None


class Req:
    """A request as SGLang's scheduler holds it."""

    def __init__(
        self, rid: str, prompt_tokens: int, max_new_tokens: int, produced: int = 0
    ) -> None:
        self.rid = rid
        self.origin_input_ids = array("q", bytes(8 * prompt_tokens))
        self.output_ids = array("q", bytes(8 * produced))
        self.sampling_params = SamplingParams(max_new_tokens)
        self.priority: int | None = None
        self.multimodal_inputs = None
        self.input_embeds = None
        self.finished_reason: Any = None
        self.prefix_len = 0
        self.extra_key = None
        self.cache_salt = None
        self.positional_embed_overrides = None

    def _compute_max_prefix_len(self, prompt_tokens: int) -> int:
        return prompt_tokens - 1

    def finished(self) -> bool:
        """These never finish: the batch keeps its size while it is timed."""
        return False


class ForwardMode:
    """A decode step."""

    def is_decode(self) -> bool:
        """True: an admission's own prefill is not what is timed."""
        return True


@dataclass
class Batch:
    """The running batch."""

    reqs: list[Req]
    forward_mode: ForwardMode = field(default_factory=ForwardMode)
    decoding_reqs: list[Req] | None = None
    extend_num_tokens: int | None = None


@dataclass
class Plan:
    """What SGLang's pass returns."""

    batch_to_run: Batch
    running_batch: Batch


class Allocator:
    """The KV pool's allocator."""

    def __init__(self, free: int) -> None:
        self.free = free

    def available_size(self) -> int:
        """Free tokens."""
        return self.free


class Cache:
    """A prefix cache that is off, with nothing to evict."""

    disable = True

    def evictable_size(self) -> int:
        """Tokens that could be freed."""
        return 0


@dataclass
class NewTokenRatio:
    """SGLang's share of the outstanding output to reserve."""

    current: float = 0.3


@dataclass
class TextConfig:
    """Configuration of the model's text part."""

    vocab_size: int = 32_000


@dataclass
class ModelConfig:
    """SGLang's view of the model."""

    vocab_size: int = 32_000
    hf_text_config: TextConfig = field(default_factory=TextConfig)


class Scheduler:
    """SGLang's scheduler as TWP sees it."""

    def __init__(self, batch: Batch, capacity_tokens: int, free_tokens: int) -> None:
        self.running_batch = batch
        self.waiting_queue: list[Any] = []
        self.chunked_req = None
        self.model_config = ModelConfig()
        self.max_total_num_tokens = capacity_tokens
        self.token_to_kv_pool_allocator = Allocator(free_tokens)
        self.tree_cache = Cache()
        self.enable_overlap = True
        self.new_token_ratio_tracker = NewTokenRatio()
        self.enable_priority_scheduling = False
        self.enable_priority_preemption = False
        self.priority_scheduling_preemption_threshold = 10
        self.schedule_low_priority_values_first = False
