"""What a request asks for beside its tokens."""

from __future__ import annotations

from typing import Any

import pytest

from twp_sglang.scheduling.request_terms import CLIENT_KEPT_CHARACTERS, NO_TERMS, terms_of


def test_terms_are_read_under_their_key() -> None:
    terms = terms_of({"twp": {"client": "team-a", "itl_slo_ms": 40, "ttft_slo_ms": 500.5}})
    assert terms == ("team-a", 40.0, 500.5)


@pytest.mark.parametrize(
    "custom_params",
    [
        None,
        [],
        {},
        {"thinking_budget": 5},
        {"twp": None},
        {"twp": "team-a"},
        {"twp": {"client": 7, "itl_slo_ms": True, "ttft_slo_ms": "500"}},
        {"twp": {"itl_slo_ms": -1, "ttft_slo_ms": 0}},
        {"twp": {"client": "a\nTWP audit: forged"}},
        {"twp": {"client": "a\x1b[2J"}},
        {"twp": {"client": "a\ud800"}},
        {"twp": {"itl_slo_ms": float("nan"), "ttft_slo_ms": float("inf")}},
    ],
)
def test_what_cannot_be_used_is_left_out(custom_params: Any) -> None:
    assert terms_of(custom_params) == NO_TERMS


def test_long_names_are_cut() -> None:
    assert len(terms_of({"twp": {"client": "x" * 999}}).client) == CLIENT_KEPT_CHARACTERS
