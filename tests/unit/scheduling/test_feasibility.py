"""The order by TTFT feasibility, by hand and against every possible choice."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from scheduling_builders import request

from twp_sglang.scheduling.client_turns import ClientTurns
from twp_sglang.scheduling.feasibility import CREDIT_MAX_TOKENS, TtftLines
from twp_sglang.scheduling.request import RequestInfo


def lines(*requests: RequestInfo, slo_ms: float = 100.0, share: float = 0.1) -> TtftLines:
    made = TtftLines(slo_ms, late_after_ms=1000.0, late_share=share)
    for one in requests:
        made.add(one)
    return made


def prompt(seq: int, tokens: int, arrival_ms: float = 0.0, priority: int = 0) -> RequestInfo:
    return request(seq, prompt_tokens=tokens, arrival_ms=arrival_ms, priority=priority)


def order(of: TtftLines, now_ms: float = 0.0, rate: float = 1.0) -> list[int]:
    return [one.seq for one in of.order(now_ms, now_ms, rate)]


def test_with_time_enough_it_is_first_come_first_served() -> None:
    of = lines(prompt(0, 60), prompt(1, 20), prompt(2, 20))
    assert order(of) == [0, 1, 2]
    of.commit()
    assert of.late == 0


def test_the_longest_makes_way_when_one_would_be_late() -> None:
    # Due at 100 ms: 60 + 20 + 30 tokens at 1 per ms are 110 ms.
    of = lines(prompt(0, 60), prompt(1, 20), prompt(2, 30))
    assert order(of) == [1, 2, 0]
    of.commit()
    assert (of.fresh, of.late) == (2, 1)


def test_of_equals_the_oldest_makes_way() -> None:
    of = lines(*(prompt(seq, 30, arrival_ms=seq) for seq in range(4)))
    # At 20 ms: 30, 60, 90, 120 tokens end at 50, 80, 110, 140; due 100, 101, 102, 103.
    assert order(of, 20.0) == [2, 3, 0, 1]


def test_a_later_due_date_saves_it() -> None:
    of = lines(prompt(0, 60), prompt(1, 20), prompt(2, 30, arrival_ms=10.0))
    assert order(of) == [0, 1, 2]


def test_looking_changes_nothing_until_the_pass_ends() -> None:
    of = lines(prompt(0, 90), prompt(1, 20))
    assert order(of) == order(of) == [1, 0]
    assert (of.fresh, of.late) == (2, 0)
    of.commit()
    assert (of.fresh, of.late) == (1, 1)


def test_who_was_admitted_meanwhile_does_not_come_back_as_late() -> None:
    long = prompt(0, 90)
    of = lines(long, prompt(1, 20))
    order(of)
    of.discard(long)
    of.commit()
    assert (of.fresh, of.late) == (1, 0)


def test_late_ones_wait_in_order_of_arrival() -> None:
    of = lines(prompt(0, 500), prompt(1, 200), prompt(2, 300))
    assert order(of) == [0, 1, 2]
    of.commit()
    assert (of.fresh, of.late) == (0, 3)
    of.add(prompt(3, 10))
    assert order(of) == [3, 0, 1, 2]


def test_aged_ones_go_first_as_far_as_credit_goes() -> None:
    of = lines(prompt(0, 500), prompt(1, 400))
    order(of)
    of.commit()
    of.add(prompt(2, 10, arrival_ms=1000.0))
    assert order(of, 1000.0) == [2, 0, 1], "no credit yet"
    of.spent(40, aged=False)
    assert of.credit_tokens == 4.0
    assert order(of, 1000.0) == [0, 2, 1], "credit for one to begin"
    of.spent(500, aged=True)
    assert of.credit_tokens == 4.0 + 50.0 - 500.0
    assert order(of, 1000.0) == [2, 0, 1]


def test_credit_does_not_pile_up() -> None:
    of = lines()
    for _ in range(100):
        of.spent(10_000, aged=False)
    assert of.credit_tokens == CREDIT_MAX_TOKENS


def test_only_who_takes_anothers_turn_pays() -> None:
    old = prompt(0, 500)
    of = lines(old)
    order(of)
    of.commit()
    assert not of.goes_first(old, 2000.0), "nobody else waits"
    fresh = prompt(1, 10, arrival_ms=2000.0)
    of.add(fresh)
    assert of.goes_first(old, 2000.0)
    assert not of.goes_first(old, 500.0), "not old enough"
    assert not of.goes_first(fresh, 9000.0), "not late"


def test_a_young_late_one_of_high_priority_does_not_hide_an_old_one() -> None:
    low, high = prompt(0, 500), prompt(1, 400, arrival_ms=900.0, priority=3)
    of = lines(low, high)
    order(of, 900.0)
    of.commit()
    of.spent(40, aged=False)
    assert order(of, 999.0) == [1, 0], "not old yet: by priority"
    assert order(of, 1000.0) == [0, 1], "old, on its share"
    assert of.goes_first(low, 1000.0), "it pays: the other had gone before it"
    of.discard(high)
    assert not of.goes_first(low, 1000.0)
    of.discard(low)
    assert of.late == 0


def test_old_ones_go_by_age_whatever_their_priority() -> None:
    of = lines(*(prompt(seq, 500, arrival_ms=seq, priority=seq % 3) for seq in range(6)))
    order(of, 10.0)
    of.commit()
    of.spent(30_000, aged=False)
    assert order(of, 1003.0) == [0, 1, 2, 3, 5, 4]
    of.spent(0, aged=False)
    assert order(of, 2000.0) == [0, 1, 2, 3, 4, 5]


def test_priority_goes_before_arrival() -> None:
    of = lines(prompt(0, 10), prompt(1, 10, priority=5), prompt(2, 10))
    assert order(of) == [1, 0, 2]


def test_unknown_requests_are_ignored() -> None:
    of = lines(prompt(0, 10))
    of.discard(prompt(7, 10))
    assert of.fresh == 1


@settings(deadline=None, max_examples=200)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 120), st.integers(0, 60)), min_size=1, max_size=8),
    start=st.integers(0, 80),
)
def test_no_choice_has_fewer_late(jobs: list[tuple[int, int]], start: int) -> None:
    """Moore's theorem, checked by trying all subsets."""
    arrivals = sorted(arrival for _, arrival in jobs)
    queue = [
        prompt(seq, tokens, float(arrival))
        for seq, ((tokens, _), arrival) in enumerate(zip(jobs, arrivals, strict=True))
    ]
    of = lines(*queue)
    list(of.order(float(start), 60.0, 1.0))
    of.commit()

    def in_time(chosen: tuple[RequestInfo, ...]) -> bool:
        at = float(start)
        for one in chosen:
            at += one.prompt_tokens
            if at > one.arrival_ms + 100.0:
                return False
        return True

    best = max(
        size for size in range(len(queue) + 1) if any(map(in_time, combinations(queue, size)))
    )
    assert of.fresh == best
    assert of.fresh + of.late == len(queue)


