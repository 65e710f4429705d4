"""Step times replayed from a recorded step trace.

The i-th decode step of the run takes as long as the i-th decode step of the record, and so
for prefill and for mixed steps: a run that drifts by a step against the record stays
comparable. Where the record has no time for a step (idle gaps, drains) or has ended, the
time comes from an affine model fitted to the whole record. ``off_record`` counts these
steps: many of them mean that the run is another one than was recorded.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from controllers.trace_reader import StepTrace, read_step_trace
from twp_sglang.simulator.step_models import Affine, AffineStep, FloatArray

_FEWEST_STEPS = 8


class Replay:
    """A :class:`~twp_sglang.simulator.step_models.StepModel` that follows a record."""

    leaps = False

    def __init__(self, trace: StepTrace) -> None:
        """Take a record.

        Raises:
            ValueError: fewer than 8 steps with a duration.
        """
        self.model = fit_affine(trace)
        self._affine = Affine(self.model)
        rides, prompts = trace["batch"] > 0, trace["prefill_tokens"] > 0
        durations = trace["duration_ms"]
        self._ahead = {
            (ride, prompt): iter(durations[(rides == ride) & (prompts == prompt)].tolist())
            for ride in (False, True)
            for prompt in (False, True)
        }
        self.off_record = 0

    def step_ms(self, rows: int, kv_tokens: int, prefill_tokens: int) -> float:
        """See :class:`~twp_sglang.simulator.step_models.StepModel`."""
        duration: float = next(self._ahead[rows > 0, prefill_tokens > 0], math.nan)
        if not math.isnan(duration):
            return duration
        self.off_record += 1
        return self._affine.step_ms(rows, kv_tokens, prefill_tokens)

    def decode_steps_ms(self, rows: int, kv_tokens: int, steps: int) -> FloatArray:
        """Never asked: a replay takes each step by itself."""
        raise NotImplementedError("a replayed record has no steps ahead of time")


def replay_file(path: Path) -> Replay:
    """Read ``path``.

    Raises:
        ValueError: the trace cannot be read, or is too short.
    """
    return Replay(read_step_trace(path))


def fit_affine(trace: StepTrace) -> AffineStep:
    """l = c + a B + kappa KV + p prompt by non-negative least squares over timed steps.

    Raises:
        ValueError: fewer than 8 steps with a duration.
    """
    timed = np.isfinite(trace["duration_ms"]) & (trace["duration_ms"] > 0)
    count = int(timed.sum())
    if count < _FEWEST_STEPS:
        raise ValueError(
            f"{trace.path}: {count} steps with a duration; a replay needs {_FEWEST_STEPS}"
        )
    duration = trace["duration_ms"][timed]
    columns = [np.ones(count)] + [
        trace[name][timed] for name in ("batch", "kv_tokens", "prefill_tokens")
    ]
    # Columns of like size: nnls stops early on badly scaled ones.
    scales = [max(1.0, float(column.max())) for column in columns]
    matrix = np.stack([c / s for c, s in zip(columns, scales, strict=True)], axis=1)
    solution, _ = nnls(matrix, duration)
    c, a, kappa, p = (float(value / s) for value, s in zip(solution, scales, strict=True))
    return AffineStep(
        l_min_ms=c if c > 0 else float(duration.min()),
        a_ms=a,
        kappa_ms_per_token=kappa,
        prefill_ms_per_token=p,
    )
