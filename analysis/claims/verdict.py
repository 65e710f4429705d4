"""The rules by which a claim is judged, fixed before anything is simulated.

*contradicts itself*: the paper's own numbers exclude the claim, whatever we measure.
*reproduced*: a printed level lies in our 95 % interval or within 10 % of our mean; a stated
direction holds with the whole interval; a stated gain is reached by the interval, in the
stated direction.
*not reproduced*: everything else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from analysis.claims.contradiction import Contradiction
from analysis.comparing.intervals import mean_over_seeds

Verdict = Literal["reproduced", "not reproduced", "contradicts itself"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "not reproduced", "contradicts itself")

LEVEL_TOLERANCE = 0.10
"""A level within this of ours counts as the same: two machines called alike differ by as
much."""


class Estimate(NamedTuple):
    """A mean over runs and its 95 % percentile bootstrap interval; the mean alone for one run."""

    mean: float
    low: float
    high: float


class Row(NamedTuple):
    """One judged claim or printed number.

    Attributes:
        place: where the paper has it; contradictions name the places they touch.
        claim: what it says.
        paper: the paper's value as text.
        ours: our value; None where nothing was measured.
        unit: of ours.
        verdict: by the rules above.
        why: cause, where known; the contradictions' names first.
    """

    place: str
    claim: str
    paper: str
    ours: Estimate | None
    unit: str
    verdict: Verdict
    why: str


def estimate(values: Sequence[float]) -> Estimate:
    """Mean of ``values``, one per run.

    Raises:
        ValueError: there is none, or one is not finite.
    """
    sample = np.asarray(values, dtype=np.float64)
    if not len(sample) or not np.isfinite(sample).all():
        raise ValueError(f"{len(sample)} values, not all finite: nothing to estimate")
    found = mean_over_seeds(sample.tolist())
    assert found is not None
    low = found.mean if found.low is None else found.low
    high = found.mean if found.high is None else found.high
    return Estimate(found.mean, low, high)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Geometric mean of ours over theirs, run by run (both met the same requests).

    Raises:
        ValueError: lengths differ, or a value is not above 0.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} values against {len(theirs)}: runs do not pair")
    if not all(value > 0 for value in (*ours, *theirs)):
        raise ValueError("a ratio needs values above 0")
    logs = estimate([math.log(a / b) for a, b in zip(ours, theirs, strict=True)])
    return Estimate(*(math.exp(value) for value in logs))


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Mean of ours less theirs, run by run.

    Raises:
        ValueError: lengths differ.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} values against {len(theirs)}: runs do not pair")
    return estimate([a - b for a, b in zip(ours, theirs, strict=True)])


def judge_level(ours: Estimate, paper: float) -> Verdict:
    """Whether ``paper`` is our level."""
    if ours.low <= paper <= ours.high:
        return "reproduced"
    near = math.isclose(paper, ours.mean, rel_tol=0.0, abs_tol=LEVEL_TOLERANCE * abs(ours.mean))
    return "reproduced" if near else "not reproduced"


def judge_below(ours: Estimate, bound: float = 1.0) -> Verdict:
    """Whether ours is below ``bound`` for sure."""
    return "reproduced" if ours.high < bound else "not reproduced"


def judge_above(ours: Estimate, bound: float = 1.0) -> Verdict:
    """Whether ours is above ``bound`` for sure."""
    return "reproduced" if ours.low > bound else "not reproduced"


def judge_gain(ours: Estimate, paper: float) -> Verdict:
    """Whether a ratio reaches the ``paper``'s, above 1 or below 1 as that is: the direction
    for sure, and the size within the interval or beyond it."""
    if paper > 1.0:
        return "reproduced" if ours.low > 1.0 and ours.high >= paper else "not reproduced"
    return "reproduced" if ours.high < 1.0 and ours.low <= paper else "not reproduced"


def with_contradictions(row: Row, found: Sequence[Contradiction]) -> Row:
    """``row``, overruled where a contradiction touches its place."""
    names = [c.name for c in found if any(touches(place, row.place) for place in c.touches)]
    if not names:
        return row
    alone = f"by ours alone {row.verdict}" if row.ours is not None else ""
    why = "; ".join(part for part in (", ".join(names), alone, row.why) if part)
    return row._replace(verdict="contradicts itself", why=why)


def touches(touched: str, place: str) -> bool:
    """Whether ``place`` is ``touched`` or inside it, word by word."""
    words = touched.split()
    return place.split()[: len(words)] == words
