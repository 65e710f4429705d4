"""Step times told from token times."""

from __future__ import annotations

import numpy as np
import pytest

from twp_sglang.benchmarking.results import RequestRecord
from twp_sglang.calibration.load import Timed
from twp_sglang.calibration.sources import StreamSource, together


def timed(token_s: list[float], sent_s: float = 0.0, prompt: int = 10) -> Timed:
    record = RequestRecord(
        index=0, arrival_s=0, lateness_ms=0, ttft_ms=1.0, itl_ms=(), chunk_tokens=(), e2e_ms=1.0,
        planned_input_tokens=prompt, planned_output_tokens=len(token_s), prompt_tokens=prompt,
        cached_tokens=0, output_tokens=len(token_s), count_source="server",
        finish_reason="length", error=None, ended_s=1.0,
    )  # fmt: skip
    return Timed(record, sent_s, np.array(token_s))


def test_only_steps_that_all_share_count() -> None:
    early = timed([0.1, 0.2, 0.3, 0.5, 0.7, 0.9])
    late = timed([0.3, 0.5, 0.7, 0.9, 1.0, 1.1])
    assert together([early, late]) == pytest.approx([0.5, 0.7, 0.9])


async def test_jitter_of_one_stream_does_not_count() -> None:
    steps = np.arange(1, 11) * 0.1
    late = steps.copy()
    late[5] += 0.04
    done = [timed(list(steps)), timed(list(steps)), timed(list(late))]
    found = await StreamSource().decode(done, context=10, settle=0)
    assert found.step_ms == pytest.approx(np.full(8, 100.0))


async def test_kv_grows_by_the_batch_with_every_step() -> None:
    steps = list(np.arange(1, 9) * 0.1)
    found = await StreamSource().decode([timed(steps), timed(steps)], context=10, settle=0)
    assert np.diff(found.kv_tokens) == pytest.approx(2.0)
    assert found.kv_tokens[0] == 2 * (10 + 2)


async def test_tokens_that_come_in_bunches_are_spread_over_their_steps() -> None:
    bunched = [0.4] * 4 + [0.8] * 4 + [1.2] * 4 + [1.6] * 4
    found = await StreamSource(4).decode([timed(bunched)], context=1, settle=0)
    assert found.step_ms == pytest.approx(np.full(found.step_ms.size, 100.0))


async def test_prefill_is_the_time_beyond_the_decode_steps() -> None:
    ends = [0.1 * k for k in range(1, 11)]
    # A prompt sent at 1.02 costs 250 ms within the step after it.
    ends += [1.35, *(1.35 + 0.1 * k for k in range(1, 10))]
    probe = timed([1.3], sent_s=1.02, prompt=128)
    found = await StreamSource().prefill([timed(ends)] * 3, probe, chunk=64, settle=0)
    assert found is not None
    assert found.prefill_ms == pytest.approx(250.0)
    assert (found.tokens, found.chunks) == (128, 2)


async def test_prefill_without_steps_beside_it_is_not_told() -> None:
    probe = timed([0.25], sent_s=0.1)
    assert await StreamSource().prefill([timed([0.1, 0.2, 0.3, 0.4])], probe, 64, 0) is None
