"""Prompts that would end SGLang's scheduler are told apart from those that would not."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import pytest

from twp_sglang.scheduling.unusable_prompt import unusable


@pytest.mark.parametrize("kind", [list, lambda ids: array("q", ids)])
def test_ids_inside_and_outside(kind: Callable[[list[int]], Sequence[int]]) -> None:
    assert unusable(kind([0, 5, 9]), 10) is None
    assert "token id 10 " in (unusable(kind([5, 10, 3]), 10) or "")
    assert "token id -1 " in (unusable(kind([5, -1, 3]), 10) or "")
    assert "0 to 9" in (unusable(kind([2**62]), 10) or "")
    assert "empty" in (unusable(kind([]), 10) or "")


def test_where_nothing_reads_the_ids_only_emptiness_counts() -> None:
    assert unusable([10**6], None) is None
    assert unusable([], None) is not None


def test_ids_too_large_for_an_array() -> None:
    assert unusable([10**30], 10) is not None
