"""Delay and filter weight of the measurement path, as the trace shows them.

With ``sample_step`` the delay is read off: a step t decided with the sample of step
t - 1 has none (d = 0), with that of t - 2 it has d = 1. Otherwise the recorded filter
output is explained by the durations: lhat_t - lhat_{t-1} = beta (l_{t-1-d} - lhat_{t-1}),
and the d whose durations explain the movement best is the delay; the same regression
gives beta.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from controllers.laws.base import FrozenModel
from controllers.trace_reader import StepTrace

MAX_DELAY: Final = 8
"""Largest delay searched for, steps: an order above what overlapping schedulers have."""

_MIN_ROWS: Final = 50
_RUN: Final = 4  # decode steps in a row before a lag counts
_CLEAR: Final = 0.5  # share of the movement that the durations must explain


class DelayEstimate(FrozenModel):
    """Delay d in steps, the delays that cannot be excluded, and the filter weight."""

    delay_steps: int = Field(description="most common extra delay d, steps")
    plausible_steps: tuple[int, ...] = Field(description="delays to be robust against")
    beta: float | None = Field(default=None, description="filter weight, where visible")
    source: Literal["sample_step", "itl_ms", "sigma", "header", "assumed"] = Field(
        description="which column told it"
    )


def estimate_delay(trace: StepTrace) -> DelayEstimate:
    """Delay of ``trace`` by the best evidence it holds.

    Without any evidence both 0 and 1 are plausible, the paper's timing and that of an
    overlapping scheduler; the larger is the estimate, because a loop that bears it bears
    the smaller.
    """
    filtered = _from_filter(trace)
    beta = None if filtered is None else filtered.beta
    lag = trace["step"] - trace["sample_step"] - 1
    lag = lag[np.isfinite(lag) & _in_full_flow(trace)]
    lag = lag[(lag >= 0) & (lag <= 64)]
    if lag.size >= _MIN_ROWS:
        values, counts = np.unique(lag.astype(np.int64), return_counts=True)
        common = values[counts >= 0.02 * lag.size]
        return DelayEstimate(
            delay_steps=int(values[np.argmax(counts)]),
            plausible_steps=tuple(int(v) for v in common),
            beta=beta,
            source="sample_step",
        )
    if filtered is not None:
        return filtered
    if trace.header.overlap is not None:
        delay = int(trace.header.overlap)
        return DelayEstimate(delay_steps=delay, plausible_steps=(delay,), source="header")
    return DelayEstimate(delay_steps=1, plausible_steps=(0, 1), source="assumed")


def _in_full_flow(trace: StepTrace) -> npt.NDArray[np.bool_]:
    """Steps after a run of decode steps without a gap.

    After an idle stretch or a prefill-only step the newest sample is old because nothing
    was measured, not because measurements travel slowly.
    """
    counted = trace.is_kind("decode", "mixed")
    flow = counted.copy()
    for back in range(1, _RUN + 1):
        before = np.zeros_like(counted)
        adjacent = trace["step"][back:] - trace["step"][:-back] == back
        before[back:] = counted[:-back] & adjacent
        flow &= before
    return flow


def _from_filter(trace: StepTrace) -> DelayEstimate | None:
    for column in ("itl_ms", "sigma"):
        found = _regress_filter(trace, column)
        if found is not None:
            delay, beta = found
            return DelayEstimate(
                delay_steps=delay,
                plausible_steps=(delay,),
                beta=beta,
                source="itl_ms" if column == "itl_ms" else "sigma",
            )
    return None


def _regress_filter(trace: StepTrace, column: str) -> tuple[int, float] | None:
    """(d, beta) whose durations explain the movement of ``column``, None if none does."""
    output, duration = trace[column], trace["duration_ms"]
    if np.isfinite(output).sum() < _MIN_ROWS:
        return None
    best: tuple[float, int, float] | None = None
    rows = np.arange(MAX_DELAY + 1, len(trace))
    move = output[rows] - output[rows - 1]
    for delay in range(MAX_DELAY + 1):
        sample = duration[rows - 1 - delay]
        design = np.column_stack([sample, -output[rows - 1]])
        good = np.isfinite(move) & np.isfinite(design).all(axis=1) & (move != 0)
        if good.sum() < _MIN_ROWS:
            continue
        target, used = move[good], design[good]
        total = float(np.dot(target, target))
        if total == 0:
            continue
        solution, *_ = np.linalg.lstsq(used, target, rcond=None)
        explained = 1 - float(np.sum((target - used @ solution) ** 2)) / total
        # Regressors: the sample, scaled by beta (over l_min for sigma), and beta itself.
        if best is None or explained > best[0]:
            best = (explained, delay, float(solution[1]))
    if best is None or best[0] < _CLEAR or not 0 < best[2] <= 1.0001:
        return None
    return best[1], min(best[2], 1.0)
