"""Turns of the clients on a small server: the paper's bound, work conservation, no starvation.

The server holds a bounded number of tokens, admits whenever the next in turn fits, and makes
one token per request and step, as in the analysis of VTC (Sheng et al., OSDI 2024).
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations, islice
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twp_sglang.scheduling.active_rows import ActiveRows
from twp_sglang.scheduling.client_turns import (
    INPUT_WEIGHT,
    MAX_CLIENTS,
    OUTPUT_WEIGHT,
    ClientTurns,
)
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.turn_line import TurnLine

POOL = 600
LONGEST_PROMPT = 120
LONGEST_OUTPUT = 80
STEPS = 120
BACKLOG = POOL // 5
"""Waiting requests that no single pass can use up: the bound is for clients who always wait."""


def request(seq: int, client: str = "", prompt: int = 10, priority: int = 0) -> RequestInfo:
    return RequestInfo(f"r{seq}", seq, 0, prompt, 20, client=client, priority=priority)


class Server:
    """See the module's text; service is counted here, apart from the counters under test."""

    def __init__(self, seed: int, clients: int) -> None:
        self.random = random.Random(seed)
        self.turns = ClientTurns()
        self.line = TurnLine(self.turns)
        self.names = [f"client {number}" for number in range(clients)]
        # What each is like: short or long prompts, short or long answers.
        self.shapes = {
            name: (self.random.choice([8, LONGEST_PROMPT]), self.random.choice([3, LONGEST_OUTPUT]))
            for name in self.names
        }
        self.seq = 0
        self.waiting: dict[int, RequestInfo] = {}
        self.running: list[tuple[RequestInfo, int]] = []
        self.produced: Counter[int] = Counter()
        self.service: Counter[str] = Counter()
        self.idle_beside_waiting = 0
        self.most_rows = 0

    def send(self, name: str) -> None:
        prompt = self.random.randint(4, self.shapes[name][0])
        info = request(self.seq, name, prompt)
        self.seq += 1
        self.waiting[info.seq] = info
        self.turns.arrived(info)
        self.line.add((0, info.seq), info)

    def fill(self, name: str, count: int) -> None:
        """Let ``count`` requests of a client wait."""
        waiting = sum(info.client == name for info in self.waiting.values())
        for _ in range(count - waiting):
            self.send(name)

    def bound(self) -> float:
        """The paper's, and what two steps produce: counters move once per step here."""
        paper = 2 * max(INPUT_WEIGHT * LONGEST_PROMPT, OUTPUT_WEIGHT * POOL)
        return paper + 2 * OUTPUT_WEIGHT * self.most_rows

    def held(self) -> int:
        return sum(info.prompt_tokens + output for info, output in self.running)

    def step(self) -> None:
        infos = [info for info, _ in self.running]
        counts = np.array([self.produced[info.seq] for info in infos], dtype=np.int64)
        none = np.zeros(len(infos), dtype=np.int64)
        self.turns.served_rows(ActiveRows(infos, none, none, counts))
        for info in list(self.line.in_turn()):
            output = self.random.randint(1, self.shapes[info.client][1])
            if self.held() + info.prompt_tokens + output > POOL:
                break
            self.line.discard((0, info.seq), info)
            self.turns.served_prompt(info)
            self.turns.left(info)
            del self.waiting[info.seq]
            self.running.append((info, output))
            self.service[info.client] += int(INPUT_WEIGHT * info.prompt_tokens)
        if self.waiting and not self.running:
            self.idle_beside_waiting += 1
        self.most_rows = max(self.most_rows, len(self.running))
        for info, output in list(self.running):
            self.produced[info.seq] += 1
            self.service[info.client] += int(OUTPUT_WEIGHT)
            if self.produced[info.seq] == output:
                self.running.remove((info, output))
                self.turns.served_output(info, output)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32), clients=st.integers(2, 5))
def test_clients_who_always_wait_are_served_alike(seed: int, clients: int) -> None:
    server = Server(seed, clients)
    while sum(server.service.values()) < 4 * server.bound():
        for place, name in enumerate(server.names):
            # Some send three times as much as others; all always have somebody waiting.
            server.fill(name, BACKLOG * (1 if place else 3))
        server.step()
        assert server.idle_beside_waiting == 0
        for one, other in combinations(server.names, 2):
            assert abs(server.service[one] - server.service[other]) <= server.bound()


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_who_was_away_does_not_save_up_turns(seed: int) -> None:
    server = Server(seed, 2)
    here, away = server.names
    for _ in range(STEPS):
        server.fill(here, BACKLOG)
        server.step()
    before = server.service.copy()
    for _ in range(STEPS):
        server.fill(here, BACKLOG)
        server.fill(away, BACKLOG)
        server.step()
        gained = {name: server.service[name] - before[name] for name in server.names}
        assert abs(gained[here] - gained[away]) <= server.bound()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), max_size=30),
    st.booleans(),
)
def test_with_one_client_the_order_is_that_of_the_keys(
    requests: list[tuple[int, int]], counted: bool
) -> None:
    line = TurnLine(ClientTurns() if counted else None)
    infos = [
        request(seq, "" if counted else f"c{seq % 3}", prompt, priority)
        for seq, (priority, prompt) in enumerate(requests)
    ]
    for info in infos:
        line.add((-info.priority, info.seq), info)
    assert list(line.in_turn()) == sorted(infos, key=lambda info: (-info.priority, info.seq))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(1, 50)), max_size=30),
    st.sets(st.integers(0, 29)),
)
def test_everybody_is_there_once_and_priorities_go_before_turns(
    requests: list[tuple[str, int, int]], gone: set[int]
) -> None:
    turns = ClientTurns()
    line = TurnLine(turns)
    infos = [request(seq, *facts[::2], facts[1]) for seq, facts in enumerate(requests)]
    for info in infos:
        turns.arrived(info)
        line.add((-info.priority, info.seq), info)
    left = [info for info in infos if info.seq not in gone]
    for info in infos:
        if info.seq in gone:
            line.discard((-info.priority, info.seq), info)
            line.discard((-info.priority, info.seq), info)
            turns.left(info)
    order = list(line.in_turn())
    assert sorted(order, key=lambda info: info.seq) == left
    priorities = [-info.priority for info in order]
    assert priorities == sorted(priorities)
    for client in "abc":
        own = [(-info.priority, info.seq) for info in order if info.client == client]
        assert own == sorted(own)


