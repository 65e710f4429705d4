"""Which optional terms the data ask for, and whether they show a knee at all."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np

from controllers.identification.correlation import variance_inflation
from controllers.identification.knee_moments import Terms
from controllers.identification.samples import DecodeSamples
from controllers.identification.segmented import (
    SegmentedFit,
    best_knee,
    fit_at,
    fit_segmented,
    knee_candidates,
)

_MIN_PREFILL_ROWS: Final = 20
_MIN_OWN_VARIANCE: Final = 1e-3
# Share of a column that the other columns do not explain: below it the two cannot be told
# apart, as KV and batch where every request holds the same context.


@dataclass(frozen=True)
class Selection:
    """Terms chosen, and how strongly the data speak.

    Attributes:
        terms: the model of the lowest information criterion.
        excited: every term that the data could carry.
        tau: rows that are worth one independent row.
        response: fall of the residual sum of squares, in variances of one independent
            row, from letting the step time depend on the batch at all.
        knee_gain: the further fall from a knee over the best straight line.
        straight_gain: how much worse than the straight line is any flat stretch with a knee
            beyond the first fifth of the batches seen; a straight line is believed only if
            that is decisive too.
    """

    terms: Terms
    excited: Terms
    tau: float
    response: float
    knee_gain: float
    straight_gain: float


def excited_terms(samples: DecodeSamples) -> Terms:
    """Terms whose regressor moves by itself in ``samples``."""
    batch = samples.batch
    distinct = np.unique(batch).size
    middle = float(np.median(batch))
    base = [np.ones(len(samples)), batch, np.maximum(batch - middle, 0.0)]
    kv = _moves(samples.kv_tokens, [*base, samples.prefill_tokens])
    prefill = int((samples.prefill_tokens > 0).sum()) >= _MIN_PREFILL_ROWS and _moves(
        samples.prefill_tokens, [*base, samples.kv_tokens]
    )
    return Terms(a=distinct >= 3, knee=distinct >= 4, kv=kv, prefill=prefill)


def _moves(column: np.ndarray, others: list[np.ndarray]) -> bool:
    spread = float(column.std())
    if spread == 0:
        return False
    design = np.column_stack([c / (float(np.abs(c).max()) or 1.0) for c in others])
    target = (column - column.mean()) / spread
    left = target - design @ np.linalg.lstsq(design, target, rcond=None)[0]
    return float(np.mean(left**2)) > _MIN_OWN_VARIANCE


def select_terms(samples: DecodeSamples) -> Selection:
    """Compare every subset of the excited terms under one robust weighting.

    KV and prefill cost 2 (Akaike): leaving out a small true one biases the knee, keeping
    an idle one only widens intervals. The slope below the knee and the knee itself cost
    log n each parameter (Schwarz): kept by chance they would blur alpha. Coefficients
    must not be negative, because no engine gets faster with more work.
    """
    excited = excited_terms(samples)
    full = fit_segmented(samples, excited)
    tau = variance_inflation((samples.step_ms - full.fitted_ms) / full.scatter_ms)
    unit = tau * max(full.rss, 1e-300) / max(float(full.robust.sum()), 1.0)
    rows = max(len(samples) / tau, 2.0)
    best: dict[str, tuple[float, float, Terms]] = {}
    options = [(False, True) if used else (False,) for used in excited]
    for a, knee, kv, prefill in itertools.product(*options):
        terms = Terms(a, knee, kv, prefill)
        if knee and knee_candidates(full.design).size == 0:
            continue
        fitted = _rss(full, terms)
        if fitted is None:
            continue
        cost = np.log(rows) * (a + 2 * knee) + 2.0 * (kv + prefill)
        form = "knee" if knee else ("straight" if a else "flat")
        candidate = (fitted / unit + cost, fitted / unit, terms)
        if form not in best or candidate[0] < best[form][0]:
            best[form] = candidate
    flat, straight = best["flat"], best.get("straight", best["flat"])
    bent = best.get("knee", straight)
    return Selection(
        terms=min(best.values())[2],
        excited=excited,
        tau=tau,
        response=flat[1] - min(straight[1], bent[1]),
        knee_gain=min(flat[1], straight[1]) - bent[1],
        straight_gain=_flat_with_knee(full, straight[2]) / unit - straight[1],
    )


def _flat_with_knee(full: SegmentedFit, straight: Terms) -> float:
    """Lowest residual sum of squares of a flat stretch with a knee clear of the smallest batch."""
    knots = full.design.knots
    clear = float(knots[0] + 0.2 * np.ptp(knots))
    candidates = knots[(knots >= clear) & (knots < knots[-1])]
    if candidates.size == 0:
        return float("inf")
    _, rss = full.moments.solve(straight._replace(a=False, knee=True), candidates)
    return float(rss.min())


def _rss(full: SegmentedFit, terms: Terms) -> float | None:
    """Weighted residual sum of squares, None where a coefficient comes out negative."""
    scaled, rss = fit_at(full.moments, terms, best_knee(full.moments, terms))
    coefficients = full.design.physical(terms, scaled)
    return None if np.any(coefficients[1:] < 0) else rss
