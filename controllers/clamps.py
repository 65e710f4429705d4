"""What the clamps do: what H_min keeps busy, what H_max lets through.

Both are renewal questions. n fresh requests fit a window H when L_1 + ... + L_n <= H, so the
batch that a burst puts on an idle engine exceeds n with the probability of that sum. In
steady state the same holds for remaining lengths, whose law is P(rest = u) = S(u - 1)/E[L].
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controllers.models import LatencyModel, LengthLaw
from controllers.operating_point import gate_gap


class Population(StrEnum):
    """Whose lengths fill the window."""

    FRESH = "fresh"  # a burst onto an idle engine
    STATIONARY = "stationary"  # a gate that has been saturated for long


def window_for_batch(lengths: LengthLaw, batch: float) -> float:
    """Window whose saturated mean batch is ``batch``: (B + 1) rbar - 1 tokens.

    With B = B0 this is the H_min that keeps the engine at its knee, and, halved, the largest
    safe H0 of the paper's law, whose saturated window is 2 H0.

    Raises:
        ValueError: the batch is negative.
    """
    if not (math.isfinite(batch) and batch >= 0):
        raise ValueError(f"batch = {batch:g}: must be finite and >= 0")
    return batch * lengths.residual_mean + gate_gap(lengths)


def safe_h0(lengths: LengthLaw, b0: float) -> float:
    """Largest H0 whose saturated start 2 H0 keeps the mean batch at B0, tokens.

    ((B0 + 1) rbar - 1)/2. H0 = B0 E[L] is about twice to four times that
    (see :func:`batch_of_naive_h0`).
    """
    return window_for_batch(lengths, b0) / 2.0


def batch_of_naive_h0(lengths: LengthLaw, b0: float) -> float:
    """Batch that H0 = B0 E[L] allows when saturated and not slowed: 2 B0 E[L]/rbar.

    About 4 B0/(1 + CV^2): the window counts remaining, not whole, lengths.
    """
    return 2.0 * b0 * lengths.mean / lengths.residual_mean


def _pmf(lengths: LengthLaw, population: Population) -> NDArray[np.float64]:
    if population is Population.FRESH:
        return lengths.pmf
    return lengths.survival_array / lengths.mean


def fits_probability(
    lengths: LengthLaw, window_tokens: float, count: int, population: Population
) -> float:
    """P(L_1 + ... + L_count <= window), by an n-fold convolution.

    Exact to about 1e-8. The sequence is damped before its Fourier transform, because an
    n-fold sum is far longer than any transform and would fold back onto the window.

    Raises:
        ValueError: the count is negative or the window is not finite.
    """
    if count < 0:
        raise ValueError(f"count = {count}: must not be negative")
    if not math.isfinite(window_tokens):
        raise ValueError(f"window_tokens = {window_tokens}: must be finite")
    room = math.floor(window_tokens)
    if count == 0:
        return 1.0 if room >= 0 else 0.0
    if room < count:
        return 0.0
    size = 1 << math.ceil(math.log2(4 * (room + 1)))
    damping = 10.0 ** (-10.0 / size)
    weights = np.zeros(size)
    kept = _pmf(lengths, population)[: min(room, size - 1)]
    weights[1 : kept.size + 1] = kept
    weights *= damping ** np.arange(size)
    powered = np.fft.irfft(np.fft.rfft(weights) ** count, size)[: room + 1]
    total = float(np.sum(powered * damping ** -np.arange(room + 1.0)))
    return min(max(total, 0.0), 1.0)


def batch_exceedance(
    lengths: LengthLaw,
    window_tokens: float,
    batch_max: float,
    population: Population = Population.STATIONARY,
) -> float:
    """P(B > batch_max) under a full window, in a burst or in steady state.

    In steady state remaining lengths are taken as independent. A saturated gate spaces its
    admissions more evenly than that, so the value errs on the safe side where CV < 1.
    """
    return fits_probability(lengths, window_tokens, math.floor(batch_max) + 1, population)


def batch_quantile(
    lengths: LengthLaw, window_tokens: float, probability: float, population: Population
) -> int:
    """Smallest n with P(B > n) <= probability.

    Raises:
        ValueError: the probability is not in (0, 1).
    """
    if not 0 < probability < 1:
        raise ValueError(f"probability = {probability:g}: must lie in (0, 1)")
    low, high = 0, max(1, math.floor(window_tokens))
    while low < high:
        middle = (low + high) // 2
        if batch_exceedance(lengths, window_tokens, middle, population) <= probability:
            high = middle
        else:
            low = middle + 1
    return low


def largest_window(
    lengths: LengthLaw,
    batch_max: float,
    probability: float,
    population: Population = Population.FRESH,
) -> float:
    """Largest whole H with P(B > batch_max) <= probability: an H_max for a burst.

    Raises:
        ValueError: the probability is not in (0, 1), or the batch below 1.
    """
    if not 0 < probability < 1:
        raise ValueError(f"probability = {probability:g}: must lie in (0, 1)")
    if not (math.isfinite(batch_max) and batch_max >= 1):
        raise ValueError(f"batch_max = {batch_max:g}: must be finite and >= 1")
    low, high = 1, math.ceil((batch_max + 1) * lengths.longest)
    while low < high:
        middle = (low + high + 1) // 2
        if batch_exceedance(lengths, middle, batch_max, population) <= probability:
            low = middle
        else:
            high = middle - 1
    return float(low)


class ClampAnalysis(NamedTuple):
    """What a pair of clamps does to one engine.

    Attributes:
        min_batch: mean batch that H_min holds under a saturated queue.
        keeps_busy: whether that reaches B0.
        min_bandwidth_share: bandwidth at H_min over the bandwidth at B0.
        max_batch: mean batch that H_max holds once stationary.
        burst_batch: batch that a burst onto an idle engine exceeds with ``probability``.
        max_sigma: slowdown at the larger of the two.
        stale_window_factor: H* over H0 that a stale baseline can ask for (sigma at its floor).
    """

    min_batch: float
    keeps_busy: bool
    min_bandwidth_share: float
    max_batch: float
    burst_batch: int
    max_sigma: float
    stale_window_factor: float


def analyse_clamps(
    latency: LatencyModel,
    lengths: LengthLaw,
    h_min_tokens: float,
    h_max_tokens: float,
    probability: float = 0.01,
) -> ClampAnalysis:
    """What ``h_min_tokens`` keeps busy and ``h_max_tokens`` lets through.

    Raises:
        ValueError: clamps not positive or out of order, or a probability outside (0, 1).
    """
    if not 0 < h_min_tokens <= h_max_tokens < math.inf:
        raise ValueError(
            f"h_min_tokens = {h_min_tokens:g}, h_max_tokens = {h_max_tokens:g}: need "
            "0 < h_min_tokens <= h_max_tokens"
        )
    rbar, gap = lengths.residual_mean, gate_gap(lengths)
    low = max(h_min_tokens - gap, 0.0) / rbar
    high = max(h_max_tokens - gap, 0.0) / rbar
    burst = batch_quantile(lengths, h_max_tokens, probability, Population.FRESH)
    knee = max(latency.b0, 1.0)
    share = (low / latency.step_ms(low)) / (knee / latency.step_ms(knee))
    return ClampAnalysis(
        min_batch=low,
        keeps_busy=low >= latency.b0,
        min_bandwidth_share=share,
        max_batch=high,
        burst_batch=burst,
        max_sigma=latency.step_ms(max(high, float(burst))) / latency.l_min_ms,
        stale_window_factor=4.0,
    )