def test_memory_is_bounded_by_those_who_wait() -> None:
    turns = ClientTurns()
    stays = [request(seq, f"waits {seq}") for seq in range(10)]
    for info in stays:
        turns.arrived(info)
    for seq in range(3 * MAX_CLIENTS):
        info = request(100 + seq, f"goes {seq}")
        turns.arrived(info)
        turns.left(info)
    assert turns.snapshot()["clients"] == MAX_CLIENTS
    assert turns.snapshot()["clients_waiting"] == 10
    turns.served_prompt(stays[0])
    assert turns.counter("waits 0") == 10.0


class PlainTurns:
    """The counters and the line by definition, looking at everybody each time."""

    def __init__(self) -> None:
        self.counters: dict[str, float] = {}
        self.waiting: dict[int, tuple[tuple[int, ...], RequestInfo]] = {}
        self.left_last = 0.0

    def names(self) -> set[str]:
        return {info.client for _, info in self.waiting.values()}

    def arrived(self, key: tuple[int, ...], info: RequestInfo) -> None:
        counter = self.counters.pop(info.client, 0.0)
        waiting = self.names()
        if info.client not in waiting:
            others = [self.counters[name] for name in waiting]
            counter = max(counter, min(others) if others else self.left_last)
        # Counters are in the order of the last arrival.
        self.counters[info.client] = counter
        self.waiting[info.seq] = (key, info)
        idle = [name for name in self.counters if name not in self.names()]
        if len(self.counters) > MAX_CLIENTS and idle:
            del self.counters[idle[0]]

    def left(self, info: RequestInfo) -> None:
        del self.waiting[info.seq]
        if info.client not in self.names():
            self.left_last = self.counters[info.client]

    def served(self, info: RequestInfo) -> None:
        if info.client in self.counters:
            self.counters[info.client] += INPUT_WEIGHT * info.prompt_tokens

    def in_turn(self) -> list[int]:
        lines: dict[str, list[tuple[tuple[int, ...], RequestInfo]]] = {}
        for key, info in sorted(self.waiting.values(), key=lambda entry: entry[0]):
            lines.setdefault(info.client, []).append((key, info))
        counters = dict(self.counters)
        order = []
        while lines:
            heads = [(line[0][0][0], counters[name], line[0][0]) for name, line in lines.items()]
            names = list(lines)
            name = names[heads.index(min(heads))]
            _, info = lines[name].pop(0)
            counters[name] += INPUT_WEIGHT * info.prompt_tokens
            order.append(info.seq)
            if not lines[name]:
                del lines[name]
        return order


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(1, 12),
    kept=st.integers(1, 8),
    priorities=st.integers(1, 3),
    busy=st.floats(0.3, 0.8),
)
def test_turns_are_those_of_the_plain_definition(
    seed: int, clients: int, kept: int, priorities: int, busy: float
) -> None:
    """Arrivals, departures and service in any order, with few counters kept of the idle."""
    with (
        patch(f"{__name__}.MAX_CLIENTS", kept),
        patch(f"{ClientTurns.__module__}.MAX_CLIENTS", kept),
    ):
        chance = random.Random(seed)
        turns, plain = ClientTurns(), PlainTurns()
        line = TurnLine(turns)
        known: list[RequestInfo] = []
        for seq in range(250):
            here = list(plain.waiting.values())
            if not here or chance.random() < busy:
                name = f"c{chance.randrange(clients)}"
                priority = chance.randrange(priorities)
                info = request(seq, name, chance.randint(1, 40), priority)
                # Due dates: later arrivals may stand before earlier ones.
                key = (-priority, chance.randrange(50), seq)
                turns.arrived(info)
                line.add(key, info)
                plain.arrived(key, info)
                known.append(info)
            else:
                key, info = chance.choice(here)
                line.discard(key, info)
                if chance.random() < 0.7:
                    turns.served_prompt(info)
                    plain.served(info)
                turns.left(info)
                plain.left(info)
            other = chance.choice(known)
            turns.served_prompt(other)
            plain.served(other)
            assert {name: turns.counter(name) for name in plain.counters} == plain.counters
            assert turns.snapshot()["clients"] == len(plain.counters)
            order = plain.in_turn()
            some = chance.randint(0, 5)
            assert [info.seq for info in islice(line.in_turn(), some)] == order[:some]
            assert [info.seq for info in line.in_turn()] == order
