"""Bins of output lengths and of prompt lengths.

Outputs: one bin per length below 8, then eight per octave up to 2^17 tokens, so that a length
is known to 9 %. Prompts: a factor of four each, because what a prompt's length says about the
answer (a question, a document) does not change faster.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np
from numpy.typing import NDArray

_PER_OCTAVE = 8
_OCTAVES = range(3, 17)

FIRST: Final[NDArray[np.int64]] = np.array(
    [
        *range(1, 8),
        *(2**k + step * 2**k // _PER_OCTAVE for k in _OCTAVES for step in range(_PER_OCTAVE)),
    ],
    dtype=np.int64,
)
"""Smallest length of each bin; bin b holds FIRST[b] to LAST[b]."""

_FIRST: Final[list[int]] = FIRST.tolist()

LAST: Final[NDArray[np.int64]] = np.append(FIRST[1:] - 1, 2**17 - 1)

MIDDLE: Final[NDArray[np.float64]] = (FIRST + LAST) / 2.0

BINS = FIRST.size

PROMPT_CLASSES = 6
"""Prompts of up to 63, 255, 1023, 4095, 16383 tokens, and longer ones."""


def bin_of(length: int) -> int:
    """Bin of one output length; lengths below 1 and beyond the last fall into the ends."""
    return max(bisect_right(_FIRST, length) - 1, 0)


def bins_after(produced: NDArray[np.int64]) -> NDArray[np.intp]:
    """Bins of the smallest lengths still possible after ``produced`` tokens."""
    found: NDArray[np.intp] = np.searchsorted(FIRST, produced + 1, side="right") - 1
    return found


def prompt_class(prompt_tokens: int) -> int:
    """Class of a prompt length, 0 to PROMPT_CLASSES - 1."""
    return min(max(0, (prompt_tokens.bit_length() - 5) // 2), PROMPT_CLASSES - 1)


def prompt_classes(prompt_tokens: NDArray[np.int64]) -> NDArray[np.intp]:
    """:func:`prompt_class` of many."""
    edges = 4 ** np.arange(3, 3 + PROMPT_CLASSES - 1)
    found: NDArray[np.intp] = np.searchsorted(edges, prompt_tokens, side="right")
    return found
