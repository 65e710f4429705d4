"""Step time of a continuously batching engine as a function of what rides in the step.

l = c + a B + alpha (B - B0)+ + kappa KV + p prefill_tokens

The paper's plant (arXiv 2610.17689, II-A: flat up to B0, then rising) is a = kappa = 0.
On engines whose attention dominates, kappa carries most of the step instead.
"""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from controllers.laws.base import FrozenModel

MAX_COEFFICIENT = 1e9
"""Largest coefficient, ms: eleven days a step. Beyond it squares leave double precision."""

MIN_STEP_MS = 1e-6
"""Smallest constant of the step: a nanosecond."""


class LatencyModel(FrozenModel):
    """Affine step time with one knee in the batch.

    ``l_min_ms`` is the constant c. It is the step's floor, hence the baseline of the
    slowdown sigma = l / l_min, whenever ``a_ms`` and ``kappa_ms_per_token`` are small; where
    they are not, sigma exceeds 1 at any load and window laws on sigma read a biased signal.
    """

    l_min_ms: float = Field(
        default=43.0,
        ge=MIN_STEP_MS,
        le=MAX_COEFFICIENT,
        description="constant c, ms; the step time that the paper's figures show",
    )
    b0: float = Field(
        default=8.0,
        ge=0,
        le=MAX_COEFFICIENT,
        description="knee B0 in requests; the paper's saturation batch",
    )
    alpha_ms: float = Field(
        default=4.3,
        ge=0,
        le=MAX_COEFFICIENT,
        description="slope above the knee, ms per request; the paper gives none: a tenth of "
        "l_min, which makes x = alpha*B0/l_min = 0.8, a plant whose bandwidth still rises with B",
    )
    a_ms: float = Field(
        default=0.0,
        ge=0,
        le=MAX_COEFFICIENT,
        description="slope at every B, ms per request; flat in the paper",
    )
    kappa_ms_per_token: float = Field(
        default=0.0,
        ge=0,
        le=MAX_COEFFICIENT,
        description="ms per KV-cache token read; none in the paper",
    )
    prefill_ms_per_token: float = Field(
        default=0.0,
        ge=0,
        le=MAX_COEFFICIENT,
        description="ms per prompt token in the step; kept apart in the paper",
    )

    @property
    def x(self) -> float:
        """alpha B0 / l_min: B/l(B) has an inner optimum (at B0) only above 1 (with a = 0)."""
        return self.alpha_ms * self.b0 / self.l_min_ms

    @overload
    def step_ms(
        self, batch: float, kv_tokens: float = 0.0, prefill_tokens: float = 0.0
    ) -> float: ...

    @overload
    def step_ms(
        self, batch: ArrayLike, kv_tokens: ArrayLike = 0.0, prefill_tokens: ArrayLike = 0.0
    ) -> NDArray[np.float64]: ...

    def step_ms(
        self, batch: ArrayLike, kv_tokens: ArrayLike = 0.0, prefill_tokens: ArrayLike = 0.0
    ) -> float | NDArray[np.float64]:
        """Step time, ms, broadcast over the arguments; a float when all are scalars."""
        rows = np.asarray(batch, dtype=np.float64)
        step = (
            self.l_min_ms
            + self.a_ms * rows
            + self.alpha_ms * np.maximum(rows - self.b0, 0.0)
            + self.kappa_ms_per_token * np.asarray(kv_tokens, dtype=np.float64)
            + self.prefill_ms_per_token * np.asarray(prefill_tokens, dtype=np.float64)
        )
        return float(step) if np.ndim(step) == 0 else np.asarray(step, dtype=np.float64)

    def slope_ms(self, batch: float) -> float:
        """d l / d B in ms per request, the lower slope at the knee itself."""
        return self.a_ms + (self.alpha_ms if batch > self.b0 else 0.0)
