"""Where the loop should become unstable: ``controllers`` at the sweep's operating point.

The prediction is for a queue that never empties (the queue factor of equation (3) at its
maximum, the gate always closing) and small deviations from rest. Below the load at which the
gate closes there is no feedback and nothing to swing; above it the linear loop tells where
deviations stop decaying, and the clamps decide how large the swing can get.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.cells.machines import machine
from analysis.cells.traffic import mean_prompt_tokens, output_lengths
from analysis.sweeping.grid import Grid, Plane, Point, configured
from controllers.margins import margins
from controllers.models import LatencyModel, LengthLaw, LoopModel, LoopTiming
from controllers.stability_map import GAIN_FIELD
from twp_sglang.config import TwpConfig

OVERLAP_DELAY_STEPS = 1
"""An overlapping scheduler decides before it has seen the step that runs."""

_FINE = 24
"""Points per axis of the map that the boundary is drawn from."""

MARGIN_DECADES = 2.0
"""Gain margins beyond a factor of 100 are all the same in the figures."""


class Engine(NamedTuple):
    """What of the sweep the loop's model needs."""

    latency: LatencyModel
    lengths: LengthLaw
    prompt_tokens: float
    delay_steps: int = OVERLAP_DELAY_STEPS


def engine_of(machine_name: str, traffic: str) -> Engine:
    """The engine and lengths of a simulated cell.

    Raises:
        ValueError: the machine is a table of step times.
    """
    lengths = LengthLaw.from_samples(output_lengths(traffic, "test"), name=traffic)
    return Engine(
        machine(machine_name).latency_model(), lengths, mean_prompt_tokens(traffic, "test")
    )


def loop_of(engine: Engine, config: TwpConfig) -> LoopModel:
    """The loop that ``config`` closes around ``engine``, with a queue that never empties.

    Raises:
        ValueError: a law without a linear model, or values it refuses.
    """
    if config.law not in GAIN_FIELD:
        raise ValueError(
            f"law = {config.law}: theory covers {', '.join(GAIN_FIELD)}; others switch"
        )
    h0 = config.h0_tokens or config.b0 * engine.lengths.mean
    params: dict[str, float | None] = {
        "h0_tokens": h0,
        "h_min_tokens": config.h_min_tokens,
        "h_max_tokens": config.h_max_tokens,
    }
    if config.law == "paper":
        params |= {"gamma": config.gamma, "queue_ref": config.queue_ref}
    else:
        params |= {"k": config.k, "sigma_ref": config.sigma_ref}
    return LoopModel(
        latency=engine.latency,
        lengths=engine.lengths,
        timing=LoopTiming(delay_steps=engine.delay_steps),
        law=config.law,
        law_params=params,
        beta=config.beta,
        prompt_tokens=engine.prompt_tokens,
    )


class Prediction(NamedTuple):
    """What the theory says of one point."""

    stable: bool
    gain_margin: float | None
    """Factor to the boundary, below 1 where unstable; None where no gain is too much."""
    disk_margin: float
    regime: str


def predict(engine: Engine, config: TwpConfig) -> Prediction:
    """Stability of the loop at ``config``."""
    found = margins(loop_of(engine, config))
    return Prediction(found.stable, found.gain_margin, found.disk_margin_alpha, found.regime)


class Map(NamedTuple):
    """log10 of the gain margin on a plane; 0 is the boundary, below it the loop swings.

    ``x`` has shape (n,), ``y`` (m,), ``margin`` (m, n).
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    margin: NDArray[np.float64]


def margin_map(engine: Engine, grid: Grid, plane: Plane) -> Map:
    """The gain margin between the outermost values of the plane's axes."""
    x, y = (_fine(grid.axes[name]) for name in (plane.x, plane.y))
    margin = np.empty((len(y), len(x)))
    for j, y_value in enumerate(y):
        for i, x_value in enumerate(x):
            point: Point = {**plane.fixed, plane.x: float(x_value), plane.y: float(y_value)}
            margin[j, i] = _decades(predict(engine, configured(grid.base, point)))
    return Map(x, y, margin)


def _decades(found: Prediction) -> float:
    if found.gain_margin is None:
        return MARGIN_DECADES if found.stable else -MARGIN_DECADES
    factor = max(found.gain_margin, 1e-6)
    return float(np.clip(np.log10(factor), -MARGIN_DECADES, MARGIN_DECADES))


def _fine(values: tuple[float, ...]) -> NDArray[np.float64]:
    if len(values) < 2:
        return np.array(values)
    return np.geomspace(values[0], values[-1], _FINE)
