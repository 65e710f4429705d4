"""Whether a trace moved the loop enough to be learnt from.

A loop that works keeps its batch where the step time is flat; such a trace fits any
alpha. Refusing then is the point: a gain tuned on a guessed slope has no margin at all.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from controllers.identification.result import Estimate, Refusal
from controllers.identification.samples import DecodeSamples
from controllers.identification.selection import Selection

MIN_STEPS: Final = 200
"""Timed decode steps below which block bootstrap intervals mean nothing."""

DECISIVE: Final = 30.0
"""Fall of twice the log-likelihood that counts as seen: chance in 1e-6 for two
parameters, which leaves room for the search over the knee (Davies, Biometrika 1987)."""

MIN_ROWS_EACH_SIDE: Final = 30
SMALLEST_BATCH_STRAIGHT: Final = 2.0
MIN_RISE_STRAIGHT: Final = 0.1
"""A straight line counts as a loop only if it raises the step by a tenth over the batches
seen: below that a window law has nothing to act on."""

MAX_RELATIVE_WIDTH: Final = 1.0
"""Interval of alpha over its value: with less, the loop gain is known within a factor 2."""


def data_refusals(samples: DecodeSamples) -> list[Refusal]:
    """What can be said before any fit."""
    if len(samples) < MIN_STEPS:
        return [
            Refusal(
                code="too-short",
                reason=f"only {len(samples)} timed decode steps, {MIN_STEPS} are needed",
                wanted="Record some minutes under load",
            )
        ]
    if np.unique(samples.batch).size < 4:
        seen = ", ".join(f"{b:g}" for b in np.unique(samples.batch))
        return [
            Refusal(
                code="batch-constant",
                reason=f"the batch took only the values {seen}, so its effect cannot be seen",
                wanted="Record light load and a burst in one trace, or step the window",
            )
        ]
    return []


def response_refusals(samples: DecodeSamples, selection: Selection) -> list[Refusal]:
    """Whether the step time answers to the batch at all, with a knee or without."""
    smallest, largest = float(samples.batch.min()), float(samples.batch.max())
    if selection.response < DECISIVE:
        wanted = (
            f"Record a burst that drives the batch to {2 * largest:.0f} or more, with h0_tokens "
            "and h_max_tokens at twice their value"
        )
        if selection.terms.kv:
            wanted += (
                ". The step follows KV tokens here: of the laws only predictive models that, and "
                "it needs no tuning"
            )
        return [
            Refusal(
                code="knee-not-reached",
                reason=f"the step time does not rise with the batch up to B = {largest:g}: the "
                "trace never left B <= B0, and alpha cannot be seen",
                wanted=wanted,
            )
        ]
    if selection.terms.knee and selection.knee_gain >= DECISIVE:
        return []
    if smallest > SMALLEST_BATCH_STRAIGHT:
        return [
            Refusal(
                code="floor-not-reached",
                reason=f"the step time rises along one line from B = {smallest:g} to {largest:g}, "
                "so the knee B0 and the baseline l_min lie outside what was recorded",
                wanted="Record light load too (a few requests at a time), down to B = 1 or 2",
            )
        ]
    if selection.straight_gain < DECISIVE:
        return [
            Refusal(
                code="knee-unclear",
                reason="the step time rises with the batch, but its scatter hides whether along "
                "one line or beyond a knee",
                wanted="Record longer, on a quieter machine, or with larger swings of the batch",
            )
        ]
    return []


def estimate_refusals(
    samples: DecodeSamples, estimates: dict[str, Estimate], largest_knee: float | None
) -> list[Refusal]:
    """Whether the estimates are sharp enough to tune on.

    ``largest_knee`` bounds the knees that enough steps lie above; None for a straight line.
    """
    batch = samples.batch
    alpha, b0 = estimates["alpha_ms"], estimates["b0"]
    refusals = []
    if largest_knee is None:
        rise = alpha.value * float(np.ptp(batch)) / estimates["l_min_ms"].value
        if rise < MIN_RISE_STRAIGHT:
            refusals.append(
                Refusal(
                    code="response-too-small",
                    reason=f"from B = {batch.min():g} to {batch.max():g} the step time rises by "
                    f"only {100 * rise:.1f} %, without a knee",
                    wanted=f"Record a burst that drives the batch beyond {2 * batch.max():.0f}; if "
                    "none does, this engine has no knee and needs no window",
                )
            )
    else:
        above = batch > b0.value + 0.5
        below = int((batch <= b0.value).sum())
        few = above.sum() < MIN_ROWS_EACH_SIDE or np.unique(batch[above]).size < 2
        if few or b0.hi >= largest_knee:
            refusals.append(
                Refusal(
                    code="knee-hardly-passed",
                    reason=f"only {int(above.sum())} steps, at {np.unique(batch[above]).size} "
                    f"batch sizes, lie clear above a knee near B = {b0.value:.1f}",
                    wanted=f"Record a burst that holds the batch above {1.3 * b0.value + 2:.0f} "
                    "for some hundred steps",
                )
            )
        if below < MIN_ROWS_EACH_SIDE or b0.lo <= float(batch.min()):
            refusals.append(
                Refusal(
                    code="floor-hardly-seen",
                    reason=f"only {below} steps lie at or below the knee near B = {b0.value:.1f} "
                    f"(95 % interval from {b0.lo:.1f}, smallest batch {batch.min():g})",
                    wanted="Record light load too, some hundred steps at a small batch",
                )
            )
    width = (alpha.hi - alpha.lo) / alpha.value if alpha.value > 0 else float("inf")
    if alpha.lo <= 0 or width > MAX_RELATIVE_WIDTH:
        refusals.append(
            Refusal(
                code="slope-too-uncertain",
                reason=f"alpha = {alpha.value:.3g} ms per request is known only to lie in "
                f"{alpha.lo:.3g} .. {alpha.hi:.3g}",
                wanted="Record longer, with larger swings of the batch",
            )
        )
    return refusals
