"""Prefill slope from steps that only prefill, for engines that never mix.

Where prompts get steps of their own, no decode step carries prompt tokens and the
regression over decode steps cannot see what a prompt token costs. Those steps have their
own constant (other kernels), so only their slope is used.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from controllers.trace_reader import StepTrace

_MIN_ROWS: Final = 30
_ROUNDS: Final = 20
_TUNING: Final = 4.685  # Tukey's bisquare, as in the decode regression


def prefill_slope(
    trace: StepTrace, rng: np.random.Generator, replicates: int = 300
) -> tuple[float, float, float] | None:
    """(value, lo, hi) in ms per prompt token, None where the steps do not show it."""
    duration, tokens = trace["duration_ms"], trace["prefill_tokens"]
    with np.errstate(invalid="ignore"):
        rows = trace.is_kind("prefill") & (duration > 0) & (tokens > 0)
    x, y = tokens[rows], duration[rows]
    if x.size < _MIN_ROWS or x.std() < 0.05 * x.mean():
        return None
    scale = float(x.max())
    design = np.column_stack([np.ones_like(x), x / scale])
    weight = np.ones_like(y)
    solution = np.zeros(2)
    for _ in range(_ROUNDS):
        weighted = design * weight[:, None]
        solution[:] = np.linalg.lstsq(weighted.T @ design, weighted.T @ y, rcond=None)[0]
        error = y - design @ solution
        level = 1.4826 * float(np.median(np.abs(error)))
        if level == 0:
            break
        weight = (
            np.where(np.abs(error) < _TUNING * level, 1.0, 0.0)
            * (1 - np.clip(error / (_TUNING * level), -1, 1) ** 2) ** 2
        )
    signs = rng.choice([-1.0, 1.0], size=(replicates, y.size))
    inverse = np.linalg.pinv((design * weight[:, None]).T @ design)
    spread = 1.2 * (signs * (weight * error)) @ design @ inverse[:, 1]
    slopes = (solution[1] + spread) / scale
    low, high = np.quantile(slopes, [0.005, 0.995])
    if low <= 0:
        return None
    return float(solution[1]) / scale, float(low), float(high)
