"""K and B over the active set."""

from __future__ import annotations

from twp_sglang.scheduling.lengths import DeclaredLengths
from twp_sglang.scheduling.load import ActiveLoad, measure


def test_remaining_tokens_add_up_and_heads_are_counted() -> None:
    active = [(10, 100, 0), (10, 100, 60), (10, 9000, 0), (10, 50, 50)]
    # 100 + 40 + 4096 (clipped) + 0
    assert measure(DeclaredLengths(), active) == ActiveLoad(4236, 4)


def test_nobody_is_active() -> None:
    idle = measure(DeclaredLengths(), [])
    assert idle == ActiveLoad(0, 0)
    assert idle.mean_remaining_tokens == 0.0


def test_mean_remaining_is_load_over_batch() -> None:
    assert ActiveLoad(90, 4).mean_remaining_tokens == 22.5


def test_one_more_admission() -> None:
    assert ActiveLoad(90, 4).plus(30) == ActiveLoad(120, 5)
