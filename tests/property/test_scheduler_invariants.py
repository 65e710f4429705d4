"""What must hold in every schedule, on 10,000 random ones.

Counting: hypothesis draws EXAMPLES settings (configuration, traffic, seed); under each,
SCHEDULES_PER_EXAMPLE independent schedules run on a fresh policy with seeds of their own.
Each schedule is some 16 passes of arrivals, aborts, admissions, refusals, retractions and
late measurements, and every single decision in it is checked (random_engine.py).
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from random_engine import Engine, Traffic

from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.policies import build_policy
from twp_sglang.scheduling.policies.base import Policy
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import PassView, StepSample
from twp_sglang.scheduling.waiting import WaitingQueue

EXAMPLES = 500
SCHEDULES_PER_EXAMPLE = 20

RANDOM = settings(
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
)


@st.composite
def configurations(draw: st.DrawFn) -> TwpConfig:
    """Valid configurations, extreme ones included."""
    weights = sorted(
        draw(
            st.lists(
                st.floats(0.01, 10.0, allow_subnormal=False), min_size=3, max_size=3, unique=True
            )
        ),
        reverse=True,
    )
    h0 = draw(st.none() | st.floats(1.0, 2000.0))
    low_kv = draw(st.floats(0.0, 0.5))
    return TwpConfig(
        law=draw(st.sampled_from(["paper", "regulated", "gradient2", "vegas", "aimd", "fixed"])),
        gamma=draw(st.floats(0.01, 1.0)),
        beta=draw(st.floats(0.01, 1.0)),
        h0_tokens=h0,
        h_min_tokens=draw(st.none() | st.floats(1.0, 100.0)) if h0 is None else None,
        h_max_tokens=draw(st.none() | st.floats(100.0, 3000.0)) if h0 is None else None,
        queue_ref=draw(st.floats(0.5, 50.0)),
        l_min_ms=draw(st.none() | st.floats(1.0, 50.0)),
        b0=draw(st.integers(1, 16)),
        t_max_steps=draw(st.integers(1, 15)),
        forced_per_step=draw(st.none() | st.integers(1, 3)),
        forced_tokens_per_step=draw(st.none() | st.integers(1, 300)),
        forced_burst_tokens=draw(st.integers(1, 500)),
        kv_headroom_min=low_kv,
        kv_headroom_max=draw(st.floats(low_kv, 0.9)),
        kv_horizon_steps=draw(st.integers(1, 64)),
        kv_relax=draw(st.floats(0.01, 1.0)),
        w_starvation=weights[0],
        w_balance=weights[1],
        w_fairness=weights[2],
        warmup_steps=draw(st.integers(0, 5)),
    )


TRAFFIC = st.builds(
    Traffic,
    passes=st.integers(8, 24),
    arrivals_per_pass=st.sampled_from([0.3, 1.0, 3.0, 8.0]),
    longest_prompt=st.integers(1, 300),
    longest_output=st.integers(1, 120),
    capacity_tokens=st.integers(100, 2000),
    priorities=st.sampled_from([1, 1, 3]),
    abort_rate=st.sampled_from([0.0, 0.02, 0.2]),
    whim_rate=st.sampled_from([0.0, 0.3]),
)


def test_every_decision_of_ten_thousand_schedules() -> None:
    seen: Counter[str] = Counter()

    @RANDOM
    @given(config=configurations(), traffic=TRAFFIC, seed=st.integers(0, 2**32))
    @example(
        config=TwpConfig(h0_tokens=100.0, t_max_steps=3, forced_per_step=None),
        traffic=Traffic(35, 8.0, 200, 100, 500, 1, 0.0, 0.0),
        seed=1,
    )
    def schedules(config: TwpConfig, traffic: Traffic, seed: int) -> None:
        for number in range(SCHEDULES_PER_EXAMPLE):
            tally = Engine(config, traffic, seed + number * 2**33).run()
            seen["schedules"] += 1
            seen["admitted"] += tally.admitted
            seen["retractions"] += tally.retractions
            seen.update(tally.reasons)
            seen.update(f"closed: {reason}" for reason in tally.closed)

    schedules()
    assert seen["schedules"] >= 10_000
    # Every way in and every reason to wait occurred often, so each rule was put to the test.
    for what in ("window", "idle", "retracted", "forced", "retractions"):
        assert seen[what] > 100, seen
    for reason in ("", "window", "kv", "forced-limit", "limit"):
        assert seen[f"closed: {reason}"] > 20, seen


REQUEST = st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(0, 1))


@settings(deadline=None, max_examples=200)
@given(
    config=configurations(),
    policy=st.sampled_from(["twp", "fcfs", "priority", "dynamic-batch"]),
    bursts=st.lists(st.lists(REQUEST, max_size=6), min_size=1, max_size=8),
    copies=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_the_order_in_which_equal_requests_join_changes_nothing(
    config: TwpConfig, policy: str, bursts: list[list[tuple[int, int, int]]], copies: int, seed: int
) -> None:
    fields = config.model_dump() | {"policy": policy, "h0_tokens": 150.0}
    fields |= {"h_min_tokens": None, "h_max_tokens": None}
    first = build_policy(TwpConfig.model_validate(fields))
    second = build_policy(TwpConfig.model_validate(fields))
    rng = random.Random(seed)
    seq = 0
    load: list[int] = []
    for number, burst in enumerate(bursts):
        joining = []
        for prompt, expected, priority in burst * copies:
            joining.append((seq, number, prompt, expected, priority))
            seq += 1
        _join(first, joining, "a")
        rng.shuffle(joining)
        _join(second, joining, "b")
        view = PassView(number + 1, sum(load), len(load), 1000 - 20 * len(load), 1000)
        one, other = first.decide(view), second.decide(view)
        assert one.closed == other.closed
        assert [_told(grant) for grant in one.grants] == [_told(grant) for grant in other.grants]
        for mine, theirs in zip(one.grants[:5], other.grants[:5], strict=True):
            load.append(mine.request.expected_tokens)
            first.admitted(mine)
            second.admitted(theirs)
        load = [left - 1 for left in load if left > 1]
        sample = StepSample(number, "decode", rng.uniform(5, 80), len(load), 0, 0)
        first.observe(sample)
        second.observe(sample)
    assert first.signals() == second.signals()


def _join(policy: Policy, joining: list[tuple[int, int, int, int, int]], label: str) -> None:
    for seq, number, prompt, expected, priority in joining:
        policy.enqueue(
            RequestInfo(f"{label}{seq}", seq, number, prompt, expected, priority=priority)
        )


def _told(grant: Any) -> tuple[Any, ...]:
    """A grant without the object and its name, which decisions must not read."""
    return (grant.request.seq, *grant[1:])


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "add", "add", "retract", "leave", "leave", "burst", "flush", "drain", "drain"]
        ),
        st.integers(0, 2**16),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=150)
@given(operations=OPERATIONS)
def test_the_waiting_queue_against_a_list(operations: list[tuple[str, int]]) -> None:
    queue = WaitingQueue()
    model: list[RequestInfo] = []
    seq = 0

    def add(number: int, retracted: bool) -> None:
        nonlocal seq
        info = RequestInfo(
            str(seq), seq, number % 50, number % 7, number % 11, priority=number % 3,
            retracted=retracted,
        )  # fmt: skip
        seq += 1
        queue.add(info)
        model.append(info)

    def leave(info: RequestInfo) -> None:
        queue.discard(info)
        model.remove(info)

    for what, number in operations:
        if what == "burst":
            for step in range(300):
                add(number + step, retracted=False)
        elif what == "flush":
            for info in model[:: 1 + number % 2]:
                leave(info)
        elif what == "drain":
            # From the front by arrival or by length, as admissions go.
            while model and len(model) > number % 300:
                fresh = [info for info in model if not info.retracted]
                if not fresh:
                    break
                by_age = min(fresh, key=lambda info: (info.arrival_pass, info.seq))
                by_length = min(fresh, key=lambda info: (info.expected_tokens, info.seq))
                assert queue.oldest() is by_age
                assert queue.shortest_expected() == by_length.expected_tokens
                leave(by_age if number % 2 else by_length)
        elif what == "leave":
            if model:
                leave(model[number % len(model)])
        else:
            add(number, retracted=what == "retract")
        _agree(queue, model)


def _agree(queue: WaitingQueue, model: list[RequestInfo]) -> None:
    fresh = [info for info in model if not info.retracted]
    assert len(queue) == len(model)
    assert queue.fresh == len(fresh)
    assert list(queue.retracted) == [info for info in model if info.retracted]
    assert list(queue) == [*queue.retracted, *fresh]
    oldest = queue.oldest()
    assert (oldest is None) == (not fresh)
    if fresh:
        assert oldest is min(fresh, key=lambda info: (info.arrival_pass, info.seq))
        assert queue.shortest_expected() == min(info.expected_tokens for info in fresh)
        if len({info.priority for info in fresh}) > 1:
            assert queue.mixed_priorities
    columns = queue.columns()
    rows = {int(s): row for row, s in enumerate(columns.seq) if columns.alive[row]}
    assert rows.keys() == {info.seq for info in fresh}
    for info in fresh[:20]:
        row = rows[info.seq]
        assert columns.expected[row] == info.expected_tokens
        assert columns.arrival[row] == info.arrival_pass
        assert columns.priority[row] == info.priority
        assert info.slot == row
