"""The law of the output lengths from the requests that finished in a trace."""

from __future__ import annotations

from typing import Final

import numpy as np
from pydantic import Field

from controllers.laws.base import FrozenModel
from controllers.models import LengthLaw
from controllers.trace_reader import IntArray, StepTrace

MIN_FINISHED: Final = 30
"""Fewer finished requests than this say little of a mean, nothing of a tail."""

_BLOCKS: Final = 20


class LengthEstimate(FrozenModel):
    """Empirical length law and how sure its mean remaining length is."""

    finished: int = Field(description="finished requests seen")
    mean_tokens: float = Field(description="mean output length, tokens")
    cv: float = Field(description="standard deviation over mean")
    mean_remaining_tokens: float = Field(
        description="rbar, mean remaining length of a running request over time, tokens"
    )
    mean_remaining_lo: float = Field(description="lower end of its 95 % interval, tokens")
    mean_remaining_hi: float = Field(description="upper end of its 95 % interval, tokens")
    mean_prompt_tokens: float = Field(description="mean prompt length, tokens")


def output_lengths(trace: StepTrace) -> IntArray:
    """Output lengths, tokens, of requests that began after the trace did.

    Early in a trace only short requests can have begun and finished inside it. Requests
    that finish within the first steps, as many as the longest output has tokens, are left
    out, so that the short ones do not weigh too much; if that would leave too few, all
    are kept.
    """
    lengths = trace.finished[:, 1]
    positive = lengths > 0
    lengths, rows = lengths[positive], trace.finished_row[positive]
    if lengths.size:
        late = rows - rows.min() >= min(int(lengths.max()), len(trace) // 4)
        if late.sum() >= MIN_FINISHED:
            return np.asarray(lengths[late], dtype=np.int64)
    return np.asarray(lengths, dtype=np.int64)


def estimate_lengths(
    trace: StepTrace, rng: np.random.Generator, replicates: int = 200
) -> tuple[LengthLaw, tuple[LengthLaw, LengthLaw], LengthEstimate] | None:
    """Law, the two laws at the ends of rbar's 95 % interval, and the numbers.

    The two outer laws are block-bootstrap resamples (blocks of successive requests, since
    clients come in runs). None where fewer than ``MIN_FINISHED`` requests finished.
    """
    lengths = output_lengths(trace)
    if lengths.size < MIN_FINISHED:
        return None
    law = LengthLaw.from_samples(lengths, name="trace")
    size = max(1, lengths.size // _BLOCKS)
    starts = rng.integers(0, lengths.size, size=(replicates, -(-lengths.size // size)))
    resampled = lengths[(starts[..., None] + np.arange(size)) % lengths.size]
    resampled = resampled.reshape(replicates, -1)[:, : lengths.size].astype(np.float64)
    residual = ((resampled**2).sum(axis=1) / resampled.sum(axis=1) + 1) / 2
    order = np.argsort(residual)
    low, high = order[int(0.025 * replicates)], order[int(0.975 * replicates) - 1]
    outer = (
        LengthLaw.from_samples(resampled[low], name="trace, shortest"),
        LengthLaw.from_samples(resampled[high], name="trace, longest"),
    )
    prompts = trace.finished[trace.finished[:, 1] > 0, 0]
    return (
        law,
        outer,
        LengthEstimate(
            finished=int(lengths.size),
            mean_tokens=law.mean,
            cv=law.cv,
            mean_remaining_tokens=law.residual_mean,
            mean_remaining_lo=outer[0].residual_mean,
            mean_remaining_hi=outer[1].residual_mean,
            mean_prompt_tokens=float(prompts.mean()),
        ),
    )
