"""Whom the prefix cache is asked about, when, and what comes of it; on stand-ins of SGLang."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.engine_stand_ins import Batch, Plan, Req, Scheduler
from controllers.step_trace import Header
from patches import prefix_hits
from patches.arrivals import info_of
from patches.explaining import explain
from patches.runtime import Ranks, Runtime
from patches.sglang_0_5 import prefix_view
from twp_sglang.config import TwpConfig

AGAIN_PER_PASS = 8


class Cache:
    """A prefix cache by name of request; notes whom it was asked about."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.asked: list[str] = []
        self.size = 1

    def evictable_size(self) -> int:
        return self.size

    def protected_size(self) -> int:
        return 0

    def ask(self, req: Any) -> int:
        self.asked.append(req.rid)
        return self.held.get(req.rid, 0)


class Desk:
    """One runtime, whose gate is shut or open as ``running`` says, and its cache."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, running: int = 0, trace_dir: Path | None = None
    ) -> None:
        monkeypatch.setattr(prefix_view, "question_for", lambda cache: cache.ask)
        monkeypatch.setattr(prefix_hits, "AGAIN_PER_PASS", AGAIN_PER_PASS)
        config = TwpConfig(
            policy="slo", itl_slo_ms=60.0, l_min_ms=50.0, a_ms=10.0, prefill_ms_per_token=0.1
        )
        self.batch = Batch([Req(f"a{i}", 10, 50) for i in range(running)])
        self.scheduler: Any = Scheduler(self.batch, 10_000, 9_000)
        self.cache = self.scheduler.tree_cache = Cache()
        self.runtime = Runtime(config, self.scheduler, Ranks(0, None), trace_dir, Header())

    def join(self, name: str, prompt: int = 100, *, retracted: bool = False) -> Req:
        req = Req(name, prompt, 20)
        self.scheduler.waiting_queue.append(req)
        self.runtime.enqueued(req, retracted)
        return req

    def pass_(self) -> list[str]:
        """One pass; whom the cache was asked about."""
        self.cache.asked.clear()
        self.runtime.begin_pass()
        self.runtime.order(self.scheduler.waiting_queue, self.batch)
        self.runtime.end_pass(Plan(self.batch, self.batch))
        return list(self.cache.asked)

    @property
    def to_serve(self) -> int:
        return self.runtime.policy.queue.tokens_to_serve


@pytest.fixture
def shut(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch, running=8)


def test_everybody_is_asked_about_once_on_arrival(shut: Desk) -> None:
    shut.cache.held = {"b": 90}
    b, c = shut.join("b"), shut.join("c")
    assert shut.cache.asked == ["b", "c"]
    infos = [info_of(req) for req in (b, c)]
    assert [info.cached_tokens for info in infos if info is not None] == [90, 0]
    assert shut.to_serve == 10 + 100
    first, second = (explain(shut.runtime, shut.scheduler, name, 0.0) for name in "bc")
    assert first is not None
    assert second is not None
    assert (first["prompt_tokens"], first["cached_tokens"]) == (100, 90)
    assert second["prompt_tokens_ahead"] == 10


def test_while_the_tree_stays_nobody_is_asked_about_twice(shut: Desk) -> None:
    for number in range(3):
        shut.join(f"b{number}")
    assert shut.pass_() == ["b0", "b1", "b2"], "the tree was never looked at before"
    assert shut.pass_() == shut.pass_() == []


def test_when_it_changes_all_are_gone_through_a_few_in_each_pass(shut: Desk) -> None:
    count = 2 * AGAIN_PER_PASS + 3
    names = [shut.join(f"b{number}").rid for number in range(count)]
    while shut.pass_():
        pass
    shut.cache.size += 1
    shut.cache.held = dict.fromkeys(names, 40)
    rounds = [shut.pass_() for _ in range(4)]
    assert [len(asked) for asked in rounds] == [AGAIN_PER_PASS, AGAIN_PER_PASS, 3, 0]
    assert sorted(name for asked in rounds for name in asked) == sorted(names)
    assert shut.to_serve == count * 60


def test_only_the_newest_are_gone_through(shut: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_hits, "AGAIN_NEWEST", 3)
    for number in range(6):
        shut.join(f"b{number}")
    assert [shut.pass_() for _ in range(2)] == [["b3", "b4", "b5"], []]


def test_a_few_long_prompts_are_enough_for_a_pass(
    shut: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_hits, "AGAIN_TOKENS", 150)
    for number in range(5):
        shut.join(f"b{number}")
    assert [len(shut.pass_()) for _ in range(4)] == [2, 2, 1, 0]


def test_what_sglang_finds_when_it_takes_a_request_counts_and_is_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    desk = Desk(monkeypatch, trace_dir=tmp_path)
    desk.runtime.outgoing()
    req = desk.join("b")
    desk.runtime.begin_pass()
    desk.runtime.order(desk.scheduler.waiting_queue, desk.batch)
    req.prefix_len = 64
    desk.runtime.admitted(req)
    desk.scheduler.waiting_queue.remove(req)
    desk.batch.reqs.append(req)
    desk.runtime.end_pass(Plan(desk.batch, desk.batch))
    desk.runtime.completed(desk.batch)
    desk.runtime._recording.close()
    step = json.loads((tmp_path / "steps.jsonl").read_text().splitlines()[1])
    (admission,) = step["admissions"]
    assert (admission["prompt_tokens"], admission["cached_tokens"]) == (100, 64)
    assert (desk.to_serve, desk.runtime.policy.queue.cached_tokens) == (0, 0)
    found = explain(desk.runtime, desk.scheduler, "b", 0.0)
    assert found is not None
    assert (found["state"], found["cached_tokens"]) == ("running", 64)


def _breaks(error: Exception) -> Callable[..., int]:
    def broken(*_: Any) -> int:
        raise error

    return broken


@pytest.mark.parametrize("where", ["question_for", "ask", "evictable_size"])
def test_a_cache_that_cannot_be_asked_costs_one_log_line_and_nothing_else(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(monkeypatch, running=8)
    broken = _breaks(KeyError("no such node"))
    if where == "question_for":
        monkeypatch.setattr(prefix_view, where, broken)
    elif where == "ask":
        monkeypatch.setattr(desk.cache, where, broken)
    else:
        monkeypatch.setattr(prefix_view, "tokens_held", broken)
    for number in range(3):
        desk.join(f"b{number}")
        desk.pass_()
    assert desk.runtime.deciding
    assert desk.to_serve == 300
    said = [line for line in caplog.messages if "prefix cache" in line]
    assert len(said) == 1
    assert "KeyError: 'no such node'" in said[0]


def test_ranks_with_equal_trees_count_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    desks = [Desk(monkeypatch, running=8) for _ in range(2)]
    for number in range(30):
        for desk in desks:
            desk.cache.held[f"b{number % 7}"] = 10 * number % 90
            desk.cache.size += number % 3
            desk.join(f"b{number}")
        assert desks[0].pass_() == desks[1].pass_()
        assert desks[0].to_serve == desks[1].to_serve


def cache(name: str, **attributes: Any) -> Any:
    """A cache of a class called ``name``; by default one that is asked."""
    looks = {"match_full_device_prefix": lambda key: (5, 1, 5)}
    values = {
        "disable": False,
        "page_size": 1,
        "supports_swa": lambda: False,
        "supports_mamba": lambda: False,
        "cache_controller": None,
        "linker": None,
        "tree_core": SimpleNamespace(**looks),
        **attributes,
    }
    made = type(name, (), {})()
    vars(made).update(values)
    return made


@pytest.mark.parametrize(
    "one",
    [
        cache("UnifiedRadixCache", disable=True),
        cache("UnifiedRadixCache", supports_swa=lambda: True),
        cache("UnifiedRadixCache", supports_mamba=lambda: True),
        cache("UnifiedRadixCache", cache_controller=object()),
        cache("UnifiedRadixCache", linker=object()),
        cache("UnifiedRadixCache", tree_core=SimpleNamespace()),
        cache("LMCacheUnifiedRadixCache"),
        cache("ChunkCache"),
        Scheduler(Batch([]), 10, 10).tree_cache,
    ],
)
def test_of_caches_whose_tree_does_not_tell_all_nothing_is_asked(
    one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_view, "_told_to_miss", lambda: False)
    assert prefix_view.question_for(one) is None


def test_nor_where_sglang_is_told_to_use_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_view, "_told_to_miss", lambda: True)
    assert prefix_view.question_for(cache("UnifiedRadixCache")) is None
