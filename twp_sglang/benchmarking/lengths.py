"""Token-length distributions, written as one line on a command line.

Grammar: comma-separated items ``LENGTH[-LENGTH][@PROBABILITY]``.

    128                               always 128
    32-512                            uniform on 32..512, both ends included
    50@.5,200@.3,800@.2               one of three lengths
    30-80@.6,120-250@.3,350-512@.1    one of three ranges, uniform inside

Without probabilities the items are equally likely.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from controllers.laws.base import FrozenModel

_ITEM = re.compile(r"^(\d+)(?:-(\d+))?(?:@(\d*\.?\d+))?$")


class LengthRange(FrozenModel):
    """Lengths ``low_tokens``..``high_tokens`` (inclusive), drawn with ``probability``."""

    low_tokens: int
    high_tokens: int
    probability: float


class LengthDistribution(FrozenModel):
    """A mixture of uniform ranges over token counts. ``text`` is the notation it came from."""

    text: str
    ranges: tuple[LengthRange, ...]

    def sample(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw ``count`` lengths in tokens, shape (count,)."""
        which = rng.choice(
            len(self.ranges), size=count, p=[part.probability for part in self.ranges]
        )
        low = np.array([part.low_tokens for part in self.ranges])[which]
        high = np.array([part.high_tokens for part in self.ranges])[which]
        return rng.integers(low, high, endpoint=True)


def parse_lengths(text: str) -> LengthDistribution:
    """Read the notation above.

    Raises:
        ValueError: naming the item that is wrong and how to write it.
    """
    bounds: list[tuple[int, int]] = []
    weights: list[float | None] = []
    for item in text.replace(" ", "").split(","):
        match = _ITEM.match(item)
        if not match:
            raise ValueError(
                f"'{item}' is not a length; write N, LOW-HIGH or either with @PROBABILITY, "
                "for example 128 or 30-80@.6,120-250@.4"
            )
        low = int(match[1])
        high = int(match[2]) if match[2] else low
        if low < 1:
            raise ValueError(f"'{item}': a length is at least 1 token")
        if high < low:
            raise ValueError(f"'{item}': the range runs backwards; write {high}-{low}")
        bounds.append((low, high))
        weights.append(float(match[3]) if match[3] else None)
    given = [weight for weight in weights if weight is not None]
    if given and len(given) != len(weights):
        raise ValueError(f"'{text}': give every item a probability or none")
    shares = given or [1.0 / len(bounds)] * len(bounds)
    if abs(sum(shares) - 1.0) > 1e-6:
        raise ValueError(f"'{text}': the probabilities sum to {sum(shares):g}, not 1")
    total = sum(shares)
    return LengthDistribution(
        text=text,
        ranges=tuple(
            LengthRange(low_tokens=low, high_tokens=high, probability=share / total)
            for (low, high), share in zip(bounds, shares, strict=True)
        ),
    )
