"""A small engine that drives a policy at random and checks every decision it gets.

It knows what an engine knows: a KV pool that can run out, requests that produce one token
per step, retraction when a token finds no page, aborts, and a prompt budget that ends a
pass at a whim. Everything random comes from one seed.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.decision import Decision, Grant
from twp_sglang.scheduling.laws import clamps_of
from twp_sglang.scheduling.load import ActiveLoad
from twp_sglang.scheduling.policies.base import GRANTS_PER_PASS
from twp_sglang.scheduling.policies.twp import Twp
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import PassView, StepSample

NEAR = 1e-9
"""Scores closer than this may be ordered either way: numpy and math differ in the last bit."""


class Traffic(NamedTuple):
    """What comes in and how much room there is."""

    passes: int
    arrivals_per_pass: float
    longest_prompt: int
    longest_output: int
    capacity_tokens: int
    priorities: int
    abort_rate: float
    whim_rate: float
    """How often the engine ends a pass early, as an exhausted prompt budget does."""


@dataclass
class Running:
    """A request that was let in."""

    info: RequestInfo
    left: int
    held: int


class Tally(NamedTuple):
    """What happened in a schedule, so that a test can see that it tests something."""

    admitted: int
    reasons: frozenset[str]
    closed: frozenset[str]
    retractions: int


class Engine:
    """See the module's text."""

    def __init__(self, config: TwpConfig, traffic: Traffic, seed: int) -> None:
        self.config = config
        self.policy = Twp(config)
        self.traffic = traffic
        self.random = random.Random(seed)
        self.pass_index = 0
        self.seq = 0
        self.active: list[Running] = []
        self.waiting: list[RequestInfo] = []
        self.free = traffic.capacity_tokens
        self.samples: list[StepSample] = []
        self.admitted = 0
        self.retractions = 0
        self.reasons: set[str] = set()
        self.closed: set[str] = set()
        self.forced_credit = config.forced_burst_tokens
        """The budget of forcing, kept here on its own."""

    def run(self) -> Tally:
        """All passes of one schedule."""
        for _ in range(self.traffic.passes):
            self.one_pass()
        return Tally(
            self.admitted, frozenset(self.reasons), frozenset(self.closed), self.retractions
        )

    def one_pass(self) -> None:
        """Arrivals, aborts, a decision, its admissions, and one decode step."""
        self._arrivals()
        self._aborts()
        self.pass_index += 1
        refill = self.config.forced_tokens_per_step or 0.0
        burst = self.config.forced_burst_tokens
        self.forced_credit = min(burst, self.forced_credit + refill)
        view = self._view()
        decision = self.policy.decide(view)
        self._decides_the_same_again(view, decision)
        Check(self, view, decision).all()
        refused = self._admit(decision)
        self._starved_are_in(view, decision, refused)
        self._decode()
        self.policy.end_pass(self.free, self.traffic.capacity_tokens, self._load())
        self._measure()
        self._window_is_inside_its_clamps()
        assert set(self.policy.queue) == set(self.waiting)
        assert len(self.policy.queue) == len(self.waiting)

    # ------------------------------------------------------------------ what happens

    def _join(self, prompt: int, expected: int, priority: int, retracted: bool) -> None:
        info = RequestInfo(
            f"r{self.seq}",
            self.seq,
            self.pass_index,
            prompt,
            expected,
            priority=priority,
            retracted=retracted,
        )
        self.seq += 1
        self.waiting.append(info)
        self.policy.enqueue(info)

    def _arrivals(self) -> None:
        rng, traffic = self.random, self.traffic
        count = int(rng.expovariate(1.0 / traffic.arrivals_per_pass))
        for _ in range(min(count, 40)):
            self._join(
                rng.randint(1, traffic.longest_prompt),
                rng.randint(0, traffic.longest_output),
                rng.randrange(traffic.priorities),
                retracted=False,
            )

    def _aborts(self) -> None:
        rng, rate = self.random, self.traffic.abort_rate
        for info in [info for info in self.waiting if rng.random() < rate]:
            self.waiting.remove(info)
            self.policy.withdraw(info)
        for running in [running for running in self.active if rng.random() < rate]:
            self._leave(running)

    def _leave(self, running: Running) -> None:
        self.active.remove(running)
        self.free += running.held

    def _load(self) -> ActiveLoad:
        return ActiveLoad(sum(running.left for running in self.active), len(self.active))

    def _view(self) -> PassView:
        load = self._load()
        return PassView(
            self.pass_index,
            load.load_tokens,
            load.batch,
            self.free,
            self.traffic.capacity_tokens,
        )

    def _admit(self, decision: Decision) -> bool:
        """Take grants in their order as far as memory and whim go; whether one was refused."""
        whim = self.random.random() < self.traffic.whim_rate
        most = self.random.randint(0, 3) if whim else GRANTS_PER_PASS * 4
        for count, grant in enumerate(decision.grants):
            info = grant.request
            if count >= most or info.prompt_tokens > self.free:
                return True
            self._guards_hold_on_admission(grant)
            self.policy.admitted(grant)
            if grant.reason == "forced":
                self.forced_credit -= info.prompt_tokens
            self.waiting.remove(info)
            self.active.append(Running(info, info.expected_tokens, info.prompt_tokens))
            self.free -= info.prompt_tokens
            self.admitted += 1
            self.reasons.add(grant.reason)
        return False

    def _decode(self) -> None:
        for running in list(self.active):
            if running not in self.active:
                continue
            if running.left <= 0:
                self._leave(running)
                continue
            while self.free < 1 and len(self.active) > 1:
                self._retract(self.active[-1])
            if running in self.active and self.free >= 1:
                running.left -= 1
                running.held += 1
                self.free -= 1

    def _retract(self, running: Running) -> None:
        self._leave(running)
        self.retractions += 1
        self._join(running.held, running.left, running.info.priority, retracted=True)

    def _measure(self) -> None:
        rng = self.random
        duration = rng.choice([None, 0.0, rng.uniform(1.0, 200.0), rng.uniform(15.0, 30.0)])
        kind: Any = rng.choice(["decode", "decode", "decode", "mixed", "prefill"])
        self.samples.append(
            StepSample(
                self.pass_index,
                kind,
                duration,
                len(self.active),
                0 if kind == "decode" else rng.randint(0, 64),
                self.traffic.capacity_tokens - self.free,
            )
        )
        # As under overlap, a measurement is up to two steps late.
        while len(self.samples) > rng.randint(0, 2):
            self.policy.observe(self.samples.pop(0))

    # ------------------------------------------------------------------ what must hold

    def _decides_the_same_again(self, view: PassView, decision: Decision) -> None:
        before = self.policy.snapshot()
        assert self.policy.decide(view) == decision
        assert self.policy.snapshot() == before

    def _guards_hold_on_admission(self, grant: Grant) -> None:
        """With the engine's own numbers, not with those that the gate reports."""
        if grant.reason == "window":
            load = self._load().load_tokens + grant.request.expected_tokens
            free = self.free - grant.request.prompt_tokens
            assert load <= self.policy.window.tokens
            assert free / self.traffic.capacity_tokens > self.policy.headroom.threshold - 1e-12
        elif grant.reason == "idle":
            assert not self.active
        elif grant.reason == "forced":
            assert self._starved(grant.request)
        else:
            assert grant.reason == "retracted"
            assert grant.request.retracted

    def _forcing_is_bounded(self) -> bool:
        config = self.config
        return config.forced_per_step is not None and config.forced_tokens_per_step is not None

    def _starved(self, info: RequestInfo) -> bool:
        return not info.retracted and self.pass_index - info.arrival_pass >= self.config.t_max_steps

    def _starved_are_in(self, view: PassView, decision: Decision, refused: bool) -> None:
        """Whoever waited T_max passes is in, as far as room and the forcing limit go."""
        if refused or not any(self._starved(info) for info in self.waiting):
            return
        limit = self.config.forced_per_step
        forced = sum(grant.reason == "forced" for grant in decision.grants)
        used_up = self._forcing_is_bounded() and self.forced_credit <= 0
        reached = limit is not None and forced == limit
        at_limit = (used_up or reached) and decision.closed == "forced-limit"
        full_pass = decision.closed == "limit"
        assert at_limit or full_pass

    def _window_is_inside_its_clamps(self) -> None:
        low, high = clamps_of(self.policy.window.law)
        assert low <= self.policy.window.tokens <= high
        given_low, given_high = self.config.h_min_tokens, self.config.h_max_tokens
        assert given_low is None or self.policy.window.tokens >= given_low
        assert given_high is None or self.policy.window.tokens <= given_high


