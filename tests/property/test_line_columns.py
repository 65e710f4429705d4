"""Late ones found by vector operations are those that the walk finds, whatever happens to the
line meanwhile: one line with columns and one without see the same, and must serve alike."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twp_sglang.scheduling import feasibility, line_columns
from twp_sglang.scheduling.client_turns import ClientTurns
from twp_sglang.scheduling.explanation import prompt_to_serve
from twp_sglang.scheduling.feasibility import TtftLines
from twp_sglang.scheduling.request import RequestInfo


class Walking(TtftLines):
    """Has no columns, however long the line."""

    def _found_in_columns(self, start_ms: float, tokens_per_ms: float) -> None:
        return None


class Two:
    """The line with columns, ``quick``, and the one that walks, side by side."""

    def __init__(self, seed: int, clients: int, priorities: int, *, own: bool) -> None:
        self.chance = random.Random(seed)
        self.turns = ClientTurns() if clients else None
        self.names = [f"c{number}" for number in range(max(1, clients))]
        self.priorities = priorities
        self.own = own
        self.quick = TtftLines(200.0, 500.0, 0.1, self.turns)
        self.plain = Walking(200.0, 500.0, 0.1, self.turns)
        self.waiting: dict[int, RequestInfo] = {}
        self.now_ms = 0.0
        self.seq = 0
        self.lose_their_place: list[int] = []
        self.seen: Counter[str] = Counter()

    def arrive(self, seq: int | None = None) -> None:
        chance = self.chance
        number = self.seq if seq is None else seq
        info = RequestInfo(
            f"r{number}", number, 0, chance.randint(1, 40), 20,
            priority=chance.randrange(self.priorities),
            arrival_ms=self.now_ms,
            client=chance.choice(self.names),
            ttft_slo_ms=chance.choice([None, 20.0, 400.0, 3000.0]) if self.own else None,
            cached_tokens=chance.choice([0, 0, 10]),
            preemptions=int(seq is not None),
        )  # fmt: skip
        self.seq += seq is None
        self.waiting[number] = info
        if self.turns is not None:
            self.turns.arrived(info)
        for line in (self.quick, self.plain):
            line.add(info)

    def leave(self, info: RequestInfo, *, served: bool) -> None:
        del self.waiting[info.seq]
        for line in (self.quick, self.plain):
            line.discard(info)
        if self.turns is not None:
            if served:
                self.turns.served_prompt(info)
            self.turns.left(info)

    def recount(self, info: RequestInfo) -> None:
        """The prefix cache holds another part of its prompt now."""
        before = prompt_to_serve(info)
        info.cached_tokens = self.chance.choice([0, 5, 15])
        for line in (self.quick, self.plain):
            line.recounted(info, prompt_to_serve(info) - before)

    def one_pass(self, arrivals: int) -> None:
        chance = self.chance
        self.now_ms += chance.uniform(0.0, 30.0)
        for _ in range(arrivals):
            self.arrive()
        for seq in self.lose_their_place:
            # To a higher priority; it comes back, here even under its old number.
            self.arrive(seq)
        self.lose_their_place.clear()
        for info in [one for one in self.waiting.values() if chance.random() < 0.05]:
            self.leave(info, served=False)
        if self.turns is not None and self.waiting and chance.random() < 0.3:
            # What its running requests produced meanwhile.
            self.turns.served_prompt(chance.choice(list(self.waiting.values())))
        for info in [one for one in self.waiting.values() if chance.random() < 0.1]:
            self.recount(info)
        rate = chance.uniform(0.1, 3.0)
        start = self.now_ms + chance.uniform(0.0, 20.0)
        order = [info.seq for info in self.plain.order(start, self.now_ms, rate)]
        taken = chance.randint(0, 6)
        assert [
            info.seq for info in islice(self.quick.order(start, self.now_ms, rate), taken)
        ] == order[:taken]
        assert [info.seq for info in self.quick.order(start, self.now_ms, rate)] == order
        for seq in order[:taken]:
            info = self.waiting[seq]
            self.leave(info, served=True)
            if chance.random() < 0.1:
                self.lose_their_place.append(seq)
        before = self.quick.late
        for line in (self.quick, self.plain):
            line.commit()
        self.seen["late"] += self.quick.late - before
        self.seen["columns"] += self.quick._columns is not None
        assert (self.quick.fresh, self.quick.late) == (self.plain.fresh, self.plain.late)
        if chance.random() < 0.02:
            objective_ms = chance.choice([150.0, 200.0, 300.0])
            for line in (self.quick, self.plain):
                line.objective_changed(objective_ms)


def test_both_serve_alike() -> None:
    seen: Counter[str] = Counter()

    @settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
    @given(
        seed=st.integers(0, 2**32),
        clients=st.integers(0, 6),
        priorities=st.integers(1, 3),
        own=st.booleans(),
        arrivals=st.sampled_from([1, 3, 12]),
        limits=st.fixed_dictionaries(
            {
                "_FIRST_ROWS": st.sampled_from([1, 8, 1024]),
                "MOST_LATE": st.sampled_from([1, 32]),
                "_MOST_CLIENTS": st.sampled_from([2, 2**16]),
                "_MOST_SORTED_BY": st.sampled_from([10**5, 2**62]),
            }
        ),
    )
    def runs(
        seed: int,
        clients: int,
        priorities: int,
        own: bool,
        arrivals: int,
        limits: dict[str, int],
    ) -> None:
        two = Two(seed, clients, priorities, own=own)
        with (
            patch.multiple(line_columns, **limits),
            patch.object(feasibility, "COLUMNS_FROM", 1),
        ):
            for _ in range(40):
                two.one_pass(arrivals)
        seen.update(two.seen)

    runs()
    assert seen["late"] > 100, seen
    assert seen["columns"] > 500, seen
