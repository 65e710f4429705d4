"""Runs small enough to be worked out on paper."""

from __future__ import annotations

import pytest

from tests.simulator.runs import affine, serve, settings, tokens_ms
from twp_sglang.workloads.request import PrefixBlock, Request

PROMPT_COSTS = affine(prefill_ms_per_token=0.1)
"""10 ms per step and 0.1 ms per prompt token."""


@pytest.mark.parametrize("overlap", [False, True])
def test_one_request_takes_its_prefill_and_one_step_per_further_token(overlap: bool) -> None:
    run = serve([Request(0.0, 100, 3)], engine=settings(overlap=overlap), model=PROMPT_COSTS)
    # 10 + 100 * 0.1, then 10 each.
    assert tokens_ms(run, 0) == [20.0, 30.0, 40.0]


def test_without_overlap_a_prompt_runs_before_the_next_decode_step() -> None:
    run = serve([Request(0.0, 100, 3), Request(0.025, 100, 1)], model=PROMPT_COSTS)
    # B arrives at 25 during A's decode [20, 30]; its prefill [30, 50] delays A's last token.
    assert tokens_ms(run, 1) == [50.0]
    assert tokens_ms(run, 0) == [20.0, 30.0, 60.0]


def test_with_overlap_the_step_after_was_already_launched() -> None:
    run = serve(
        [Request(0.0, 100, 3), Request(0.025, 100, 1)],
        engine=settings(overlap=True),
        model=PROMPT_COSTS,
    )
    # At 20 the decode [30, 40] is launched behind [20, 30]; B is seen at 30, runs [40, 60].
    assert tokens_ms(run, 0) == [20.0, 30.0, 40.0]
    assert tokens_ms(run, 1) == [60.0]


def test_mixed_steps_carry_chunks_beside_the_decoding_rows() -> None:
    run = serve(
        [Request(0.0, 100, 4), Request(0.025, 100, 2)],
        policy="fcfs",
        engine=settings(step_kind="mixed", chunk_tokens=50),
        model=PROMPT_COSTS,
    )
    # A: chunks [0, 15], [15, 30], decode from 30. B arrives at 25: chunks in the steps
    # [30, 45] and [45, 60] (15 ms each), in which A decodes as well.
    assert tokens_ms(run, 0) == [30.0, 45.0, 60.0, 70.0]
    assert tokens_ms(run, 1) == [60.0, 70.0]


def test_stock_mixed_steps_charge_the_rows_to_the_chunk() -> None:
    run = serve(
        [Request(0.0, 50, 4), Request(0.012, 50, 2)],
        engine=settings(step_kind="mixed", chunk_tokens=50),
        model=PROMPT_COSTS,
    )
    # One decoding row leaves 49 prompt tokens to B's first step, one to its second.
    assert tokens_ms(run, 0) == [15.0, 29.9, 40.0, 50.0]
    assert tokens_ms(run, 1) == [40.0, 50.0]


def test_interval_runs_decode_steps_between_chunks() -> None:
    run = serve(
        [Request(0.0, 50, 4), Request(0.001, 100, 1)],
        engine=settings(step_kind="interval", prefill_decode_interval=1, chunk_tokens=50),
        model=PROMPT_COSTS,
    )
    # A prefill [0, 15], decode [15, 25]; B chunk [25, 40]; decode [40, 50]; chunk [50, 65].
    assert tokens_ms(run, 0) == [15.0, 25.0, 50.0, 75.0]
    assert tokens_ms(run, 1) == [65.0]


def test_step_time_follows_rows_knee_and_context() -> None:
    model = affine(b0=1.0, alpha_ms=2.0, a_ms=1.0, kappa_ms_per_token=0.01)
    run = serve([Request(0.0, 100, 2), Request(0.0, 200, 2)], model=model)
    # Prefill without rows: 10 + 0.01 * 300. Decode of two: 10 + 2*1 + 1*2 + 0.01 * 302.
    assert tokens_ms(run, 0) == [13.0, 30.02]


def test_too_little_memory_retracts_the_longer_prompt_and_computes_it_again() -> None:
    engine = settings(kv_tokens=100, schedule_conservativeness=0.01)
    run = serve([Request(0.0, 30, 25), Request(0.005, 31, 25)], engine=engine)
    # 61 prompt tokens and two more per step: the 20th decode step finds 1 free of 100.
    first, second = run.requests
    assert run.result.retractions == 1
    assert (first.retractions, second.retractions) == (0, 1)
    # One token by prefill and 19 decode steps before; A's 5 left decode alone from then on.
    assert [segment.end - segment.begin for segment in second.segments] == [19, 4]
    assert second.fill_tokens == 31 + 20
    assert len(tokens_ms(run, 1)) == len(tokens_ms(run, 0)) == 25


def test_prompts_that_share_a_prefix_compute_it_once() -> None:
    block = (PrefixBlock("system", 64),)
    run = serve(
        [Request(0.0, 100, 1, prefix=block), Request(1.0, 100, 1, prefix=block)],
        model=PROMPT_COSTS,
    )
    assert tokens_ms(run, 0) == [20.0]
    assert tokens_ms(run, 1) == [1013.6]  # 36 tokens instead of 100
    assert run.result.prefix_hit_tokens == 64


def test_a_fully_cached_prompt_still_computes_one_token() -> None:
    block = (PrefixBlock("all", 100),)
    run = serve(
        [Request(0.0, 100, 1, prefix=block), Request(1.0, 100, 1, prefix=block)],
        model=PROMPT_COSTS,
    )
    assert tokens_ms(run, 1) == [1010.1]


def test_an_answer_that_ends_by_itself_rides_one_wasted_step_under_overlap() -> None:
    # Declared 10, ends after 2: the overlapped engine launches its row once more.
    model = affine(a_ms=1.0)
    ends_early = Request(0.0, 10, 2, max_new_tokens=10)
    beside = Request(0.0, 10, 5)
    lone = serve([ends_early, beside], engine=settings(overlap=False), model=model)
    overlapped = serve([ends_early, beside], engine=settings(overlap=True), model=model)
    # Steps of 12 with two rows, 11 with one.
    assert tokens_ms(lone, 1) == [10.0, 22.0, 33.0, 44.0, 55.0]
    assert tokens_ms(overlapped, 1) == [10.0, 22.0, 34.0, 45.0, 56.0]


def test_pages_are_held_whole() -> None:
    run = serve([Request(0.0, 17, 16)], engine=settings(kv_tokens=64, page_size=16))
    assert run.requests[0].status == "completed"
    # 17 + 16 tokens and a page of reserve do not go into 48.
    tight = serve([Request(0.0, 17, 16)], engine=settings(kv_tokens=48, page_size=16))
    assert tight.result.refused == {"larger than the KV pool": 1}


def test_c_bounds_the_chunk_only_while_somebody_decodes() -> None:
    run = serve(
        [Request(0.0, 100, 4), Request(0.015, 100, 1)],
        policy="fcfs",
        engine=settings(step_kind="mixed", chunk_tokens=4096, decode_chunk_tokens=50),
        model=PROMPT_COSTS,
    )
    # A alone enters whole [0, 20]; B in two chunks beside A's decoding, [20, 35] and [35, 50].
    assert tokens_ms(run, 0) == [20.0, 35.0, 50.0, 60.0]
    assert tokens_ms(run, 1) == [50.0]
