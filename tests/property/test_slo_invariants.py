"""What must hold of policy slo in every schedule, on some thousand random ones.

The engine is that of random_engine.py with a clock; the rules are written down again here
from docs/slo.md and share no code with the core but the step model's predictions.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from random_engine import Engine, Traffic

from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.active_rows import ActiveRows
from twp_sglang.scheduling.decision import Decision, Grant
from twp_sglang.scheduling.lengths_online import FinishedAnswer
from twp_sglang.scheduling.policies.base import GRANTS_PER_PASS
from twp_sglang.scheduling.policies.slo import GRANTS_SPARE, Slo
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import PassView, StepSample

SCHEDULES_PER_EXAMPLE = 10

CONFIGURATIONS = st.builds(
    TwpConfig,
    policy=st.just("slo"),
    itl_slo_ms=st.sampled_from([5.0, 50.0, 200.0, 5000.0]),
    ttft_slo_ms=st.sampled_from([50.0, 500.0, 2000.0]),
    l_min_ms=st.none() | st.floats(1.0, 50.0),
    prefill_ms_per_token=st.none() | st.floats(0.0, 1.0),
    a_ms=st.none() | st.floats(0.0, 2.0),
    kappa_ms_per_token=st.none() | st.floats(0.0, 0.01),
    alpha_ms=st.none() | st.floats(0.0, 10.0),
    b0=st.integers(1, 16),
    prefill_free_tokens=st.sampled_from([0.0, 50.0]),
    graph_ceiling_rows=st.sampled_from([None, None, 1, 4, 12]),
    late_after_ms=st.sampled_from([20.0, 300.0, 30_000.0]),
    late_share=st.floats(0.01, 1.0),
    kv_margin=st.floats(0.0, 0.3),
    chunk_tokens=st.none() | st.integers(1, 512),
    warmup_steps=st.integers(0, 3),
)

TRAFFIC = st.builds(
    Traffic,
    passes=st.integers(8, 40),
    arrivals_per_pass=st.sampled_from([0.3, 1.0, 3.0, 8.0, 50.0]),
    longest_prompt=st.integers(1, 300),
    longest_output=st.integers(1, 120),
    capacity_tokens=st.integers(100, 20_000),
    priorities=st.sampled_from([1, 1, 3]),
    abort_rate=st.sampled_from([0.0, 0.02, 0.2]),
    whim_rate=st.sampled_from([0.0, 0.3]),
)


OPEN = TwpConfig(
    policy="slo", itl_slo_ms=5000.0, l_min_ms=1.0, prefill_ms_per_token=0.0, kv_margin=0.0
)
"""Lets in as many as a pass can."""

CROWD = Traffic(30, 50.0, 5, 5, 20_000, 1, 0.0, 0.0)
"""More at once than a pass can let in."""


RATIO = 0.4
"""Share of the outstanding output that this engine reserves."""


class SloEngine(Engine):
    """The random engine around policy slo."""

    def __init__(self, config: TwpConfig, traffic: Traffic, seed: int) -> None:
        super().__init__(config, traffic, seed)
        self.slo = Slo(config)
        self.policy: Any = self.slo
        self.now_ms = 0.0
        self.late: set[int] = set()
        self.lost: Any = None
        self.clients = self.random.choice([("",), ("",), ("a", "b", "c")])
        self.own = self.random.random() < 0.3

    def one_pass(self) -> None:
        """As the base, with this policy's rules."""
        self.now_ms += self.random.uniform(1.0, 60.0)
        # Now and then a burst that no pass can take in.
        for _ in range(4 if self.random.random() < 0.05 else 1):
            self._arrivals()
        self._aborts()
        # The forecast leaves little to retract: the engine does it at a whim as well.
        if self.active and self.random.random() < 0.1:
            self._retract(self.random.choice(self.active))
        self.pass_index += 1
        view = self._view()
        decision = self.slo.decide(view)
        self._decides_the_same_again(view, decision)
        self._holds(view, decision)
        chunk = self.slo.chunk_tokens(view)
        assert chunk is not None
        assert 1 <= chunk <= 8192
        if view.batch == 0:
            assert chunk == 8192
        self._admit(decision)
        self._decode()
        self.slo.end_pass(self.free, self.traffic.capacity_tokens, self._load())
        self._measure()
        assert set(self.slo.queue) == set(self.waiting)
        fresh = sum(not info.retracted for info in self.waiting)
        assert self.slo.lines.fresh + self.slo.lines.late == fresh
        self._late_stays_late()

    def _join(self, prompt: int, expected: int, priority: int, retracted: bool) -> None:
        before = self.lost
        produced = retractions = 0
        if retracted:
            assert before is not None
            produced = before.info.max_new_tokens - expected
            retractions = before.info.retractions + 1
        info = RequestInfo(
            f"r{self.seq}", self.seq, self.pass_index, prompt, expected, priority=priority,
            retracted=retracted, arrival_ms=self.now_ms, produced_tokens=produced,
            max_new_tokens=produced + expected, retractions=retractions,
            client=self.random.choice(self.clients),
            ttft_slo_ms=self.random.choice([None, None, 100.0, 5000.0]) if self.own else None,
        )  # fmt: skip
        self.seq += 1
        self.waiting.append(info)
        self.policy.enqueue(info)

    def _view(self) -> PassView:
        rows = self._rows()
        return super()._view()._replace(now_ms=self.now_ms, rows=lambda: rows)

    def _rows(self) -> ActiveRows:
        infos = [running.info for running in self.active]
        produced = [running.info.max_new_tokens - running.left for running in self.active]
        return ActiveRows(
            infos,
            np.array([info.prompt_tokens - info.produced_tokens for info in infos], dtype=np.int64),
            np.array([info.max_new_tokens for info in infos], dtype=np.int64),
            np.array(produced, dtype=np.int64),
            RATIO,
        )

    def _remaining(self, info: RequestInfo, produced: int) -> int:
        if info.retractions >= 2 and info in self.waiting:
            return info.max_new_tokens - produced
        lengths = self.slo.memory.lengths
        return lengths.likely_most_of(info.length_class, info.max_new_tokens, produced, RATIO)

    def _peak(self, joining: list[RequestInfo]) -> int:
        """Most tokens held at once when all decode together and each ends when predicted."""
        rows = [
            (
                running.held,
                self._remaining(running.info, running.info.max_new_tokens - running.left),
            )
            for running in self.active
        ]
        rows += [
            (info.prompt_tokens, self._remaining(info, info.produced_tokens)) for info in joining
        ]
        return max(
            sum(held + step for held, left in rows if left >= step) for step in {r for _, r in rows}
        )

    def _retract(self, running: Any) -> None:
        self.lost = running
        super()._retract(running)

    def _leave(self, running: Any) -> None:
        super()._leave(running)
        if running.left <= 0:
            info = running.info
            self.slo.finished(
                FinishedAnswer(
                    info.prompt_tokens - info.produced_tokens,
                    info.produced_tokens + info.expected_tokens - running.left,
                    info.max_new_tokens,
                    info.client,
                    info,
                )
            )

    def _guards_hold_on_admission(self, grant: Grant) -> None:
        if grant.reason == "idle":
            assert not self.active
        elif grant.reason != "policy":
            assert grant.reason == "retracted"
            assert grant.request.retracted

    # ------------------------------------------------------------------ the rules

    def _holds(self, view: PassView, decision: Decision) -> None:
        grants = decision.grants
        granted = {grant.request.seq for grant in grants}
        assert len(granted) == len(grants) <= GRANTS_PER_PASS
        assert granted <= {info.seq for info in self.waiting}
        left = [info for info in self.waiting if info.seq not in granted]
        kv = view.kv_capacity_tokens - view.kv_free_tokens
        batch = view.batch
        held = view.rows().held_tokens

        def longest() -> int:
            return int(held.max(initial=0))

        limit = int((1.0 - self.config.kv_margin) * view.kv_capacity_tokens)
        for place, grant in enumerate(grants):
            cautious = grant.request.retractions >= 2
            if batch and (grant.reason == "policy" or cautious):
                assert self._peak([one.request for one in grants[: place + 1]]) <= limit
            if grant.reason == "policy":
                assert batch > 0
                assert self.slo.model.admits(batch, kv, len(self.waiting) - place, longest=longest)
            elif grant.reason == "idle":
                assert batch == 0
            batch += 1
        self.closed.add(decision.closed)
        if len(grants) == GRANTS_PER_PASS:
            assert decision.closed == ("limit" if left else "")
            return
        if decision.closed == "limit":
            # What is granted fills the step.
            assert left
            assert len(grants) >= GRANTS_SPARE
            filled = view.owed_prompt_tokens + sum(g.request.prompt_tokens for g in grants)
            assert filled >= (self.slo.chunk_tokens(view) or 0)
            return
        assert not any(info.retracted and info.retractions < 2 for info in left)
        assert (decision.closed == "") == (not left)
        if left:
            assert batch > 0, "an idle engine takes somebody"
            if decision.closed == "window":
                assert not self.slo.model.admits(batch, kv, len(left), longest=longest)
            else:
                assert decision.closed == "kv"
                granted_now = [grant.request for grant in grants]
                assert any(self._peak([*granted_now, info]) > limit for info in left)
        self._order_is_kept([grant.request for grant in grants])

    def _order_is_kept(self, order: list[RequestInfo]) -> None:
        """Retracted first, then old ones on their share, oldest first whatever their priority;
        among the other late ones priority, and of each client arrival."""
        kinds = [info.retracted for info in order]
        assert kinds == sorted(kinds, reverse=True)
        fresh = [info for info in order if not info.retracted]
        share = self._old_on_their_share()
        old = [info for info in share if info in fresh]
        assert fresh[: len(old)] == old
        assert old == share or len(old) == len(fresh), "nobody goes before an old one"
        late = [info for info in fresh[len(old) :] if self.slo.lines.is_late(info)]
        priorities = [-info.priority for info in late]
        assert priorities == sorted(priorities)
        for client in self.clients:
            keys = [(-info.priority, info.seq) for info in late if info.client == client]
            assert keys == sorted(keys)

    def _old_on_their_share(self) -> list[RequestInfo]:
        """As long as credit is left, each begins with some."""
        late = [info for info in self.waiting if self.slo.lines.is_late(info)]
        credit = self.slo.lines.credit_tokens
        first = []
        for info in sorted(late, key=lambda info: info.seq):
            if credit > 0 and self.now_ms - info.arrival_ms >= self.config.late_after_ms:
                first.append(info)
                credit -= info.prompt_tokens
        return first

    def _late_stays_late(self) -> None:
        here = {info.seq for info in self.waiting if self.slo.lines.is_late(info)}
        waiting = {info.seq for info in self.waiting}
        assert self.late & waiting <= here
        self.late = here


