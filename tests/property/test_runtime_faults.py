"""Random traffic through TWP's hooks, with a fault of TWP's own at a random place and time.

Whatever happens inside TWP, every request ends exactly once and all memory comes back; and
a fault is loud: one log line with its traceback, ``deciding`` false, the reason kept.
"""

from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patches.sglang_0_5 import gate, refusing
from tests.property.hooked_engine import OTHER, HookedEngine, Traffic, steered_by
from twp_sglang.config import TwpConfig

SOME = settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

PLACES = (
    ("policy", "decide"),
    ("policy", "enqueue"),
    ("policy", "withdraw"),
    ("policy", "observe"),
    ("policy", "end_pass"),
    ("policy", "admitted"),
    ("policy", "taken"),
    ("policy", "chunk_tokens"),
    ("policy", "refusal"),
    ("_offering", "put_first"),
    ("_load_reader", "read"),
    ("_arrivals", "note"),
    ("_meter", "completed"),
    ("_recording", "completed"),
    ("_relay", "pack"),
    ("_relay", "unpack"),
)
"""Where a fault is put: every part that the hooks reach."""


class Injected(Exception):
    """The fault."""


def break_at(runtime: Any, place: tuple[str, str], call: int) -> list[int]:
    """Make the ``call``-th call of a part's method raise; holds the count of calls."""
    part = getattr(runtime, place[0])
    original, calls = getattr(part, place[1]), [0]

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] >= call:
            raise Injected(f"call {calls[0]} of {place[1]}")
        return original(*args, **kwargs)

    try:
        setattr(part, place[1], broken)
    except AttributeError:  # slots
        pytest.skip(f"{place} cannot be broken from outside")
    return calls


traffics = st.builds(
    Traffic,
    arrivals=st.floats(0.1, 3.0),
    aborts=st.sampled_from((0.0, 0.1, 0.5)),
    longest_prompt=st.sampled_from((5, 60)),
    longest_output=st.sampled_from((3, 25)),
    capacity_tokens=st.sampled_from((150, 400, 4000)),
    chunk_tokens=st.sampled_from((8, 64)),
    passes=st.integers(5, 60),
)

configs = st.builds(
    TwpConfig,
    policy=st.sampled_from(("twp", "twp", "slo", "fcfs", "priority", "dynamic-batch", "observe")),
    h0_tokens=st.sampled_from((None, 30.0, 300.0)),
    t_max_steps=st.sampled_from((2, 50)),
    queue_max_requests=st.sampled_from((None, 1, 3)),
    warmup_steps=st.just(0),
)


@pytest.fixture(autouse=True)
def hooks_without_sglang(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the hooks import from SGLang, which takes half a minute: one constant, one message."""
    monkeypatch.setattr(gate, "_other", lambda: OTHER)
    monkeypatch.setattr(refusing, "_send", lambda *_: None)
    yield
    steered_by(None)


def nothing_is_lost(engine: HookedEngine) -> None:
    """Every request ended once, and the pool is whole."""
    assert not engine.scheduler.waiting_queue
    assert not engine.running.reqs
    assert len(engine.ends) == engine.arrived
    assert set(engine.ends.values()) <= {1}
    assert engine.scheduler.token_to_kv_pool_allocator.free == engine.traffic.capacity_tokens


@SOME
@given(config=configs, traffic=traffics, seed=st.integers(0, 2**32))
def test_nothing_is_lost(config: TwpConfig, traffic: Traffic, seed: int) -> None:
    engine = HookedEngine(config, traffic, seed)
    steered_by(engine.runtime)
    engine.run()
    nothing_is_lost(engine)
    assert (engine.runtime.deciding, engine.runtime.fallbacks) == (True, 0)
    assert len(engine.runtime.policy.queue) == 0
    # An idle engine takes whoever comes, whatever happened before.
    refused = engine.refused
    engine.arrive()
    engine.run_out()
    nothing_is_lost(engine)
    assert engine.refused == refused


@SOME
@given(
    config=configs,
    traffic=traffics,
    seed=st.integers(0, 2**32),
    place=st.sampled_from(PLACES),
    call=st.integers(1, 40),
)
def test_a_fault_is_loud_and_loses_nothing(
    caplog: pytest.LogCaptureFixture,
    config: TwpConfig,
    traffic: Traffic,
    seed: int,
    place: tuple[str, str],
    call: int,
) -> None:
    caplog.clear()
    engine = HookedEngine(config, traffic, seed)
    steered_by(engine.runtime)
    calls = break_at(engine.runtime, place, call)
    with caplog.at_level(logging.ERROR):
        engine.run()
    nothing_is_lost(engine)
    runtime = engine.runtime
    told = [record for record in caplog.records if "stock SGLang scheduling" in record.message]
    if calls[0] < call:
        assert (runtime.deciding, told) == (True, [])
        return
    assert not runtime.deciding
    assert runtime.fallbacks == 1
    assert runtime.fallback_reason
    assert len(told) == 1
    assert told[0].exc_info is not None
    # And it stays so: nothing of TWP is called again.
    assert calls[0] == call


def test_the_traffic_meets_what_it_should(caplog: pytest.LogCaptureFixture) -> None:
    """Or the two above would test less than they say."""
    tight = Traffic(1.5, 0.2, 60, 25, 150, 64, 200)
    engine = HookedEngine(TwpConfig(policy="twp", h0_tokens=300.0, warmup_steps=0), tight, 5)
    steered_by(engine.runtime)
    engine.run()
    nothing_is_lost(engine)
    assert engine.retractions > 0
    assert engine.arrived > 200
    assert engine.runtime.policy.forced_total > 0


def test_those_who_left_do_not_fill_the_queue() -> None:
    """The last that waited was aborted, so SGLang asks for no order any more; its place in a
    queue of one must be free all the same."""
    traffic = Traffic(0.0, 0.0, 5, 25, 4000, 64, 0)
    config = TwpConfig(policy="twp", h0_tokens=30.0, queue_max_requests=1, warmup_steps=0)
    engine = HookedEngine(config, traffic, 1)
    steered_by(engine.runtime)
    while not engine.scheduler.waiting_queue:
        engine.arrive()
        engine.one_pass()
    assert engine.running.reqs
    engine.arrive()
    assert engine.refused == 1
    engine.abort(engine.scheduler.waiting_queue[0])
    engine.arrive()
    assert engine.refused == 1
    engine.run_out()
    nothing_is_lost(engine)


@pytest.mark.parametrize("policy", ["twp", "slo"])
def test_nothing_is_kept_of_requests_that_ended(policy: Any) -> None:
    """Python's own count of memory, after thousands of requests with a client's name each:
    what one of them left behind would show, as it would not in a process's pages."""
    traffic = Traffic(1.5, 0.3, 60, 12, 400, 64, 150)
    engine = HookedEngine(TwpConfig(policy=policy, h0_tokens=300.0, warmup_steps=0), traffic, 1)
    steered_by(engine.runtime)

    def kept_bytes(rounds: int) -> int:
        for _ in range(rounds):
            engine.run()
            engine.ends.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    grown = []
    try:
        # Until tables with a bound are full: policy slo knows 1,024 clients by name.
        kept, arrived = kept_bytes(6), engine.arrived
        for _ in range(3):
            before, kept = kept, kept_bytes(3)
            count, arrived = engine.arrived - arrived, engine.arrived
            assert count > 500
            grown.append((kept - before) / count)
    finally:
        tracemalloc.stop()
    # The smallest record of one that stays, its name in a dictionary, takes more than 100, and
    # is seen each time; a table that Python enlarges for its own reasons, once.
    assert min(grown) < 30, grown
