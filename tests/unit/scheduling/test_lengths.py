"""Remaining output from the request's own limit."""

from __future__ import annotations

import numpy as np
import pytest

from twp_sglang.scheduling.lengths import CLIP_TOKENS, DeclaredLengths


@pytest.mark.parametrize(
    ("limit", "produced", "left"),
    [
        (100, 0, 100),
        (100, 40, 60),
        (100, 100, 0),
        (100, 130, 0),
        (0, 0, 0),
        (4096, 0, 4096),
        (4097, 0, 4096),
        (100_000, 0, 4096),
        (5000, 2000, 3000),
    ],
)
def test_limit_less_produced_clipped_as_sglang_clips(limit: int, produced: int, left: int) -> None:
    assert DeclaredLengths().remaining(7, limit, produced) == left


def test_the_clip_is_sglangs_default() -> None:
    assert CLIP_TOKENS == 4096


def test_another_clip() -> None:
    assert DeclaredLengths(10).remaining(0, 50, 0) == 10


@pytest.mark.parametrize("clip", [0, -5])
def test_a_clip_that_would_hide_all_load_is_refused(clip: int) -> None:
    with pytest.raises(ValueError, match=f"clip_tokens = {clip}"):
        DeclaredLengths(clip)


def test_the_total_is_the_sum_of_the_single_ones() -> None:
    rng = np.random.default_rng(3)
    prompts = rng.integers(0, 900, 500)
    limits = rng.integers(0, 9000, 500)
    produced = rng.integers(0, 5000, 500)
    lengths = DeclaredLengths()
    singly = sum(
        lengths.remaining(int(p), int(m), int(o))
        for p, m, o in zip(prompts, limits, produced, strict=True)
    )
    assert lengths.total(prompts, limits, produced) == singly
    assert limits[0] != 0  # the inputs are read only


def test_the_total_of_nobody_is_nothing() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert DeclaredLengths().total(none, none, none) == 0
