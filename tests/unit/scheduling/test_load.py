"""K and B over the active set."""

from __future__ import annotations

from twp_sglang.scheduling.load import ActiveLoad


def test_nobody_is_active() -> None:
    assert ActiveLoad(0, 0).mean_remaining_tokens == 0.0


def test_mean_remaining_is_load_over_batch() -> None:
    assert ActiveLoad(90, 4).mean_remaining_tokens == 22.5


def test_one_more_admission() -> None:
    assert ActiveLoad(90, 4).plus(30) == ActiveLoad(120, 5)