def test_every_decision_of_some_thousand_schedules() -> None:
    seen: Counter[str] = Counter()

    @settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
    @given(config=CONFIGURATIONS, traffic=TRAFFIC, seed=st.integers(0, 2**32))
    @example(config=OPEN, traffic=CROWD, seed=1)
    @example(config=OPEN, traffic=CROWD._replace(priorities=3), seed=2)
    def schedules(config: TwpConfig, traffic: Traffic, seed: int) -> None:
        for number in range(SCHEDULES_PER_EXAMPLE):
            engine = SloEngine(config, traffic, seed + number * 2**33)
            tally = engine.run()
            seen["late"] += len(engine.late)
            seen["retractions"] += tally.retractions
            seen.update(tally.reasons)
            seen.update(f"closed: {reason}" for reason in tally.closed)

    schedules()
    for what in ("policy", "idle", "retracted", "retractions", "late"):
        assert seen[what] > 50, seen
    for reason in ("", "window", "kv", "limit"):
        assert seen[f"closed: {reason}"] > 10, seen


@settings(deadline=None, max_examples=60)
@given(config=CONFIGURATIONS, traffic=TRAFFIC, seed=st.integers(0, 2**32))
def test_two_ranks_decide_the_same(config: TwpConfig, traffic: Traffic, seed: int) -> None:
    """The second rank's requests have other objects and names; all inputs are equal."""
    engine = SloEngine(config, traffic, seed)
    other = Slo(config)
    twins: dict[int, RequestInfo] = {}

    class Mirror(Slo):
        """Repeats every call on the other rank and compares the answers."""

        def enqueue(self, request: RequestInfo) -> None:
            super().enqueue(request)
            twin = twins[request.seq] = RequestInfo(
                f"other {request.seq}", request.seq, request.arrival_pass, request.prompt_tokens,
                request.expected_tokens, priority=request.priority, retracted=request.retracted,
                arrival_ms=request.arrival_ms, max_new_tokens=request.max_new_tokens,
                produced_tokens=request.produced_tokens, retractions=request.retractions,
                client=request.client, ttft_slo_ms=request.ttft_slo_ms,
            )  # fmt: skip
            other.enqueue(twin)

        def withdraw(self, request: RequestInfo) -> None:
            super().withdraw(request)
            other.withdraw(twins.pop(request.seq))

        def admitted(self, grant: Grant) -> None:
            super().admitted(grant)
            other.admitted(grant._replace(request=twins[grant.request.seq]))

        def observe(self, sample: StepSample) -> None:
            super().observe(sample)
            other.observe(sample)

        def finished(self, answer: FinishedAnswer) -> None:
            super().finished(answer)
            assert answer.request is not None
            other.finished(answer._replace(request=twins[answer.request.seq]))

        def end_pass(self, *arguments: Any) -> None:
            super().end_pass(*arguments)
            other.end_pass(*arguments)

        def chunk_tokens(self, view: PassView) -> int | None:
            chunk = super().chunk_tokens(view)
            assert chunk == other.chunk_tokens(view)
            return chunk

        def decide(self, view: PassView) -> Decision:
            rows = view.rows()
            members = [twins[info.seq] for info in rows.requests if info is not None]
            seen = rows._replace(requests=members)
            mine, theirs = super().decide(view), other.decide(view._replace(rows=lambda: seen))
            assert mine.closed == theirs.closed
            assert [(g.request.seq, *g[1:]) for g in mine.grants] == [
                (g.request.seq, *g[1:]) for g in theirs.grants
            ]
            return mine

    engine.slo = engine.policy = Mirror(config)
    engine.run()
    assert engine.slo.snapshot() == other.snapshot()
