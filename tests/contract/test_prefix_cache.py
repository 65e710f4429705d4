"""The question to SGLang's own prefix caches: the right answer, and nothing touched."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("sglang.srt.mem_cache.unified_radix_cache", reason="needs SGLang installed")

import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from patches.sglang_0_5 import prefix_view

Make = Callable[[int], Any]


class _Allocator:
    """Takes back what is evicted."""

    device = "cpu"

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size

    def free(self, indices: Any) -> None: ...

    def free_segment(self, indices: Any, start_pos: int = 0) -> None: ...


class _Req:
    """A waiting request of SGLang as far as its prompt goes."""

    def __init__(self, ids: array[int], extra_key: str | None = None) -> None:
        self.origin_input_ids = ids
        self.output_ids = array("q")
        self.extra_key = extra_key
        self.cache_salt: str | None = None
        self.positional_embed_overrides: Any = None

    def _compute_max_prefix_len(self, tokens: int) -> int:
        return tokens - 1


def _unified(core: str) -> Make:
    return lambda page: UnifiedRadixCache(
        CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=_Allocator(page),
            page_size=page,
            tree_components=(ComponentType.FULL,),
            tree_core_backend=core,
        )
    )


def _plain(page: int) -> Any:
    return RadixCache.create_simulated(mock_allocator=_Allocator(page), page_size=page)


CACHES = [
    pytest.param(_unified("rust"), id="unified-rust"),
    pytest.param(_unified("python"), id="unified-python"),
    # What SGLang 0.5.17 serves with; this release still has it.
    pytest.param(_plain, id="radix"),
]


def prompts(seed: int) -> list[array[int]]:
    """Prompts of which many begin like others, of few different tokens."""
    draw = random.Random(seed)
    stems = [array("q", [draw.randrange(4) for _ in range(64)]) for _ in range(3)]
    return [
        draw.choice(stems)[: draw.randrange(65)]
        + array("q", [draw.randrange(4) for _ in range(draw.randrange(1, 40))])
        for _ in range(60)
    ]


def filled(make: Make, page: int, extra_key: str | None = None) -> Any:
    cache = make(page)
    for ids in prompts(1):
        value = torch.arange(len(ids) // page * page)
        cache.insert(InsertParams(key=RadixKey(ids, extra_key), value=value))
    return cache


def matched(cache: Any, ids: array[int]) -> int:
    """By SGLang's own question, which leaves its marks."""
    result = cache.match_prefix(MatchPrefixParams(key=RadixKey(ids, None)))
    return int(result.device_prefix_len)


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("make", CACHES)
def test_the_answer_is_sglangs_without_the_last_token(make: Make, page: int) -> None:
    cache = filled(make, page)
    ask = prefix_view.question_for(cache)
    assert ask is not None
    asked = [*prompts(1)[:20], *prompts(2)]
    answers = [ask(_Req(ids)) for ids in asked]
    whole = [matched(cache, ids) for ids in asked]
    assert answers == [
        min(found, (len(ids) - 1) // page * page) for found, ids in zip(whole, asked, strict=True)
    ]
    assert any(answers)
    assert any(found > answer for found, answer in zip(whole, answers, strict=True))


@pytest.mark.parametrize("make", CACHES)
def test_asking_changes_neither_the_tree_nor_who_is_evicted_next(make: Make) -> None:
    asked, left_alone = filled(make, 1), filled(make, 1)
    ask = prefix_view.question_for(asked)
    assert ask is not None
    held = prefix_view.tokens_held(asked)
    for ids in prompts(1)[:10] + prompts(2):
        ask(_Req(ids))
    assert prefix_view.tokens_held(asked) == held
    for _ in range(4):
        for cache in (asked, left_alone):
            cache.evict(EvictParams(num_tokens=held // 8))
        # Asked by copies of the rule and not by match_prefix, which would split and touch.
        ask_other = prefix_view.question_for(left_alone)
        assert ask_other is not None
        kept = [ask(_Req(ids)) for ids in prompts(1)]
        assert kept == [ask_other(_Req(ids)) for ids in prompts(1)]
        assert prefix_view.tokens_held(asked) == prefix_view.tokens_held(left_alone) < held


@pytest.mark.parametrize("make", CACHES)
def test_what_was_cached_under_another_name_is_not_held(make: Make) -> None:
    cache = filled(make, 1, extra_key="adapter a")
    ask = prefix_view.question_for(cache)
    assert ask is not None
    ids = prompts(1)[0]
    assert ask(_Req(ids, "adapter a")) == len(ids) - 1
    assert ask(_Req(ids, "adapter b")) == 0
    assert ask(_Req(ids)) == 0
    salted = _Req(ids, "adapter a")
    salted.cache_salt = "salt"
    assert ask(salted) == 0
    overridden = _Req(ids, "adapter a")
    overridden.positional_embed_overrides = object()
    assert ask(overridden) == 0


@pytest.mark.parametrize("make", CACHES)
def test_a_retracted_request_finds_what_it_had_produced(make: Make) -> None:
    cache = filled(make, 1)
    ask = prefix_view.question_for(cache)
    assert ask is not None
    ids = max(prompts(1), key=len)
    req = _Req(ids[:10])
    req.output_ids = ids[10:]
    assert ask(req) == len(ids) - 1


def test_a_disabled_cache_is_not_asked() -> None:
    cache = UnifiedRadixCache(
        CacheInitParams(
            disable=True,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=_Allocator(1),
            page_size=1,
            tree_components=(ComponentType.FULL,),
        )
    )
    assert prefix_view.question_for(cache) is None
    assert prefix_view.question_for(RadixCache.create_simulated(disable=True)) is None


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("make", CACHES)
def test_odd_prompts_hold_nothing(make: Make, page: int) -> None:
    ask = prefix_view.question_for(filled(make, page))
    assert ask is not None
    odd = [[], [1], [-1, -1], [2**62] * 40, [0] * (page - 1)]
    assert [ask(_Req(array("q", ids))) for ids in odd] == [0] * len(odd)
