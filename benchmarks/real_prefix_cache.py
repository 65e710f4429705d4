"""SGLang's own prefix cache, which needs no engine around it, filled as one that serves."""

from __future__ import annotations

import random
from array import array
from typing import Any

STEMS = 16
"""System prompts that the prompts begin with."""

STEM_TOKENS = 20
"""A tenth of a prompt: as many prompts fill a step as without a cache, so that costs compare."""

VOCABULARY = 32_000


class _Allocator:
    """Takes back the KV that was in the tree already."""

    device = "cpu"
    page_size = 1

    def free_segment(self, indices: Any, start_pos: int = 0) -> None:
        """Nothing is kept of it."""


class RealPrefixCache:
    """A tree of SGLang's, and prompts of which some begin as others did.

    Args:
        draw: where the token ids come from.

    Raises:
        ImportError: SGLang is not installed.
    """

    def __init__(self, draw: random.Random) -> None:
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.unified_cache.components import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        self._draw = draw
        self._stems = [self._ids(STEM_TOKENS) for _ in range(STEMS)]
        self.cache = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=_Allocator(),
                page_size=1,
                tree_components=(ComponentType.FULL,),
            )
        )

    def prompt(self, tokens: int) -> array[int]:
        """A prompt of so many tokens: as much of a stem as goes in, and words of its own."""
        stem = self._draw.choice(self._stems)[: max(0, tokens - 1)]
        return stem + self._ids(tokens - len(stem))

    def computed(self, prompt: array[int]) -> int:
        """``prompt`` was computed and is in the cache from now on. Returns the tokens that were
        not there before."""
        import torch
        from sglang.srt.mem_cache.base_prefix_cache import InsertParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        before = int(self.cache.evictable_size())
        self.cache.insert(InsertParams(key=RadixKey(prompt), value=torch.arange(len(prompt))))
        return int(self.cache.evictable_size()) - before

    def _ids(self, tokens: int) -> array[int]:
        return array("q", [self._draw.randrange(VOCABULARY) for _ in range(tokens)])
