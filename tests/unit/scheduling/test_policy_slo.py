"""Policy slo put together: who is let in, in which order, and how large the chunk is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scheduling_builders import config, request, sample, seasoned, view

from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.active_rows import ActiveRows
from twp_sglang.scheduling.decision import Decision
from twp_sglang.scheduling.lengths_online import FinishedAnswer
from twp_sglang.scheduling.load import ActiveLoad
from twp_sglang.scheduling.policies import build_policy
from twp_sglang.scheduling.policies.base import GRANTS_PER_PASS
from twp_sglang.scheduling.policies.slo import Slo


def slo(**fields: Any) -> Slo:
    """10 ms and 1 ms per row, 0.1 ms per prompt token; 42.39 of 50 ms may be planned for."""
    model = {"l_min_ms": 10.0, "a_ms": 1.0, "prefill_ms_per_token": 0.1}
    policy = build_policy(config(**{"policy": "slo", "b0": 1, **model, **fields}))
    assert isinstance(policy, Slo)
    return seasoned(policy)


def ten_rows(produced: int, limit: int) -> ActiveRows:
    """Ten requests of 50 prompt tokens each."""
    each = np.ones(10, dtype=np.int64)
    infos = [request(100 + number) for number in range(10)]
    return ActiveRows(infos, 50 * each, limit * each, produced * each)


def seqs(decision: Decision) -> list[int]:
    return [grant.request.seq for grant in decision.grants]


def test_it_is_the_default() -> None:
    assert isinstance(build_policy(TwpConfig()), Slo)


def test_nobody_waits() -> None:
    assert slo().decide(view()) == Decision((), "")


def test_rows_enter_while_the_predicted_step_keeps_the_objective() -> None:
    policy = slo()
    for seq in range(5):
        policy.enqueue(request(seq))
    # 10 + B ms <= 42.39 ms: 32 rows.
    decision = policy.decide(view(batch=30))
    assert (seqs(decision), decision.closed) == ([0, 1], "window")
    assert [grant.reason for grant in decision.grants] == ["policy", "policy"]
    assert policy.decide(view(batch=32)) == Decision((), "window")


def test_deciding_changes_nothing() -> None:
    policy = slo()
    for seq in range(5):
        policy.enqueue(request(seq, prompt_tokens=100_000 * (seq + 1)))
    before = policy.snapshot()
    there = view(kv_free_tokens=10**7, kv_capacity_tokens=10**7)
    assert policy.decide(there) == policy.decide(there)
    assert policy.snapshot() == before


def test_an_idle_engine_takes_its_head_whatever_the_prediction() -> None:
    policy = slo(itl_slo_ms=5.0)
    for seq in range(6):
        policy.enqueue(request(seq))
    decision = policy.decide(view(batch=0, load_tokens=0))
    assert decision.closed == "window"
    assert seqs(decision) == [0, 1, 2], "13 ms are at most a quarter more than one row's 11"
    assert [grant.reason for grant in decision.grants] == ["idle", "policy", "policy"]


def test_retracted_ones_are_first_and_exempt() -> None:
    policy = slo()
    policy.enqueue(request(0))
    policy.enqueue(request(1, retracted=True))
    decision = policy.decide(view(batch=40, kv_free_tokens=1))
    assert (seqs(decision), decision.closed) == ([1], "window")


def test_memory_closes_by_its_predicted_peak() -> None:
    policy = slo()
    policy.enqueue(request(0, prompt_tokens=10, expected_tokens=20))
    policy.enqueue(request(1, prompt_tokens=800, expected_tokens=100))
    # Nothing is learned: the engine's belief in whole limits stands. At most 960 at the peak,
    # when the shorter is about to end: 10 + 800 + 2 * 20.
    assert seqs(policy.decide(view())) == [0, 1]
    policy = slo()
    policy.enqueue(request(1, prompt_tokens=800, expected_tokens=161))
    decision = policy.decide(view())
    assert (seqs(decision), decision.closed) == ([], "kv")


def test_a_pass_grants_a_bounded_number() -> None:
    policy = slo(itl_slo_ms=1000.0)
    for seq in range(GRANTS_PER_PASS + 5):
        policy.enqueue(request(seq, prompt_tokens=1, expected_tokens=1))
    decision = policy.decide(view(kv_free_tokens=10**6, kv_capacity_tokens=10**6))
    assert (len(decision.grants), decision.closed) == (GRANTS_PER_PASS, "limit")


def test_the_chunk_fills_the_step_up_to_the_objective() -> None:
    # 10 decoding rows: 20 ms; (42.39 - 20) / 0.1.
    assert slo().chunk_tokens(view(batch=10)) == 223
    # One of 11 is in the middle of its prompt and does not decode.
    assert slo().chunk_tokens(view(batch=11, owed_prompt_tokens=500)) == 223
    assert slo().chunk_tokens(view(batch=60)) == 32
    assert slo().chunk_tokens(view(batch=0)) == 8192
    assert slo(chunk_tokens=100).chunk_tokens(view(batch=10)) == 100
    assert slo(chunk_tokens=100).chunk_tokens(view(batch=0)) == 8192


def test_kv_tokens_count_where_they_make_the_step() -> None:
    policy = slo(kappa_ms_per_token=0.01)
    # 1000 held: 10 ms more than without; what is owed by the chunked request is not held.
    assert policy.chunk_tokens(view(batch=10, kv_free_tokens=0)) == 123
    there = view(batch=11, kv_free_tokens=-500, owed_prompt_tokens=500)
    assert policy.chunk_tokens(there) == 123


def test_the_longest_waits_when_not_all_can_have_their_first_token_in_time() -> None:
    policy = slo(ttft_slo_ms=2000.0)
    # The model promises 313 tokens in 42.3 ms beside 1 row: 14,800 in 2 s.
    big = view(kv_free_tokens=10**6, kv_capacity_tokens=10**6)
    for seq, tokens in enumerate((9000, 3000, 4000)):
        policy.enqueue(request(seq, prompt_tokens=tokens))
    assert seqs(policy.decide(big)) == [1, 2, 0]
    policy.end_pass(10**6, 10**6, ActiveLoad(0, 0))
    assert policy.snapshot()["late"] == 1


def test_who_aged_goes_first_on_its_share() -> None:
    late_pass = view(kv_free_tokens=10**6, kv_capacity_tokens=10**6)
    policy = slo(ttft_slo_ms=2000.0, late_after_ms=5000.0, late_share=0.5)
    policy.enqueue(request(0, prompt_tokens=90_000))
    policy.decide(late_pass)
    policy.end_pass(10**6, 10**6, None)
    for seq in (1, 2):
        policy.enqueue(request(seq, prompt_tokens=100, arrival_ms=6000.0))
    now = late_pass._replace(now_ms=6000.0)
    decision = policy.decide(now)
    assert seqs(decision) == [1, 2, 0], "no credit yet"
    policy.admitted(decision.grants[0])
    assert seqs(policy.decide(now)) == [0, 2], "50 tokens of credit let one begin"
    policy.admitted(policy.decide(now).grants[0])
    assert policy.snapshot()["late_credit_tokens"] == 50.0 + 45_000.0 - 90_000.0


def test_steps_teach_the_model_and_useless_ones_do_not() -> None:
    policy = slo(warmup_steps=1)
    for duration in (None, 0.0, math.inf, math.nan):
        policy.observe(sample(duration))
    policy.observe(sample(500.0))
    assert policy.snapshot()["gain_decode"] == 1.0
    assert policy.signals().itl_ms is None
    policy.observe(sample(20.0, batch=8))
    # Normalised LMS: 18 ms were predicted; 1 + 0.02 * 2/18.
    assert policy.snapshot()["gain_decode"] == pytest.approx(1 + 0.02 * 2 / 18)
    assert policy.signals().itl_ms == 20.0


def test_only_steps_that_leave_somebody_waiting_tell_the_prompt_rate() -> None:
    policy = slo()
    before = policy.rate.tokens_per_ms(1.0)
    policy.observe(sample(20.0, step=5, prefill_tokens=100, kind="mixed"))
    assert policy.rate.tokens_per_ms(1.0) == before
    policy.enqueue(request(0, arrival_pass=5))
    policy.observe(sample(20.0, step=5, prefill_tokens=100, kind="mixed"))
    assert policy.rate.tokens_per_ms(1.0) == before, "it came during that step"
    policy.observe(sample(20.0, step=6, prefill_tokens=100, kind="mixed"))
    assert policy.rate.tokens_per_ms(1.0) == (100 + 1000) / 1020


def test_what_ended_bounds_the_forecast() -> None:
    policy = slo()
    policy.enqueue(request(0, expected_tokens=4096))
    assert policy.decide(view()).closed == "kv"
    for _ in range(200):
        policy.finished(FinishedAnswer(10, 99, 4096))
    # Of what is declared less than 1 % still counts, beside 103, the end of the bin of 99.
    assert seqs(policy.decide(view())) == [0]
    snapshot = policy.snapshot()
    assert snapshot["answers_seen"] == 200
    assert snapshot["lengths"]["coverage"] == 1.0


def test_rows_count_by_what_each_has_produced() -> None:
    # 10 rows of 50 + 40 tokens; with the newcomer's prompt 910, and 960 may be used.
    # Where each row still makes 10 tokens, 11 rows need 110 before the first ends.
    rows = ten_rows(produced=40, limit=50)
    there = view(batch=10, load_tokens=100, kv_free_tokens=100, rows=lambda: rows)
    policy = slo()
    policy.enqueue(request(0, prompt_tokens=10, expected_tokens=20))
    assert policy.decide(there).closed == "kv"
    almost_done = ten_rows(produced=40, limit=43)
    there = view(batch=10, load_tokens=30, kv_free_tokens=100, rows=lambda: almost_done)
    assert seqs(policy.decide(there)) == [0]


def test_who_lost_its_memory_twice_must_fit_with_its_whole_limit() -> None:
    policy = slo()
    for _ in range(200):
        policy.finished(FinishedAnswer(10, 9, 4096))
    policy.enqueue(request(0, retracted=True, retractions=2, expected_tokens=2000))
    policy.enqueue(request(1, retracted=True, retractions=1, expected_tokens=2000))
    decision = policy.decide(view())
    assert (seqs(decision), decision.closed) == ([1], "kv")
    assert seqs(policy.decide(view(batch=0))) == [1], "the first one takes the empty engine"
    policy.withdraw(decision.grants[0].request)
    assert seqs(policy.decide(view(batch=0))) == [0], "and alone, the other does"


def test_the_client_served_least_goes_first() -> None:
    policy = slo()
    there = view(kv_free_tokens=10**6, kv_capacity_tokens=10**6)
    for seq, client in enumerate(("a", "a", "b")):
        policy.enqueue(request(seq, client=client))
    decision = policy.decide(there)
    assert seqs(decision) == [0, 2, 1]
    policy.admitted(decision.grants[0])
    assert seqs(policy.decide(there)) == [2, 1]
    # What a's request produces counts twice; b's single prompt is soon made up for.
    policy.enqueue(request(3, client="b", prompt_tokens=100))
    policy.admitted(policy.decide(there).grants[0])
    running = [decision.grants[0].request]
    none = np.zeros(1, dtype=np.int64)
    rows = ActiveRows(running, none, none, none + 60)
    later = there._replace(rows=lambda: rows, pass_index=20)
    assert seqs(policy.decide(later)) == [3, 1]
    assert policy.snapshot()["client_service_spread"] == 10 + 2 * 60 - 10
    off = slo(client_fairness="off")
    for seq, client in enumerate(("a", "a", "b")):
        off.enqueue(request(seq, client=client))
    assert seqs(off.decide(there)) == [0, 1, 2]


def test_a_patient_ttft_of_its_own_keeps_memory_from_nobody_beyond_that_of_all() -> None:
    policy = slo(ttft_slo_ms=2000.0, late_after_ms=10_000.0)
    policy.enqueue(request(0, prompt_tokens=990, priority=1, ttft_slo_ms=3.6e6))
    policy.enqueue(request(1, arrival_ms=1990.0))
    assert policy.decide(view(now_ms=1999.0)) == Decision((), "kv")
    assert seqs(policy.decide(view(now_ms=2000.0))) == [1]
    policy.end_pass(1000, 1000, None)
    policy.enqueue(request(2, arrival_ms=9_999.0))
    assert seqs(policy.decide(view(now_ms=10_000.0))) == [], "old, it is saved for again"


def test_the_longest_gap_after_a_retraction() -> None:
    policy = slo()
    policy.enqueue(request(0, retracted=True, prompt_tokens=300, arrival_ms=1000.0))
    decision = policy.decide(view(pass_index=7, now_ms=1200.0, batch=0))
    policy.admitted(decision.grants[0])
    policy.observe(sample(30.0, step=6, prefill_tokens=100))
    policy.observe(sample(40.0, step=7, prefill_tokens=200))
    assert policy.snapshot()["longest_gap_after_retraction_ms"] is None
    policy.observe(sample(50.0, step=8, prefill_tokens=200))
    assert policy.snapshot()["longest_gap_after_retraction_ms"] == 200.0 + 40.0 + 50.0
    assert policy.snapshot()["retractions"] == 1


def test_withdrawn_and_taken_requests_leave_the_lines() -> None:
    policy = slo()
    one, two = request(0), request(1)
    policy.enqueue(one)
    policy.enqueue(two)
    policy.withdraw(one)
    policy.taken(two)
    assert policy.lines.fresh == len(policy.queue) == 0
    assert policy.decide(view()) == Decision((), "")
