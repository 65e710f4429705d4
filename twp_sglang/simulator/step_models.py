"""How long a step takes: models of (decoding rows, KV tokens read, prompt tokens).

    l = c + a B + alpha (B - B0)+ + kappa KV + p (prompt - free)+

The paper's plant is the piecewise one (a = kappa = p = 0); on current GPUs kappa and p carry
most of the step. ``free`` is what a memory-bound step computes at no cost: below it the
weights are still being read. A model is plain numbers; :class:`StepTimer` adds what one run
needs (scatter from its own seed).
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from controllers.laws.base import FrozenModel
from controllers.models.latency import LatencyModel

FloatArray = NDArray[np.float64]


class StepModel(Protocol):
    """Step time in ms. ``decode_steps_ms`` must equal ``step_ms`` to the bit."""

    leaps: bool
    """Whether a step's time depends on its arguments alone, so that many can be had at
    once."""

    def step_ms(self, rows: int, kv_tokens: int, prefill_tokens: int) -> float:
        """One step."""

    def decode_steps_ms(self, rows: int, kv_tokens: int, steps: int) -> FloatArray:
        """``steps`` decode steps of the same ``rows``, the first reading ``kv_tokens``."""


class AffineStep(FrozenModel):
    """The formula above. Piecewise in B and affine models are its special cases."""

    kind: Literal["affine"] = "affine"
    l_min_ms: float = Field(gt=0, description="constant c, ms")
    b0: float = Field(default=0.0, ge=0, description="knee B0, requests")
    alpha_ms: float = Field(default=0.0, ge=0, description="slope above the knee, ms per request")
    a_ms: float = Field(default=0.0, ge=0, description="slope at every B, ms per request")
    kappa_ms_per_token: float = Field(default=0.0, ge=0, description="ms per KV token read")
    prefill_ms_per_token: float = Field(default=0.0, ge=0, description="ms per prompt token")
    prefill_free_tokens: float = Field(
        default=0.0, ge=0, description="prompt tokens per step that cost nothing"
    )

    def latency_model(self) -> LatencyModel:
        """The same as a model of ``controllers``, which knows no free prompt tokens."""
        return LatencyModel(
            l_min_ms=self.l_min_ms,
            b0=self.b0,
            alpha_ms=self.alpha_ms,
            a_ms=self.a_ms,
            kappa_ms_per_token=self.kappa_ms_per_token,
            prefill_ms_per_token=self.prefill_ms_per_token,
        )


class Affine:
    """:class:`AffineStep`, ready to be asked once per step."""

    leaps = True

    def __init__(self, model: AffineStep) -> None:
        # Plain floats: attribute access on a pydantic model is felt at this rate.
        self._c = model.l_min_ms
        self._b0 = model.b0
        self._alpha = model.alpha_ms
        self._a = model.a_ms
        self._kappa = model.kappa_ms_per_token
        self._p = model.prefill_ms_per_token
        self._free = model.prefill_free_tokens

    def step_ms(self, rows: int, kv_tokens: int, prefill_tokens: int) -> float:
        """See :class:`StepModel`."""
        step = self._c + self._a * rows
        if rows > self._b0:
            step += self._alpha * (rows - self._b0)
        step += self._kappa * kv_tokens
        if prefill_tokens > self._free:
            step += self._p * (prefill_tokens - self._free)
        return step

    def decode_steps_ms(self, rows: int, kv_tokens: int, steps: int) -> FloatArray:
        """See :class:`StepModel`."""
        step = self._c + self._a * rows
        if rows > self._b0:
            step += self._alpha * (rows - self._b0)
        kv = np.arange(kv_tokens, kv_tokens + rows * steps, rows, dtype=np.float64)
        return np.asarray(step + self._kappa * kv)


class TableStep(FrozenModel):
    """Decode step times measured on a grid, with the affine prompt terms on top.

    ``decode_ms[i][j]`` is the time at ``rows[i]`` and mean context ``context_tokens[j]``;
    None where it was not measured. Between grid points it is interpolated linearly in both,
    a missing corner being read off its row by the slope of the last measured pair, and
    beyond the grid the outermost cell is continued.
    """

    kind: Literal["table"] = "table"
    rows: tuple[int, ...] = Field(min_length=2)
    context_tokens: tuple[int, ...] = Field(min_length=2)
    decode_ms: tuple[tuple[float | None, ...], ...]
    prefill_ms_per_token: float = Field(default=0.0, ge=0)
    prefill_free_tokens: float = Field(default=0.0, ge=0)


class Table:
    """:class:`TableStep`, completed and ready to be asked."""

    leaps = True

    def __init__(self, model: TableStep) -> None:
        """Complete the grid.

        Raises:
            ValueError: rows or contexts not ascending, a grid of another shape, or a row
                with fewer than two measured points.
        """
        self._rows = [float(value) for value in model.rows]
        self._contexts = [float(value) for value in model.context_tokens]
        for name, values in (("rows", self._rows), ("context_tokens", self._contexts)):
            if sorted(set(values)) != values:
                raise ValueError(f"table: {name} must ascend; they are {values}")
        shape = (len(model.decode_ms), {len(line) for line in model.decode_ms})
        if shape != (len(self._rows), {len(self._contexts)}):
            raise ValueError(
                f"table: decode_ms must hold {len(self._rows)} lines of "
                f"{len(self._contexts)} values"
            )
        self._grid = [
            _completed(line, self._contexts, rows)
            for line, rows in zip(model.decode_ms, model.rows, strict=True)
        ]
        self._p = model.prefill_ms_per_token
        self._free = model.prefill_free_tokens
        self._cell = (-1, 0)

    def step_ms(self, rows: int, kv_tokens: int, prefill_tokens: int) -> float:
        """See :class:`StepModel`. Without rows the constant of the first grid point."""
        # A prefill step reads the weights once: as a decode step of the smallest batch.
        step = self._decode(max(rows, 1), kv_tokens)
        if prefill_tokens > self._free:
            step += self._p * (prefill_tokens - self._free)
        return step

    def decode_steps_ms(self, rows: int, kv_tokens: int, steps: int) -> FloatArray:
        """See :class:`StepModel`."""
        return np.array(
            [self._decode(rows, kv) for kv in range(kv_tokens, kv_tokens + rows * steps, rows)]
        )

    def _decode(self, rows: int, kv_tokens: int) -> float:
        context = kv_tokens / rows
        i = _cell_of(self._rows, rows)
        j = _cell_of(self._contexts, context)
        r0, r1 = self._rows[i], self._rows[i + 1]
        c0, c1 = self._contexts[j], self._contexts[j + 1]
        u = (rows - r0) / (r1 - r0)
        v = (context - c0) / (c1 - c0)
        low, high = self._grid[i], self._grid[i + 1]
        below = low[j] + v * (low[j + 1] - low[j])
        above = high[j] + v * (high[j + 1] - high[j])
        # Continued far below its first point a steep cell could fall under any real step.
        return max(below + u * (above - below), 0.5 * self._grid[0][0])


def _cell_of(points: list[float], value: float) -> int:
    for index in range(len(points) - 2, 0, -1):
        if value >= points[index]:
            return index
    return 0


def _completed(line: tuple[float | None, ...], contexts: list[float], rows: int) -> list[float]:
    known = [(c, value) for c, value in zip(contexts, line, strict=True) if value is not None]
    if len(known) < 2:
        raise ValueError(f"table: fewer than two measured contexts at {rows} rows")
    (c0, v0), (c1, v1) = known[-2:]
    slope = (v1 - v0) / (c1 - c0)
    by_context = dict(known)
    return [by_context.get(c, v1 + slope * (c - c1)) for c in contexts]


class StepTimer:
    """A model in one run: its own seed, its own scatter.

    ``noise`` is the standard deviation of the log of each step's factor, which has
    mean 1.
    """

    _BLOCK = 4096

    def __init__(self, model: StepModel, noise: float = 0.0, seed: int = 0) -> None:
        """Raises:
        ValueError: noise negative or not finite.
        """
        if not 0.0 <= noise < 10.0:
            raise ValueError(f"noise = {noise:g}: give a standard deviation from 0 to 10")
        self._model = model
        self._noise = noise
        self._rng = np.random.default_rng(seed)
        self._factors: list[float] = []
        self.leaps = model.leaps and noise == 0.0
        if noise == 0.0:
            self.step_ms = model.step_ms  # type: ignore[method-assign]
            self.decode_steps_ms = model.decode_steps_ms  # type: ignore[method-assign]

    def step_ms(self, rows: int, kv_tokens: int, prefill_tokens: int) -> float:
        """Duration of the next step, ms."""
        if not self._factors:
            draws = self._rng.normal(-0.5 * self._noise**2, self._noise, self._BLOCK)
            self._factors = np.exp(draws)[::-1].tolist()
        return self._model.step_ms(rows, kv_tokens, prefill_tokens) * self._factors.pop()

    def decode_steps_ms(self, rows: int, kv_tokens: int, steps: int) -> FloatArray:
        """Durations of the next ``steps`` steps; only where :attr:`leaps`."""
        return self._model.decode_steps_ms(rows, kv_tokens, steps)
