"""Milliseconds per prompt token from prefill probes.

Two forms of the time that a prompt takes from the decoding requests, both not negative:

    per_chunk * chunks + per_token * tokens             (a chunk costs something by itself)
    per_token * sum over chunks of (size - free)+       (the weights are read anyway)

Only per_token scales with the prompt budget of a step; the offset of a chunk would bias it,
so it is told apart. Free tokens are claimed only where 97.5 % of the bootstrap agrees: 0 is
the cautious side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from pydantic import Field
from scipy.optimize import least_squares

from controllers.laws.base import FrozenModel
from twp_sglang.calibration.samples import FloatArray, PrefillProbe

_RESAMPLES: Final = 200
_MIN_LENGTHS: Final = 2
_NOTHING: Final = 1e-6
_FREE_CANDIDATES: Final = 64
_FREE_SHARE: Final = 0.9
_SOFT: Final = 0.1
"""Relative error beyond which a probe counts as an outlier."""
_REWEIGHTINGS: Final = 12


class PrefillFit(FrozenModel):
    """Cost of prefill beside decoding requests."""

    prefill_ms_per_token: float = Field(ge=0)
    lo: float = Field(description="2.5 % quantile of the bootstrap over probes")
    hi: float = Field(description="97.5 % quantile")
    chunk_ms: float = Field(ge=0, description="cost of a chunk whatever its size")
    free_tokens: float = Field(
        default=0.0, ge=0, description="prompt tokens of a chunk that cost nothing"
    )
    residual_ms: float = Field(description="median distance of a probe from the fit")
    probes: int

    def expected_ms(self, tokens: int, chunks: int, chunk_tokens: int | None) -> float:
        """What a prompt of ``tokens`` in ``chunks`` takes from the decoding requests."""
        sizes = _sizes(tokens, chunks, chunk_tokens)
        paid = float(np.maximum(sizes - self.free_tokens, 0.0).sum())
        return self.chunk_ms * chunks + self.prefill_ms_per_token * paid


class _Candidate(NamedTuple):
    per_chunk: float
    per_token: float
    free: float
    loss: float


def fit_prefill(
    probes: Sequence[PrefillProbe], seed: int = 0, chunk_tokens: int | None = None
) -> PrefillFit | None:
    """Robust fit; None where fewer than two prompt lengths were measured.

    ``chunk_tokens`` is the size of a full chunk; None takes the chunks of a prompt as equal.
    """
    if len({probe.tokens for probe in probes}) < _MIN_LENGTHS:
        return None
    tokens = np.array([p.tokens for p in probes], dtype=np.float64)
    chunks = np.array([p.chunks for p in probes], dtype=np.float64)
    times = np.array([p.prefill_ms for p in probes], dtype=np.float64)
    sizes = [_sizes(p.tokens, p.chunks, chunk_tokens) for p in probes]
    candidates = np.linspace(
        0.0, _FREE_SHARE * max(float(s.max()) for s in sizes), _FREE_CANDIDATES
    )
    # paid[i, j]: tokens that probe j pays for at the i-th count of free ones.
    paid = np.array([[np.maximum(s - free, 0.0).sum() for s in sizes] for free in candidates])
    rng = np.random.default_rng(seed)
    draws = [rng.integers(times.size, size=times.size) for _ in range(_RESAMPLES)]
    draws = [d for d in draws if np.unique(tokens[d]).size >= _MIN_LENGTHS]
    found = [_best(chunks[d], tokens[d], times[d], paid[:, d], candidates) for d in draws]
    free_low = np.percentile([item.free for item in found] or [0.0], 2.5)
    if free_low > 0:
        fit = _hinge(times, paid, candidates)
        slopes = [item.per_token for item in found if item.free > 0]
    else:
        fit = _offset(chunks, tokens, times)
        slopes = [_offset(chunks[d], tokens[d], times[d]).per_token for d in draws]
    low, high = np.percentile(slopes or [fit.per_token], (2.5, 97.5))
    at = int(np.argmin(np.abs(candidates - fit.free)))
    residual = times - fit.per_chunk * chunks - fit.per_token * paid[at]
    return PrefillFit(
        prefill_ms_per_token=fit.per_token,
        lo=min(float(low), fit.per_token),
        hi=max(float(high), fit.per_token),
        chunk_ms=fit.per_chunk,
        free_tokens=fit.free,
        residual_ms=float(np.median(np.abs(residual))),
        probes=len(probes),
    )


def _sizes(tokens: int, chunks: int, chunk_tokens: int | None) -> FloatArray:
    """Tokens of each chunk of a prompt, shape (chunks,)."""
    if chunk_tokens is None or chunks != -(-tokens // chunk_tokens):
        return np.full(chunks, tokens / chunks)
    rest = tokens - chunk_tokens * (chunks - 1)
    return np.array([*[chunk_tokens] * (chunks - 1), rest], dtype=np.float64)


def _best(
    chunks: FloatArray,
    tokens: FloatArray,
    times: FloatArray,
    paid: FloatArray,
    candidates: FloatArray,
) -> _Candidate:
    return min(
        _offset(chunks, tokens, times), _hinge(times, paid, candidates), key=lambda c: c.loss
    )


def _levels(times: FloatArray) -> FloatArray:
    """What errors are relative to: the time itself, or a tenth of the usual one."""
    least = 0.1 * float(np.median(np.abs(times))) or 1.0
    return np.asarray(np.maximum(np.abs(times), least), dtype=np.float64)


def _loss(relative: FloatArray) -> FloatArray:
    """Soft-l1, summed over the last axis."""
    each = np.sqrt(1.0 + (relative / _SOFT) ** 2) - 1.0
    return np.asarray(each.sum(axis=-1), dtype=np.float64)


def _hinge(times: FloatArray, paid: FloatArray, candidates: FloatArray) -> _Candidate:
    """Best count of free tokens, by iterated reweighting at all candidates at once."""
    level = _levels(times)
    design, target = paid / level, times / level
    weights = np.ones_like(design)
    slopes = np.zeros(len(candidates))
    for _ in range(_REWEIGHTINGS):
        power = (weights * design**2).sum(axis=1)
        slopes = np.maximum((weights * design * target).sum(axis=1) / np.maximum(power, 1e-300), 0)
        weights = 1.0 / np.sqrt(1.0 + ((design * slopes[:, None] - target) / _SOFT) ** 2)
    losses = _loss(design * slopes[:, None] - target)
    at = int(np.argmin(losses))
    return _Candidate(0.0, float(slopes[at]), float(candidates[at]), float(losses[at]))


def _offset(chunks: FloatArray, tokens: FloatArray, times: FloatArray) -> _Candidate:
    """Non-negative ms per chunk and per token, relative errors, outliers damped."""
    level = _levels(times)
    design = np.column_stack([chunks, tokens]) / level[:, None]
    scale = np.linalg.norm(design, axis=0)
    solved = least_squares(
        lambda coefficients: (design / scale) @ coefficients - times / level,
        x0=np.full(2, 0.5 * float(np.linalg.norm(times / level))),
        bounds=(0.0, np.inf),
        loss="soft_l1",
        f_scale=_SOFT,
    ).x
    # The solver stops a hair inside its bounds.
    solved[solved < _NOTHING * solved.max()] = 0.0
    loss = float(_loss((design / scale) @ solved - times / level))
    return _Candidate(float(solved[0] / scale[0]), float(solved[1] / scale[1]), 0.0, loss)
