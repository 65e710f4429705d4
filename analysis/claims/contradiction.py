"""What a contradiction is."""

from __future__ import annotations

from typing import NamedTuple


class Contradiction(NamedTuple):
    """Two printed things that exclude each other.

    ``touches`` are the places whose numbers lose their meaning with it, as in
    :attr:`analysis.claims.verdict.Row.place`; a number or claim is touched where its place
    begins with one of them.
    """

    name: str
    text: str
    touches: tuple[str, ...]
