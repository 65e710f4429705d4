"""Milliseconds per prompt token from prefill probes.

prefill_ms = per_chunk * chunks + per_token * tokens, both not negative. Only per_token
scales with the prompt budget of a step; what a chunk costs whatever its size (launching,
attention set-up) would bias it, so it is told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from pydantic import Field
from scipy.optimize import least_squares

from controllers.laws.base import FrozenModel
from twp_sglang.calibration.samples import FloatArray, PrefillProbe

_RESAMPLES: Final = 200
_MIN_LENGTHS: Final = 2
_NOTHING: Final = 1e-6


class PrefillFit(FrozenModel):
    """Cost of prefill beside decoding requests."""

    prefill_ms_per_token: float = Field(ge=0)
    lo: float = Field(description="2.5 % quantile of the bootstrap over probes")
    hi: float = Field(description="97.5 % quantile")
    chunk_ms: float = Field(ge=0, description="cost of a chunk whatever its size")
    residual_ms: float = Field(description="median distance of a probe from the fit")
    probes: int


def fit_prefill(probes: Sequence[PrefillProbe], seed: int = 0) -> PrefillFit | None:
    """Robust fit; None where fewer than two prompt lengths were measured."""
    if len({probe.tokens for probe in probes}) < _MIN_LENGTHS:
        return None
    tokens = np.array([p.tokens for p in probes], dtype=np.float64)
    chunks = np.array([p.chunks for p in probes], dtype=np.float64)
    times = np.array([p.prefill_ms for p in probes], dtype=np.float64)
    per_chunk, per_token = _solve(chunks, tokens, times)
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(_RESAMPLES):
        chosen = rng.integers(times.size, size=times.size)
        if np.unique(tokens[chosen]).size >= _MIN_LENGTHS:
            found.append(_solve(chunks[chosen], tokens[chosen], times[chosen])[1])
    low, high = np.percentile(found or [per_token], (2.5, 97.5))
    residual = times - per_chunk * chunks - per_token * tokens
    return PrefillFit(
        prefill_ms_per_token=per_token,
        lo=min(float(low), per_token),
        hi=max(float(high), per_token),
        chunk_ms=per_chunk,
        residual_ms=float(np.median(np.abs(residual))),
        probes=len(probes),
    )


def _solve(chunks: FloatArray, tokens: FloatArray, times: FloatArray) -> tuple[float, float]:
    """Non-negative (ms per chunk, ms per token), relative errors, outliers damped."""
    level = np.maximum(np.abs(times), 0.1 * float(np.median(np.abs(times))) or 1.0)
    design = np.column_stack([chunks, tokens]) / level[:, None]
    scale = np.linalg.norm(design, axis=0)
    solved = least_squares(
        lambda coefficients: (design / scale) @ coefficients - times / level,
        x0=np.full(2, 0.5 * float(np.linalg.norm(times / level))),
        bounds=(0.0, np.inf),
        loss="soft_l1",
        f_scale=0.1,
    ).x
    # The solver stops a hair inside its bounds.
    solved[solved < _NOTHING * solved.max()] = 0.0
    return float(solved[0] / scale[0]), float(solved[1] / scale[1])