def of_client(seq: int, tokens: int, client: str, **attributes: object) -> RequestInfo:
    return request(seq, prompt_tokens=tokens, client=client, **attributes)


def with_turns(*requests: RequestInfo, slo_ms: float = 100.0) -> tuple[TtftLines, ClientTurns]:
    turns = ClientTurns()
    made = TtftLines(slo_ms, late_after_ms=1000.0, late_share=0.1, turns=turns)
    for one in requests:
        turns.arrived(one)
        made.add(one)
    return made, turns


def test_each_request_is_judged_by_its_own_due_date() -> None:
    hasty = request(2, prompt_tokens=30, ttft_slo_ms=40.0)
    of = lines(prompt(0, 30), prompt(1, 30), hasty)
    assert order(of) == [2, 0, 1], "due first"
    patient = request(0, prompt_tokens=90, ttft_slo_ms=500.0)
    of = lines(patient, prompt(1, 60), prompt(2, 30))
    assert order(of) == [1, 2, 0]
    of.commit()
    assert of.late == 0, "the patient one is in time at 180 ms"


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.sampled_from([None, 20.0, 100.0, 300.0])),
        min_size=1, max_size=7,
    )
)  # fmt: skip
def test_with_own_due_dates_too_the_fewest_are_late(
    requests: list[tuple[int, float | None]],
) -> None:
    made = [
        request(seq, prompt_tokens=tokens, ttft_slo_ms=own)
        for seq, (tokens, own) in enumerate(requests)
    ]
    of = lines(*made)
    order(of)
    of.commit()

    def in_time(chosen: tuple[RequestInfo, ...]) -> bool:
        tokens = 0
        for one in sorted(chosen, key=lambda each: each.ttft_slo_ms or 100.0):
            tokens += one.prompt_tokens
            if tokens > (one.ttft_slo_ms or 100.0):
                return False
        return True

    most = max(size for size in range(len(made) + 1) if any(map(in_time, combinations(made, size))))
    assert of.fresh == most


def test_of_those_in_time_the_client_served_least_goes_first() -> None:
    asked = [of_client(0, 10, "a"), of_client(1, 10, "a"), of_client(2, 10, "b")]
    of, turns = with_turns(*asked)
    assert order(of) == [0, 2, 1], "equal counters: the earlier one, then turns"
    turns.served_prompt(of_client(9, 500, "a"))
    assert order(of) == [2, 0, 1]


def test_who_sends_too_much_is_late_alone() -> None:
    flood = [of_client(seq, 30, "flood") for seq in range(10)]
    # It came last and is the longest; in order of arrival it could not be in time.
    of, _ = with_turns(*flood, of_client(10, 35, "other"))
    assert order(of)[:2] == [10, 7] or 10 in order(of)[:3]
    of.commit()
    assert not of.is_late(of._fresh[10])
    assert of.late == 8
    plain = lines(*flood, of_client(10, 35, "other"))
    order(plain)
    plain.commit()
    assert 10 not in plain._fresh


def test_late_ones_take_turns_as_well() -> None:
    of, turns = with_turns(*(of_client(seq, 500, "a") for seq in range(3)), of_client(3, 600, "b"))
    order(of)
    of.commit()
    assert of.late == 4
    assert order(of) == [0, 3, 1, 2]
    turns.served_prompt(of_client(9, 5000, "a"))
    assert order(of) == [3, 0, 1, 2]


@given(
    st.lists(
        st.tuples(st.integers(1, 120), st.integers(0, 2), st.sampled_from([None, 50.0, 200.0])),
        max_size=12,
    ),
    st.floats(0.0, 150.0),
)  # fmt: skip
def test_a_single_client_is_served_as_without_turns(
    requests: list[tuple[int, int, float | None]], now_ms: float
) -> None:
    made = [
        request(seq, prompt_tokens=tokens, priority=priority, ttft_slo_ms=own, arrival_ms=seq)
        for seq, (tokens, priority, own) in enumerate(requests)
    ]
    of, _ = with_turns(*made)
    plain = lines(*made)
    for _ in range(2):
        assert order(of, now_ms) == order(plain, now_ms)
        of.commit()
        plain.commit()
    assert of.late == plain.late