class Check:
    """One decision against a reading of section IV-B3 that shares no code with the core."""

    def __init__(self, engine: Engine, view: PassView, decision: Decision) -> None:
        self.engine = engine
        self.view = view
        self.decision = decision
        granted = {grant.request.seq for grant in decision.grants}
        self.left = [info for info in engine.waiting if info.seq not in granted]

    def all(self) -> None:
        """Every rule."""
        self.grants_are_of_the_waiting()
        self.guards_or_exemption()
        self.nobody_is_passed_over()
        self.closed_for_a_reason()

    def grants_are_of_the_waiting(self) -> None:
        seqs = [grant.request.seq for grant in self.decision.grants]
        assert len(set(seqs)) == len(seqs)
        assert set(seqs) <= {info.seq for info in self.engine.waiting}

    def guards_or_exemption(self) -> None:
        view, engine = self.view, self.engine
        load, batch, free, forced = view.load_tokens, view.batch, view.kv_free_tokens, 0
        self.credit = engine.forced_credit
        for grant in self.decision.grants:
            info = grant.request
            assert grant.load_before_tokens == load
            fits = self.fits(info, load, free)
            if info.retracted:
                assert grant.reason == "retracted"
            elif fits:
                assert grant.reason == "window"
            elif batch == 0:
                assert grant.reason == "idle"
            else:
                assert grant.reason == "forced"
                assert engine._starved(info)
                assert not engine._forcing_is_bounded() or self.credit > 0
                self.credit -= info.prompt_tokens
                forced += 1
            load += info.expected_tokens
            free -= info.prompt_tokens
            batch += 1
        limit = engine.config.forced_per_step
        assert limit is None or forced <= limit
        self.load, self.batch, self.free, self.forced = load, batch, free, forced

    def fits(self, info: RequestInfo, load: int, free: int) -> bool:
        capacity = self.view.kv_capacity_tokens
        return (
            load + info.expected_tokens <= self.engine.policy.window.tokens
            and (free - info.prompt_tokens) / capacity > self.engine.policy.headroom.threshold
        )

    def key(self, info: RequestInfo) -> tuple[int, int, float, int]:
        """Smaller goes first: retracted, starved, priority, score, arrival."""
        config, view = self.engine.config, self.view
        if info.retracted:
            return (0, 0, 0.0, info.seq)
        wait = view.pass_index - info.arrival_pass
        if wait >= config.t_max_steps:
            return (1, 0, 0.0, info.seq)
        mean = view.load_tokens / view.batch if view.batch else 0.0
        x = wait / max(1, info.prompt_tokens + info.expected_tokens)
        score = (
            config.w_starvation * min(1.0, wait / config.t_max_steps)
            + config.w_balance * math.exp(-abs(info.expected_tokens - mean) / (mean + 1.0))
            + config.w_fairness * x / (1.0 + x)
        )
        return (2, -info.priority, -score, info.seq)

    def clearly_before(self, a: RequestInfo, b: RequestInfo) -> bool:
        one, other = self.key(a), self.key(b)
        if one[:2] == other[:2] and 0.0 < abs(one[2] - other[2]) < NEAR:
            return False
        return one < other

    def nobody_is_passed_over(self) -> None:
        order = [grant.request for grant in self.decision.grants]
        for earlier, later in pairwise(order):
            assert not self.clearly_before(later, earlier)
        if order and self.left:
            head = min(self.left, key=self.key)
            assert not self.clearly_before(head, order[-1])

    def closed_for_a_reason(self) -> None:
        engine, closed = self.engine, self.decision.closed
        engine.closed.add(closed)
        assert not any(info.retracted for info in self.left), "nothing closes on retracted ones"
        if not self.left:
            assert closed == ""
            return
        fresh_granted = sum(not grant.request.retracted for grant in self.decision.grants)
        if closed == "limit":
            assert fresh_granted == GRANTS_PER_PASS
            return
        best = min(self.left, key=self.key)
        heads = [info for info in self.left if not self.clearly_before(best, info)] or [best]
        assert self.batch > 0
        if closed == "forced-limit":
            used_up = engine._forcing_is_bounded() and self.credit <= 0
            assert used_up or self.forced == engine.config.forced_per_step
            assert any(
                engine._starved(info) and not self.fits(info, self.load, self.free)
                for info in heads
            )
            return
        assert closed in ("window", "kv")
        assert any(
            not engine._starved(info) and not self.fits(info, self.load, self.free)
            for info in heads
        )
