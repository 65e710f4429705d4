"""How much of a prompt SGLang's prefix cache holds, asked without touching the cache.

SGLang's own question, ``match_prefix``, splits nodes and makes what it finds the last to be
evicted. Asked for everybody who waits, it would change whose prefix is kept; so the tree is
only read here: by its own ``match_full_device_prefix`` since 0.5.20, by walking the nodes
before that.

Trees are equal on all tensor-parallel ranks, because SGLang forms its batches by them; so are
the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patches.sglang_0_5.engine_view import SCHEDULE_BATCH

CACHES = "sglang.srt.mem_cache"

_COMMON_READS = (
    f"{SCHEDULE_BATCH}:Req.extra_key",
    f"{SCHEDULE_BATCH}:Req.positional_embed_overrides",
    f"{SCHEDULE_BATCH}:Req._compute_max_prefix_len",
    f"{CACHES}.base_prefix_cache:BasePrefixCache.supports_swa",
    f"{CACHES}.base_prefix_cache:BasePrefixCache.supports_mamba",
    f"{CACHES}.base_prefix_cache:BasePrefixCache.protected_size",
    "sglang.srt.environ:Envs.SGLANG_RADIX_FORCE_MISS",
)

READS = (
    *_COMMON_READS,
    f"{SCHEDULE_BATCH}:Req.cache_salt",
    f"{CACHES}.radix_cache:RadixKey",
    f"{CACHES}.base_prefix_cache:BasePrefixCache.cache_controller",
    f"{CACHES}.unified_radix_cache:UnifiedRadixCache.disable",
    f"{CACHES}.unified_radix_cache:UnifiedRadixCache.linker",
    f"{CACHES}.unified_radix_cache:UnifiedRadixCache.page_size",
    f"{CACHES}.unified_radix_cache:UnifiedRadixCache.tree_core",
    f"{CACHES}.unified_cache.unified_tree_core_interface:"
    "UnifiedTreeCoreInterface.match_full_device_prefix",
)

READS_BEFORE_0_5_20 = (
    *_COMMON_READS,
    f"{CACHES}.radix_cache:TreeNode.children",
    f"{CACHES}.radix_cache:TreeNode.key",
    *(
        f"{CACHES}.radix_cache:RadixCache.{name}"
        for name in ("disable", "is_eagle", "page_size", "root_node")
    ),
    *(
        f"{CACHES}.radix_cache:RadixKey.{name}"
        for name in ("child_key", "match", "maybe_to_bigram_view", "page_aligned")
    ),
)

Question = Callable[[Any], int]
"""From a request of SGLang to the tokens of its prompt that the cache holds."""


def question_for(cache: Any) -> Question | None:
    """How to ask ``cache``; None where nothing is asked and no token counts as held.

    Not asked are caches whose tree alone does not say what a request may use: those that share
    nothing (``--disable-radix-cache``), those of models with sliding windows or a recurrent
    state, and those that keep KV elsewhere too (hierarchical and external ones). Nor is any where
    SGLang is told to use none of what it finds.
    """
    if getattr(cache, "disable", True) or cache.supports_swa() or cache.supports_mamba():
        return None
    # 0.5.17 has subclasses of its tree for these, which the last line leaves out.
    if getattr(cache, "cache_controller", None) is not None:
        return None
    if getattr(cache, "linker", None) is not None or _told_to_miss():
        return None
    if type(cache).__name__ == "UnifiedRadixCache":
        look = getattr(cache.tree_core, "match_full_device_prefix", None)
        return None if look is None else _asking(cache, lambda key: int(look(key)[0]))
    if type(cache).__name__ == "RadixCache":
        return _asking(cache, lambda key: _walked(cache, key))
    return None


def tokens_held(cache: Any) -> int:
    """Tokens in the tree of ``cache``, in use or not. Where it stays, so did the tree, mostly."""
    return int(cache.evictable_size() + cache.protected_size())


def _told_to_miss() -> bool:
    from sglang.srt.environ import envs

    return bool(envs.SGLANG_RADIX_FORCE_MISS.get())


def _asking(cache: Any, matched: Callable[[Any], int]) -> Question:
    from sglang.srt.mem_cache.radix_cache import RadixKey

    page = int(cache.page_size)

    def held(req: Any) -> int:
        # Other vectors under the same token ids: SGLang takes nothing from the cache.
        if req.positional_embed_overrides is not None:
            return 0
        ids = req.origin_input_ids + req.output_ids if req.output_ids else req.origin_input_ids
        # The last token is always computed; with log-probabilities of the prompt, more are.
        most: int = req._compute_max_prefix_len(len(ids)) // page * page
        if most <= 0:
            return 0
        key = RadixKey(ids, req.extra_key)
        # 0.5.17 has it in the extra key.
        salt = getattr(req, "cache_salt", None)
        if salt is not None:
            key.cache_salt = salt
        return min(matched(key), most)

    return held


def _walked(cache: Any, key: Any) -> int:
    """Tokens of ``key`` on the path from the root, nothing split and nothing touched."""
    key = key.maybe_to_bigram_view(cache.is_eagle)[0].page_aligned(cache.page_size)
    node, found = cache.root_node, 0
    while len(key):
        # Not by index: the children make themselves when asked for.
        node = node.children.get(key.child_key(cache.page_size))
        if node is None:
            break
        same = node.key.match(key, page_size=cache.page_size)
        found += same
        if same < len(node.key):
            break
        key = key[same:]
    return found
