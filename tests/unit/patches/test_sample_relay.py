"""Samples and time from rank 0 to all ranks: nothing lost, nothing twice, equal everywhere."""

from __future__ import annotations

import pickle

from patches.sample_relay import TIME_EVERY_MS, SampleRelay
from twp_sglang.scheduling.sample import StepSample


def sample(step: int) -> StepSample:
    return StepSample(step, "decode", 20.0, 4, 0, 100)


def steps(samples: list[StepSample]) -> list[int]:
    return [one.step for one in samples]


def test_what_is_not_back_yet_is_sent_again_and_taken_once() -> None:
    first, second = SampleRelay(False), SampleRelay(False)
    first.made(sample(1), leads=True)
    held_back = first.pack(0.0)
    first.made(sample(2), leads=True)
    both = first.pack(1.0)
    assert held_back is not None
    assert both is not None
    for rank in (first, second):
        assert steps(rank.unpack(held_back)) == [1]
        assert steps(rank.unpack(both)) == [2]
        assert rank.delivered == 2
    assert first.pack(2.0) is None


def test_other_ranks_send_nothing_and_hoard_nothing() -> None:
    relay = SampleRelay(False)
    for step in range(1000):
        relay.made(sample(step), leads=False)
    assert relay.pack(0.0) is None


def test_an_idle_engine_learns_the_time_now_and_then() -> None:
    relay = SampleRelay(True)
    told = [now for now in range(100) if relay.pack(float(now)) is not None]
    assert told == list(range(0, 100, int(TIME_EVERY_MS)))


def test_samples_do_not_wait_for_the_time() -> None:
    relay = SampleRelay(True)
    relay.pack(0.0)
    relay.made(sample(1), leads=True)
    envelope = relay.pack(1.0)
    assert envelope is not None
    assert envelope.now_ms == 1.0


def test_every_rank_has_the_same_time_and_it_never_goes_back() -> None:
    first, second = SampleRelay(True), SampleRelay(True)
    for now in (0.0, 50.123, 40.0, 90.5):
        envelope = first.pack(now)
        if envelope is None:
            continue
        received = pickle.loads(pickle.dumps(envelope))
        first.unpack(envelope)
        second.unpack(received)
        assert first.now_ms == second.now_ms
    assert first.now_ms == 90.5


def test_without_a_policy_that_reads_it_no_time_travels() -> None:
    relay = SampleRelay(False)
    assert relay.pack(100.0) is None
    relay.made(sample(1), leads=True)
    envelope = relay.pack(100.0)
    assert envelope is not None
    assert envelope.now_ms == 0.0
