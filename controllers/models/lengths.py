"""Law of the output lengths: what decides how long a request stays in the batch.

Everything the loop needs follows from the survival function S(u) = P(L > u),
u = 0, 1, ...: the mean E[L] = sum S, the mean remaining length of a running request seen
over time (renewal theory, see :attr:`LengthLaw.residual_mean`), and the plant
P(z) = S(z)/R(z) of :mod:`controllers.plant`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, field_validator

from controllers.laws.base import FrozenModel

MAX_LENGTH = 1_048_576
"""Longest output accepted, tokens: above any context window served today, so that a slip
of a unit is an error and not a gigabyte of survival function."""

GEOMETRIC_TAIL = 1e-14
"""Survival at which a geometric law is cut: below what double precision sees in a sum."""

SPEC_HELP = (
    "const:50, uniform:1:99, geometric:50, mix:20@0.5,50@0.3,200@0.2 or hist:FILE "
    "(lines of 'length count')"
)


class LengthLaw(FrozenModel):
    """Distribution of a request's output length in tokens, at least 1.

    Attributes:
        name: how the law was made, for tables and plots.
        survival: S(u) = P(L > u) for u = 0 .. longest-1; starts at 1, never rises, and is
            positive throughout (trailing zeros are dropped).
    """

    name: str = Field(default="custom", description="label in tables and plots")
    survival: tuple[float, ...] = Field(description="P(L > u), u = 0, 1, ...")

    @field_validator("survival")
    @classmethod
    def _is_survival(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        array = np.asarray(value, dtype=np.float64)
        if array.size == 0 or abs(array[0] - 1.0) > 1e-9:
            raise ValueError("survival must start at P(L > 0) = 1: every request makes a token")
        if np.any(np.diff(array) > 1e-12) or array[-1] < 0:
            raise ValueError("survival must never rise and never be negative")
        if array.size > MAX_LENGTH:
            raise ValueError(f"longest output {array.size} exceeds {MAX_LENGTH} tokens")
        kept = int(np.count_nonzero(array > 0))
        return value[:kept]

    # Cached arrays live beside the fields and must not take part in a comparison.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LengthLaw):
            return NotImplemented
        return self.name == other.name and self.survival == other.survival

    def __hash__(self) -> int:
        return hash((self.name, self.survival))

    # -- moments ----------------------------------------------------------------------

    @cached_property
    def survival_array(self) -> NDArray[np.float64]:
        """S as a read-only array, shape (longest,)."""
        array: NDArray[np.float64] = np.asarray(self.survival, dtype=np.float64)
        array.flags.writeable = False
        return array

    @cached_property
    def remaining_array(self) -> NDArray[np.float64]:
        """R(s) = sum_{u >= s} S(u), tokens, shape (longest,); R(0) is the mean."""
        array = np.cumsum(self.survival_array[::-1])[::-1].copy()
        array.flags.writeable = False
        return array

    @cached_property
    def pmf(self) -> NDArray[np.float64]:
        """P(L = u) for u = 1 .. longest, shape (longest,)."""
        survival = self.survival_array
        array: NDArray[np.float64] = survival - np.append(survival[1:], 0.0)
        array.flags.writeable = False
        return array

    @property
    def longest(self) -> int:
        """Longest output with positive probability, tokens."""
        return len(self.survival)

    @cached_property
    def mean(self) -> float:
        """E[L], tokens."""
        return float(self.remaining_array[0])

    @cached_property
    def second_moment(self) -> float:
        """E[L^2] = sum (2u + 1) S(u), tokens squared."""
        steps = np.arange(self.longest)
        return float(np.dot(2.0 * steps + 1.0, self.survival_array))

    @property
    def cv(self) -> float:
        """Standard deviation over mean."""
        variance = max(self.second_moment - self.mean**2, 0.0)
        return math.sqrt(variance) / self.mean

    @property
    def residual_mean(self) -> float:
        """Mean remaining length of a running request, seen over time, tokens.

        rbar = (E[L^2]/E[L] + 1)/2 = (E[L] (1 + CV^2) + 1)/2: length-biased sampling (the
        inspection paradox); the step about to run counts as remaining. E[L]/2 (+1/2) for
        constant lengths, E[L] for geometric ones.
        """
        return (self.second_moment / self.mean + 1.0) / 2.0

    @property
    def age_mean(self) -> float:
        """Mean number of tokens a running request has produced, rbar - 1 (time reversal)."""
        return self.residual_mean - 1.0

    def sample(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        """``n`` independent lengths, tokens, shape (n,), by inverting the survival."""
        # L > u exactly when U < S(u): L is the number of u with S(u) > U.
        uniform = rng.random(n)
        ascending = self.survival_array[::-1]
        counts = self.longest - np.searchsorted(ascending, uniform, side="right")
        return np.asarray(np.maximum(counts, 1), dtype=np.int64)

    # -- constructors -----------------------------------------------------------------

    @classmethod
    def const(cls, length: int) -> LengthLaw:
        """Every output has ``length`` tokens."""
        _check_length("const", length)
        return cls(name=f"const:{length}", survival=(1.0,) * length)

    @classmethod
    def uniform(cls, low: int, high: int) -> LengthLaw:
        """Lengths low, low+1, ..., high with equal probability."""
        _check_length("uniform low", low)
        _check_length("uniform high", high)
        if low > high:
            raise ValueError(f"uniform:{low}:{high}: low is above high: swap them")
        return cls._from_pmf(
            f"uniform:{low}:{high}", dict.fromkeys(range(low, high + 1), 1.0 / (high - low + 1))
        )

    @classmethod
    def geometric(cls, mean: float) -> LengthLaw:
        """Memoryless lengths on 1, 2, ... with mean ``mean``; the tail is cut at 1e-14."""
        if not math.isfinite(mean) or mean < 1.0:
            raise ValueError(f"geometric:{mean:g}: the mean must be a finite number >= 1")
        stay = 1.0 - 1.0 / mean
        if stay == 0.0:
            return cls(name="geometric:1", survival=(1.0,))
        count = math.ceil(math.log(GEOMETRIC_TAIL) / math.log(stay))
        if count > MAX_LENGTH:
            raise ValueError(
                f"geometric:{mean:g}: its tail is longer than {MAX_LENGTH} tokens: "
                "use a mean below 30000"
            )
        survival = stay ** np.arange(count, dtype=np.float64)
        return cls(name=f"geometric:{mean:g}", survival=tuple(survival.tolist()))

    @classmethod
    def mixture(cls, lengths: Sequence[int], weights: Sequence[float]) -> LengthLaw:
        """Length ``lengths[i]`` with probability ``weights[i]``; weights must sum to 1."""
        if not lengths or len(lengths) != len(weights):
            raise ValueError(
                f"mix: {len(lengths)} lengths and {len(weights)} weights: give one weight each"
            )
        total = math.fsum(weights)
        if any(not w > 0 for w in weights) or abs(total - 1.0) > 1e-6:
            raise ValueError(f"mix: weights must be positive and sum to 1, they sum to {total:g}")
        pmf: dict[int, float] = {}
        for length, weight in zip(lengths, weights, strict=True):
            _check_length("mix", length)
            pmf[length] = pmf.get(length, 0.0) + weight / total
        name = ",".join(f"{n}@{w:g}" for n, w in zip(lengths, weights, strict=True))
        return cls._from_pmf(f"mix:{name}", pmf)

    @classmethod
    def from_samples(cls, lengths: ArrayLike, name: str = "samples") -> LengthLaw:
        """Empirical law of observed output lengths, tokens, shape (n,)."""
        array = np.asarray(lengths)
        if array.size == 0:
            raise ValueError("lengths: no samples: give at least one finished request")
        if not np.all(np.isfinite(array)) or np.any(array != np.floor(array)) or np.any(array < 1):
            raise ValueError("lengths: every sample must be a whole number of tokens >= 1")
        values, counts = np.unique(array.astype(np.int64).ravel(), return_counts=True)
        return cls.from_histogram(
            dict(zip(values.tolist(), counts.tolist(), strict=True)), name=name
        )

    @classmethod
    def from_histogram(
        cls, source: Mapping[int, float] | str | Path, name: str | None = None
    ) -> LengthLaw:
        """Law from counts per length, or from a file with one 'length count' per line.

        In a file, commas and spaces both separate, '#' starts a comment, and a first line
        of column names is skipped.

        Raises:
            ValueError: names the file and line, or the length, that cannot be used.
        """
        if isinstance(source, Mapping):
            counts = {int(k): float(v) for k, v in source.items()}
            label = name or "histogram"
        else:
            counts = _read_histogram(Path(source))
            label = name or f"hist:{source}"
        for length, count in counts.items():
            _check_length(label, length)
            if not (math.isfinite(count) and count >= 0):
                raise ValueError(
                    f"{label}: count {count:g} of length {length} must be finite and not negative"
                )
        total = math.fsum(counts.values())
        if total <= 0:
            raise ValueError(f"{label}: no counts above zero: give at least one length")
        return cls._from_pmf(label, {k: v / total for k, v in counts.items() if v > 0})

    @classmethod
    def parse(cls, spec: str) -> LengthLaw:
        """Law from a command-line word.

        Raises:
            ValueError: says what is wrong with ``spec`` and lists the forms accepted.
        """
        kind, _, rest = spec.strip().partition(":")
        try:
            if kind == "const":
                return cls.const(_whole(rest))
            if kind == "uniform":
                low, _, high = rest.partition(":")
                return cls.uniform(_whole(low), _whole(high))
            if kind == "geometric":
                return cls.geometric(float(rest))
            if kind == "mix":
                pairs = [part.partition("@") for part in rest.split(",")]
                return cls.mixture([_whole(p[0]) for p in pairs], [float(p[2]) for p in pairs])
            if kind == "hist":
                return cls.from_histogram(rest)
        except ValueError as error:
            raise ValueError(f"lengths = {spec!r}: {error}; accepted: {SPEC_HELP}") from None
        raise ValueError(f"lengths = {spec!r}: unknown form {kind!r}; accepted: {SPEC_HELP}")

    @classmethod
    def _from_pmf(cls, name: str, pmf: Mapping[int, float]) -> LengthLaw:
        weights = np.zeros(max(pmf) + 1)
        for length, weight in pmf.items():
            weights[length] += weight
        # Summed from the far end, so that a thin tail is not lost against 1.
        survival = np.cumsum(weights[::-1])[::-1][1:]
        return cls(name=name, survival=tuple((survival / survival[0]).tolist()))


def _check_length(what: str, length: int) -> None:
    if not 1 <= length <= MAX_LENGTH:
        raise ValueError(f"{what}: length {length} must lie in 1 .. {MAX_LENGTH} tokens")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number of tokens") from None


def _read_histogram(path: Path) -> dict[int, float]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise ValueError(f"cannot read {path}: {reason}") from None
    counts: dict[int, float] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        words = raw.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        try:
            length, count = int(words[0]), float(words[1]) if len(words) > 1 else 1.0
        except ValueError:
            if not counts and number == 1:
                continue  # column names
            raise ValueError(
                f"{path} line {number}: expected 'length count', got {raw!r}"
            ) from None
        counts[length] = counts.get(length, 0.0) + count
    return counts
