"""Gain and filter weight: the dynamic half of tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from controllers.tuning.operating_choice import Infeasible
from controllers.tuning.problem import TuningProblem

_GAINS: Final = 24
_BETAS: Final = 14
_REFINEMENTS: Final = 2
_SMALLEST: Final = 0.005
# A gain of 1/200 per step: slower than any burst that a window could answer to.
_HEADROOM: Final = 1.002
# The search's grids are coarse; the exact check must not fail for the last digit.


def choose_gains(problem: TuningProblem, static: Mapping[str, Any]) -> tuple[float, float]:
    """Fastest (gain, beta) that keeps margin and jitter in every plausible loop.

    A grid on a log scale and two finer ones around the best point: deterministic, and the
    feasible set need not be convex. Of equally fast pairs the larger margin wins.

    Raises:
        Infeasible: not even the slowest loop keeps the margin or the jitter.
    """
    gains = np.geomspace(_SMALLEST, 1.0, _GAINS)
    betas = np.geomspace(0.02, 1.0, _BETAS)
    best: tuple[tuple[float, float], float, float] | None = None
    goal = problem.goals.disk_margin * _HEADROOM
    calm = problem.goals.window_jitter / max(problem.noise, 1e-12)
    for _ in range(1 + _REFINEMENTS):
        for gain in gains:
            for beta in betas:
                pair = {problem.gain_name: float(gain), "beta": float(beta)}
                found = problem.verdict({**static, **pair}, goal)
                if not found.stable or found.disk_margin < goal or found.jitter > calm:
                    continue
                score = (found.bandwidth, found.disk_margin)
                if best is None or score > best[0]:
                    best = (score, float(gain), float(beta))
        if best is None:
            slowest = problem.verdict(
                {**static, problem.gain_name: float(gains[0]), "beta": float(betas[0])}
            )
            raise Infeasible(
                f"not even {problem.gain_name} = {gains[0]:.3g} with beta = {betas[0]:.3g} keeps "
                f"disk margin {problem.goals.disk_margin:g} (it has {slowest.disk_margin:.2f}) and "
                f"window jitter {problem.goals.window_jitter:g} "
                f"(it has {slowest.jitter * problem.noise:.3f})",
                "Allow more jitter, or record longer so that the models lie closer together",
            )
        gains = _around(gains, best[1])
        betas = _around(betas, best[2])
    assert best is not None
    # Rounded down: a configuration file is read by people, and smaller is safer.
    return _floor_digits(best[1]), _floor_digits(best[2])


def _around(values: np.ndarray, centre: float) -> np.ndarray:
    ratio = float(values[1] / values[0])
    return np.geomspace(centre / ratio, min(centre * ratio, 1.0), 9)


def _floor_digits(value: float, digits: int = 3) -> float:
    scale = 10.0 ** (digits - 1 - np.floor(np.log10(value)))
    return float(np.floor(value * scale + 1e-9) / scale)
