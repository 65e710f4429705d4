"""Text of clients in messages and logs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twp_sglang.config import TwpConfig
from twp_sglang.config_changes import changed
from twp_sglang.config_values import OptionsError
from twp_sglang.one_line import one_line, shown

ANY_TEXT = st.text(st.characters(), max_size=400)


@given(ANY_TEXT)
def test_it_is_one_printable_line_of_bounded_length(text: str) -> None:
    line = one_line(text, 50)
    assert line.isprintable()
    # The longest escape, \U0001f600, has ten characters.
    assert len(line) <= 10 * 50 + len("... (400 characters more)")
    line.encode()  # no lone surrogate


def test_what_is_printable_stays() -> None:
    assert one_line("gamma = 'ü' 日本") == "gamma = 'ü' 日本"


def test_what_is_cut_is_counted() -> None:
    assert one_line("x" * 2200, 200) == "x" * 200 + "... (2,000 characters more)"


def test_a_number_that_python_refuses_to_write_is_named() -> None:
    assert shown(10**5000) == "a int that is too long to show"


@pytest.mark.parametrize(
    "changes",
    [
        {"x\nTWP audit: changed by 10.0.0.1:1: gamma 1 -> 2 (revision 9)": 1},
        {"x\x1b[2J\ud800": 1},
        {"gamma": "a\nTWP audit: forged"},
        {"itl_slo": "5\u2028mm"},
        {"policy": "a\nb"},
        {"law": ["\n"] * 9000},
    ],
)
def test_a_refusal_is_one_line_whatever_was_sent(changes: dict[str, Any]) -> None:
    with pytest.raises(OptionsError) as caught:
        changed(TwpConfig(policy="slo"), changes)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
