"""Which tokens an emulated model answers with: arbitrary, valid, and never a stop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any

KINDS = 512
"""Different tokens in use: enough that text looks like text; the choice is cheap."""

_SCANNED = 20_000
"""Ids looked at for printable text; the first ids of every usual vocabulary hold some."""


def candidates(tokenizer: Any, vocabulary: int, forbidden: Collection[int]) -> tuple[int, ...]:
    """Ids to answer with.

    Args:
        tokenizer: of the server, or None where clients speak token ids.
        vocabulary: ids run from 0 to one below this.
        forbidden: ids that end an answer.

    Raises:
        ValueError: every id is forbidden.
    """
    banned = set(forbidden)
    if tokenizer is not None:
        banned |= set(tokenizer.all_special_ids)
    # Low ids are padding, unknown and begin-of-text in most vocabularies.
    usable = [token for token in range(vocabulary) if token not in banned and token > 2]
    if not usable:
        raise ValueError(f"a vocabulary of {vocabulary} holds no token that is not a stop")
    if tokenizer is not None:
        size = len(tokenizer)
        printable = islice(
            (token for token in usable[:_SCANNED] if token < size and _prints(tokenizer, token)),
            KINDS,
        )
        return tuple(printable) or tuple(usable[:KINDS])
    return tuple(usable[:KINDS])


def _prints(tokenizer: Any, token: int) -> bool:
    text: str = tokenizer.decode([token]).strip()
    return text.isascii() and text.isalnum()


class TokenSource:
    """Deals tokens out in rotation."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tuple(tokens)
        self._next = 0

    def deal(self, stops: Iterable[Collection[int] | None]) -> list[int]:
        """One token for each request, given the request's own stop tokens.

        A request that forbids every candidate gets one of them all the same.
        """
        tokens, count = self._tokens, len(self._tokens)
        dealt = []
        for own in stops:
            token = tokens[self._next % count]
            self._next += 1
            if own and token in own:
                token = next((other for other in tokens if other not in own), token)
            dealt.append(token)
        return dealt
