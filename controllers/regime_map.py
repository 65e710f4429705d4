"""What happens at a given arrival rate and H0: below the knee, loaded, saturated, or at risk.

Without a binding gate Little's law holds: B = lambda E[L] l(B). With a saturated gate the law
sets B to its equilibrium B_s, which serves B_s/l(B_s) tokens per ms. Where B/l(B) falls above
the knee (x > 1), a load that the engine carries easily can exceed what it serves once a
burst has saturated it: it then stays saturated although it need not be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controllers.models import LoopModel
from controllers.operating_point import Equilibrium, Regime, equilibrium


class LoadRegime(StrEnum):
    """State of the loop under a constant arrival rate."""

    BELOW_KNEE = "below_knee"  # carried with B <= B0, no queue
    LOADED = "loaded"  # carried with B > B0, no queue
    METASTABLE = "metastable"  # carried, but not any more after a burst has filled the queue
    SATURATED = "saturated"  # more arrives than is served; feedback holds the window
    SATURATED_IDLE = "saturated_idle"  # more arrives than is served, and H0 is the limit


class RegimePoint(NamedTuple):
    """Regime at one (arrival rate, H0), with the batch that it settles at."""

    regime: LoadRegime
    batch: float


def free_batch(loop: LoopModel, arrivals_per_s: float) -> float:
    """Smallest B with B = lambda E[L] l(B) (no gate); infinite when no batch carries it."""
    tokens_per_ms = arrivals_per_s * loop.lengths.mean / 1000.0
    model, slope = loop.latency, loop.slope_per_request_ms
    # l is affine on each side of the knee: B (1 - T slope) = T constant.
    left = 1.0 - tokens_per_ms * slope
    if left > 0:
        batch = tokens_per_ms * model.l_min_ms / left
        if batch <= model.b0:
            return batch
    left = 1.0 - tokens_per_ms * (slope + model.alpha_ms)
    constant = model.l_min_ms - model.alpha_ms * model.b0
    if left > 0 and constant > 0:
        return tokens_per_ms * constant / left
    return math.inf


def regime_at(loop: LoopModel, arrivals_per_s: float) -> RegimePoint:
    """Regime of ``loop`` under ``arrivals_per_s``; its own queue setting is not used.

    Raises:
        ValueError: the rate is negative or not finite.
    """
    if not (math.isfinite(arrivals_per_s) and arrivals_per_s >= 0):
        raise ValueError(f"arrivals_per_s = {arrivals_per_s:g}: must be finite and >= 0")
    saturated = equilibrium(loop.model_copy(update={"queue": "saturated"}), gated=True)
    return _classify(loop, arrivals_per_s, saturated)


def _classify(loop: LoopModel, arrivals_per_s: float, saturated: Equilibrium) -> RegimePoint:
    demand = arrivals_per_s * loop.lengths.mean
    free = free_batch(loop, arrivals_per_s)
    served = saturated.tokens_per_second
    if free <= saturated.batch and demand <= served * (1 + 1e-12):
        if free <= loop.latency.b0 * (1 + 1e-12):
            return RegimePoint(LoadRegime.BELOW_KNEE, free)
        return RegimePoint(LoadRegime.LOADED, free)
    if free <= saturated.batch:
        return RegimePoint(LoadRegime.METASTABLE, free)
    if saturated.regime is Regime.ACTIVE:
        return RegimePoint(LoadRegime.SATURATED, saturated.batch)
    return RegimePoint(LoadRegime.SATURATED_IDLE, saturated.batch)


class RegimeMap(NamedTuple):
    """Regimes on a grid; rows are windows, columns are arrival rates.

    Attributes:
        h0_tokens: shape (n,).
        arrivals_per_s: requests per second, shape (m,).
        regime: value of :class:`LoadRegime`, shape (n, m).
        batch: batch it settles at, shape (n, m).
    """

    h0_tokens: NDArray[np.float64]
    arrivals_per_s: NDArray[np.float64]
    regime: NDArray[np.str_]
    batch: NDArray[np.float64]


def regime_map(
    loop: LoopModel, h0_tokens: Sequence[float], arrivals_per_s: Sequence[float]
) -> RegimeMap:
    """Regime at every pair of H0 and arrival rate.

    Clamps that ``loop`` sets in tokens stay as they are; unset ones follow H0.

    Raises:
        ValueError: a value that the law or the map cannot use.
    """
    cells: list[list[RegimePoint]] = []
    for h0 in h0_tokens:
        scaled = LoopModel.model_validate(
            {**_fields(loop), "law_params": {**loop.law_params, "h0_tokens": h0}}
        )
        saturated = equilibrium(scaled.model_copy(update={"queue": "saturated"}), gated=True)
        cells.append([_classify(scaled, rate, saturated) for rate in arrivals_per_s])
    return RegimeMap(
        np.asarray(h0_tokens, dtype=np.float64),
        np.asarray(arrivals_per_s, dtype=np.float64),
        np.array([[cell.regime.value for cell in row] for row in cells]),
        np.array([[cell.batch for cell in row] for row in cells]),
    )


def _fields(loop: LoopModel) -> dict[str, object]:
    return {name: getattr(loop, name) for name in type(loop).model_fields}
