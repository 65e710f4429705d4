"""Output lengths learned from answers: curves, fallbacks, prior, memory, calibration."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twp_sglang.scheduling.learned_lengths import LearnedLengths
from twp_sglang.scheduling.length_bins import (
    FIRST,
    LAST,
    bin_of,
    bins_after,
    prompt_class,
    prompt_classes,
)
from twp_sglang.scheduling.lengths_online import (
    MAX_CLIENTS,
    TRUSTED_AFTER,
    FinishedAnswer,
    OutputLengths,
)

LIMIT = 4096


def learned(outputs: list[int], quantile: float = 0.75, **answer: object) -> OutputLengths:
    lengths = OutputLengths(quantile)
    for output in outputs:
        values = {"prompt_tokens": 100, "max_new_tokens": LIMIT, **answer}
        lengths.learn(FinishedAnswer(output_tokens=output, **values))  # type: ignore[arg-type]
    return lengths


def most(
    lengths: OutputLengths, produced: int = 0, *, limit: int = LIMIT, prompt: int = 100,
    client: str = "", ratio: float = 1.0,
) -> int:  # fmt: skip
    return lengths.likely_most_of(lengths.class_of(prompt, client), limit, produced, ratio)


def test_every_length_has_a_bin() -> None:
    assert FIRST[0] == 1
    assert (LAST >= FIRST).all()
    for length in (1, 7, 8, 9, 63, 64, 1000, 4096, 2**17 - 1):
        place = bin_of(length)
        assert FIRST[place] <= length <= LAST[place]
    assert bin_of(2**20) == FIRST.size - 1
    assert (LAST[8:] - FIRST[8:] <= FIRST[8:] / 8).all(), "nine per cent wide"


@given(st.integers(0, 2**20))
def test_one_by_one_and_by_array_agree(tokens: int) -> None:
    assert bins_after(np.array([tokens]))[0] == bin_of(tokens + 1)
    assert prompt_classes(np.array([tokens]))[0] == prompt_class(tokens)


def test_before_any_answer_the_engines_belief_stands() -> None:
    assert most(OutputLengths(0.75), limit=1000) == 1000
    assert most(OutputLengths(0.75), limit=1000, ratio=0.1) == 100
    assert most(OutputLengths(0.75), produced=900, limit=1000, ratio=0.1) == 10


def test_what_is_left_depends_on_what_was_produced() -> None:
    # Half of the answers have 10 tokens, half 1,000.
    lengths = learned([10, 1000] * 2000, quantile=0.4)
    assert most(lengths) < 50
    assert 900 < most(lengths, produced=50) < 1200, "whoever passed 10 is a long one"
    assert most(lengths, produced=990) < 150


def test_answers_cut_at_their_limit_say_that_they_were_at_least_that_long() -> None:
    # All cut at 100: nobody was seen to end, so a larger limit may be used up.
    lengths = learned([100] * 300, max_new_tokens=100)
    assert most(lengths, limit=100) == 100
    assert most(lengths, limit=5000, ratio=0.5) > 4000
    # Kaplan-Meier: half of those at risk at 100 end there, the other half go on to 200.
    mixed = learned([100, 200] * 500, quantile=0.4)
    for _ in range(500):
        mixed.learn(FinishedAnswer(100, 50, 50))
    assert 90 < most(mixed) < 120, "being cut at 50 does not look like ending at 50"


def test_prompts_of_different_length_are_told_apart() -> None:
    lengths = OutputLengths(0.75)
    for _ in range(300):
        lengths.learn(FinishedAnswer(50, 20, LIMIT))
        lengths.learn(FinishedAnswer(5000, 800, LIMIT))
    assert most(lengths, prompt=50) < 150
    assert most(lengths, prompt=5000) > 700


def test_a_client_has_its_own_curve_after_enough_answers() -> None:
    lengths = OutputLengths(0.75)
    for _ in range(400):
        lengths.learn(FinishedAnswer(100, 20, LIMIT, "short"))
    for _ in range(int(TRUSTED_AFTER) - 1):
        lengths.learn(FinishedAnswer(100, 900, LIMIT, "long"))
    general = most(lengths, client="nobody")
    assert most(lengths, client="long") == general
    for _ in range(200):
        lengths.learn(FinishedAnswer(100, 900, LIMIT, "long"))
    assert most(lengths, client="long") > 850
    assert most(lengths, client="short") < 150


def test_memory_is_bounded_and_the_oldest_client_makes_way() -> None:
    lengths = OutputLengths(0.75)
    for number in range(3 * MAX_CLIENTS):
        for _ in range(70):
            lengths.learn(FinishedAnswer(100, 30, LIMIT, f"client {number}"))
    assert lengths.snapshot()["clients"] == MAX_CLIENTS
    newest, oldest = f"client {3 * MAX_CLIENTS - 1}", "client 0"
    assert lengths.class_of(100, newest) != lengths.class_of(100, "")
    assert lengths.class_of(100, oldest) == lengths.class_of(100, "")


def test_a_client_that_takes_a_used_place_starts_from_the_general_curve() -> None:
    lengths = OutputLengths(0.75)
    for _ in range(100):
        lengths.learn(FinishedAnswer(100, 3000, LIMIT, "first"))
    for number in range(MAX_CLIENTS):
        for _ in range(300):
            lengths.learn(FinishedAnswer(100, 10, LIMIT, f"client {number}"))
    lengths.learn(FinishedAnswer(100, 10, LIMIT, "first"))
    assert most(lengths, client="first") == most(lengths, client="nobody")


def test_old_answers_fade() -> None:
    lengths = learned([1000] * 2000 + [20] * 3000)
    assert most(lengths) < 60


@settings(deadline=None, max_examples=40)
@given(
    outputs=st.lists(st.integers(1, 3000), min_size=0, max_size=200),
    rows=st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 6000)), min_size=1, max_size=20),
    ratio=st.floats(0.0, 1.0),
    quantile=st.floats(0.05, 0.95),
)
def test_arrays_and_single_requests_get_the_same_and_stay_within_the_limit(
    outputs: list[int], rows: list[tuple[int, int]], ratio: float, quantile: float
) -> None:
    lengths = learned(outputs, quantile)
    limits, produced = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    classes = np.full(len(rows), lengths.class_of(100, ""))
    found = lengths.likely_most(classes, limits, produced, ratio)
    mean = lengths.expected(np.full(len(rows), 100), limits, produced, ratio)
    for place, (limit, done) in enumerate(rows):
        assert found[place] == most(lengths, done, limit=limit, ratio=ratio)
        for value in (found[place], mean[place]):
            assert (value == 0) == (done >= limit)
            assert 0 <= value <= max(0, limit - done)


def test_the_mean_is_that_of_the_answers_left() -> None:
    rng = random.Random(5)
    outputs = [rng.randint(1, 400) for _ in range(4000)]
    lengths = learned(outputs)
    for produced in (0, 100, 300):
        longer = [output - produced for output in outputs[-512:] if output > produced]
        found = lengths.expected(
            np.array([100]), np.array([LIMIT]), np.array([produced]), 0.0
        )  # fmt: skip
        assert found[0] == pytest.approx(sum(longer) / len(longer), rel=0.15)


@pytest.mark.parametrize("level", [0.5, 0.75, 0.9])
def test_coverage_is_what_was_asked_for(level: float) -> None:
    rng = random.Random(7)
    lengths = OutputLengths(level)
    for _ in range(4000):
        output = min(int(rng.lognormvariate(5.0, 1.0)) + 1, LIMIT)
        lengths.learn(FinishedAnswer(100, output, LIMIT))
    found = lengths.snapshot()
    assert found["judged"] > 3000
    # Bins are nine per cent wide and the quantile is the end of one: a little cautious.
    assert level - 0.04 < found["coverage"] < level + 0.08
    assert found["calibration_error"] < 0.06
    assert abs(found["mean_error_tokens"]) < 0.2 * found["mean_absolute_error_tokens"]


def test_a_change_of_the_answers_shows_in_the_calibration() -> None:
    lengths = learned([20, 30, 40] * 500)
    for _ in range(100):
        lengths.learn(FinishedAnswer(100, 2000, LIMIT))
    assert lengths.snapshot()["coverage"] < 0.85
    assert lengths.snapshot()["calibration_error"] > 0.1


def test_another_quantile_keeps_what_was_learned() -> None:
    rng = random.Random(3)
    lengths = learned([rng.randint(1, 1000) for _ in range(1000)], quantile=0.5)
    before = most(lengths)
    lengths.ask_for(0.9)
    assert most(lengths) > before + 200
    assert lengths.snapshot()["quantile"] == 0.9
    assert lengths.snapshot()["judged"] == 0
    lengths.ask_for(0.5)
    assert most(lengths) == before


def test_the_window_policy_counts_the_mean_of_what_ended() -> None:
    source = LearnedLengths(OutputLengths(0.65))
    assert source.remaining(100, 500, 20) == 480, "until then what is declared"
    for _ in range(500):
        source.law.learn(FinishedAnswer(100, 100, LIMIT))
    assert 85 <= source.remaining(100, LIMIT, 10) <= 100
    counts = [np.array(column) for column in ([100, 100], [LIMIT, 50], [10, 20])]
    expected = source.remaining(100, LIMIT, 10) + source.remaining(100, 50, 20)
    assert source.total(*counts) == expected
    assert source.remaining(100, 50, 20) == 30, "no more than its limit leaves"
