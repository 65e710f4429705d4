"""The measured steps as the step trace that :mod:`controllers.identification` reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from controllers.step_trace import Header
from controllers.trace_reader import KINDS, OPTIONAL_COLUMNS, REQUIRED_COLUMNS, StepTrace
from twp_sglang.calibration.samples import DecodePoint, median


def at_base_context(points: Sequence[DecodePoint]) -> list[DecodePoint]:
    """The visits with the shortest prompts: those that the step over the batch is read from."""
    shortest = min(point.context_tokens for point in points)
    return [point for point in points if point.context_tokens == shortest]


def context_tokens(points: Sequence[DecodePoint]) -> float:
    """KV tokens per request at the shortest context, median over the measured steps."""
    base = at_base_context(points)
    return median(np.concatenate([p.steps.kv_tokens / p.batch for p in base]))


def as_trace(points: Sequence[DecodePoint]) -> StepTrace:
    """The measured steps in their order, as the trace that identification reads.

    With one context the KV cache grows with the batch alone, but for the few tokens made
    within a visit: too few to tell what a KV token costs, enough to mistake the drift of a
    visit for it. So it is then given as proportional to the batch.
    """
    varied = len({point.context_tokens for point in points}) > 1
    context = context_tokens(points)
    steps = [point.steps for point in points]
    count = sum(s.step_ms.size for s in steps)
    empty = np.full(count, np.nan)
    columns = {name: empty for name in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS) if name != "kind"}
    columns |= {
        "step": np.arange(count, dtype=np.float64),
        "duration_ms": np.concatenate([s.step_ms for s in steps] or [empty]),
        "batch": np.concatenate([np.full(p.steps.step_ms.size, float(p.batch)) for p in points]),
        "kv_tokens": np.concatenate(
            [
                p.steps.kv_tokens if varied else np.full(p.steps.step_ms.size, p.batch * context)
                for p in points
            ]
        ),
        "prefill_tokens": np.zeros(count),
    }
    return StepTrace(
        path=Path("calibration"),
        header=Header(),
        kind=np.full(count, KINDS.index("decode"), dtype=np.int8),
        columns=columns,
        finished=np.empty((0, 2), dtype=np.int64),
        finished_row=np.empty(0, dtype=np.int64),
    )
