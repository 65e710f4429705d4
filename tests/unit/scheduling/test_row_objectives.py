"""Inter-token objectives of single requests in policy slo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scheduling_builders import config, request, sample, seasoned, view

from twp_sglang.scheduling.active_rows import ActiveRows
from twp_sglang.scheduling.policies.slo import Slo
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import PassView


def slo(**fields: Any) -> Slo:
    """10 ms and 1 ms per row, 0.1 ms per prompt token; 0.848 of an objective is planned for."""
    model = {"l_min_ms": 10.0, "a_ms": 1.0, "prefill_ms_per_token": 0.1, "b0": 1}
    return seasoned(Slo(config(policy="slo", **{**model, **fields})))


def beside(infos: Sequence[RequestInfo | None], **attributes: Any) -> PassView:
    each = np.ones(len(infos), dtype=np.int64)
    rows = ActiveRows(infos, each, 10 * each, each)
    values = {"batch": len(infos), "kv_free_tokens": 10**6, "kv_capacity_tokens": 10**6}
    return view(**{**values, "rows": lambda: rows, **attributes})


def plain(count: int) -> list[RequestInfo | None]:
    return [request(100 + number) for number in range(count)]


def seqs(policy: Slo, there: PassView) -> list[int]:
    return [grant.request.seq for grant in policy.decide(there).grants]


def test_an_active_row_with_a_tighter_objective_bounds_rows_and_chunk() -> None:
    policy = slo()
    policy.row_objectives.enqueued(request(99, itl_slo_ms=30.0))
    tight = [*plain(9), request(1, itl_slo_ms=30.0)]
    policy.enqueue(request(0))
    # 0.848 * 30 = 25.4 ms: 15 rows, and (25.4 - 20) / 0.1 prompt tokens beside 10.
    assert policy.model.chunk_tokens(10, 0, objective_ms=30.0) == 54
    assert seqs(policy, beside(tight)) == [0]
    assert policy.decide(beside([*tight, *plain(5)])).closed == "window"
    assert seqs(policy, beside([*plain(15)])) == [0], "without it, 32 rows"


def test_a_looser_one_counts_where_all_are_loose() -> None:
    policy = slo()
    policy.row_objectives.enqueued(request(99, itl_slo_ms=100.0))
    loose = [request(100 + number, itl_slo_ms=100.0) for number in range(40)]
    policy.enqueue(request(0, itl_slo_ms=100.0))
    assert seqs(policy, beside(loose)) == [0], "84.8 ms hold 74 rows"
    policy.withdraw(next(iter(policy.queue)))
    policy.enqueue(request(1))
    assert policy.decide(beside(loose)).closed == "window", "the newcomer's own is 50 ms"


def test_one_that_the_batch_would_break_waits_until_it_has_drained() -> None:
    policy = slo(ttft_slo_ms=2000.0)
    policy.enqueue(request(0, itl_slo_ms=30.0))
    policy.enqueue(request(1))
    decision = policy.decide(beside(plain(20)))
    assert (decision.grants, decision.closed) == ((), "window"), "nobody passes it: it drains"
    assert seqs(policy, beside(plain(14))) == [0], "then its objective holds for all"
    # When its first token is due it enters as one without an objective of its own.
    late = beside(plain(20), now_ms=2000.0)
    assert 0 in seqs(policy, late)
    grants = {grant.request.seq: grant for grant in policy.decide(late).grants}
    policy.admitted(grants[0])
    assert grants[0].request.itl_slo_ms is None


def test_a_patient_ttft_of_its_own_holds_up_nobody_longer_than_that_of_all() -> None:
    policy = slo(ttft_slo_ms=2000.0)
    policy.enqueue(request(0, itl_slo_ms=30.0, ttft_slo_ms=3.6e6, client="a"))
    policy.enqueue(request(1, client="b", arrival_ms=1.0))
    assert policy.decide(beside(plain(20), now_ms=1999.0)).closed == "window"
    assert set(seqs(policy, beside(plain(20), now_ms=2000.0))) == {0, 1}


def test_a_hurried_ttft_of_its_own_ends_the_wait_for_its_itl() -> None:
    policy = slo(ttft_slo_ms=2000.0)
    policy.enqueue(request(0, itl_slo_ms=30.0, ttft_slo_ms=500.0))
    assert policy.decide(beside(plain(20), now_ms=499.0)).closed == "window"
    assert seqs(policy, beside(plain(20), now_ms=500.0)) == [0]


def test_however_many_tight_ones_come_the_others_enter_half_of_the_time() -> None:
    """One of them always waits; 20 rows run on, which none of their objectives bears."""
    policy = slo(ttft_slo_ms=2000.0)
    seq, shut, longest, stretch, kept = 0, 0, 0, 0, 0
    passes = 2000
    for step in range(passes):
        now_ms = 20.0 * step
        if step % 50 == 0:
            policy.enqueue(request(seq, itl_slo_ms=30.0, arrival_ms=now_ms, client="tight"))
            seq += 1
        policy.enqueue(request(seq, arrival_ms=now_ms, client="other"))
        seq += 1
        grants = policy.decide(beside(plain(20), now_ms=now_ms, pass_index=step)).grants
        for grant in grants:
            policy.admitted(grant)
            kept += grant.request.itl_slo_ms is not None
        stretch = 0 if grants else stretch + 1
        shut += not grants
        longest = max(longest, stretch)
        policy.end_pass(10**6, 10**6, None)
    assert kept == 0
    assert 0 < longest * 20.0 <= 2000.0 + 20.0
    assert shut <= passes / 2 + 2000.0 / 20.0
    assert len(policy.queue) < 200


def test_an_objective_out_of_reach_is_not_planned_for() -> None:
    policy = slo()
    # 11 ms are the shortest step there is.
    policy.enqueue(request(0, itl_slo_ms=12.0))
    assert seqs(policy, beside(plain(20))) == [0]


def test_without_own_objectives_no_row_is_read() -> None:
    policy = slo()
    policy.enqueue(request(0))

    def unread() -> ActiveRows:
        raise AssertionError("read")

    there = beside(plain(40))._replace(rows=unread)
    assert policy.decide(there).closed == "window"
    assert policy.chunk_tokens(there) is not None
    policy.observe(sample(20.0))
