"""Tokens of an emulated model: valid, printable, never a stop."""

from __future__ import annotations

import pytest

from patches.emulated_tokens import KINDS, TokenSource, candidates


class Letters:
    """A tokenizer whose id n is the character n."""

    all_special_ids = (65,)

    def __len__(self) -> int:
        return 128

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def test_without_a_tokenizer_stops_and_low_ids_are_left_out() -> None:
    found = candidates(None, 1000, {7, 9})
    assert len(found) == KINDS
    assert not {0, 1, 2, 7, 9} & set(found)
    assert max(found) < 1000


def test_with_a_tokenizer_only_printable_words_are_dealt() -> None:
    found = candidates(Letters(), 500, {66})
    text = Letters().decode(list(found))
    assert text.isalnum()
    assert text.isascii()
    assert not {"A", "B"} & set(text)  # special, and a stop
    assert "C" in text


def test_a_vocabulary_of_nothing_but_stops_is_an_error() -> None:
    with pytest.raises(ValueError, match="no token that is not a stop"):
        candidates(None, 5, {3, 4})


def test_a_request_never_gets_its_own_stop_tokens() -> None:
    source = TokenSource((10, 11, 12))
    dealt = [source.deal([{10, 11}, None, {12}]) for _ in range(4)]
    assert all(first == 12 for first, _, _ in dealt)
    assert all(third in (10, 11) for _, _, third in dealt)
    assert {second for _, second, _ in dealt} <= {10, 11, 12}
