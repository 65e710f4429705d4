"""Times every point of a plan, and keeps what it has at every moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from controllers.laws.base import FrozenModel
from twp_sglang.profiling.attention import Attention, NoAttention
from twp_sglang.profiling.decoder import Decoder
from twp_sglang.profiling.settings import Graphs
from twp_sglang.profiling.step_inputs import StepInputs, lengths_of, step_inputs
from twp_sglang.profiling.step_points import StepPoint
from twp_sglang.profiling.stopwatch import prepare, times_ms

_PLAN_REPEATS = 5

HEADLINE = StepPoint("decode", 64, 2048)
"""The step whose distance from the roofline is taken apart: a served batch at a usual context."""


class Measured(FrozenModel):
    """One point.

    Attributes:
        steps_ms: each timed run.
        captured: it ran as a CUDA graph.
        plan_ms: host time of the attention's plan for this step, once, outside the times.
    """

    point: StepPoint
    steps_ms: tuple[float, ...]
    captured: bool
    plan_ms: float
    note: str = ""

    @property
    def median_ms(self) -> float:
        """The point's time."""
        return median(self.steps_ms)

    @property
    def spread_percent(self) -> float:
        """Half the distance of the quartiles, % of the median."""
        ordered = sorted(self.steps_ms)
        quarter = len(ordered) // 4
        return 50.0 * (ordered[-1 - quarter] - ordered[quarter]) / self.median_ms


class Parts(FrozenModel):
    """One decode step taken apart: the same step without its attention, and the rest."""

    point: StepPoint
    step_ms: float
    without_attention_ms: float

    @property
    def attention_ms(self) -> float:
        """What attention adds."""
        return max(self.step_ms - self.without_attention_ms, 0.0)


class Bench:
    """A decoder on a device, ready to time points."""

    def __init__(
        self, decoder: Decoder, device: torch.device, *, graphs: Graphs, repeats: int, seed: int
    ) -> None:
        self._decoder, self._device = decoder, device
        self._graphs, self._repeats, self._seed = graphs, repeats, seed
        slots = decoder.pool.keys[0].shape[0]
        order = torch.randperm(slots, generator=torch.Generator().manual_seed(seed))
        self._slots = order.to(device)
        self._memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def measure(self, point: StepPoint) -> Measured:
        """Time ``point``."""
        with torch.inference_mode():
            return self._measure(point)

    def _measure(self, point: StepPoint) -> Measured:
        step = self._inputs(point)
        begun = time.perf_counter()
        attention = self._decoder.attention
        prepared = prepare(
            self._decoder, step, self._device, graph=self._as_graph(point), pool=self._memory
        )
        times = times_ms(prepared.run, self._device, self._repeats)
        plan_ms = _host_plan_ms(attention, step, fallback=1e3 * (time.perf_counter() - begun))
        return Measured(
            point=point,
            steps_ms=tuple(times),
            captured=prepared.captured,
            plan_ms=plan_ms,
            note=prepared.note,
        )

    def take_apart(self, measured: Measured) -> Parts:
        """The step of ``measured`` without its attention."""
        with torch.inference_mode():
            return self._take_apart(measured)

    def _take_apart(self, measured: Measured) -> Parts:
        decoder = self._decoder
        bare = Decoder(
            decoder.shape, decoder.weights, decoder.pool, NoAttention(decoder.attention.elementwise)
        )
        step = self._inputs(measured.point)
        prepared = prepare(
            bare, step, self._device, graph=self._as_graph(measured.point), pool=self._memory
        )
        times = times_ms(prepared.run, self._device, self._repeats)
        return Parts(
            point=measured.point,
            step_ms=measured.median_ms,
            without_attention_ms=median(times),
        )

    def _as_graph(self, point: StepPoint) -> bool:
        return self._graphs == "all" or (self._graphs == "decode" and point.kind == "decode")

    def _inputs(self, point: StepPoint) -> StepInputs:
        return step_inputs(
            lengths_of(point), self._slots, self._decoder.shape.vocab_size, self._seed
        )


def _host_plan_ms(attention: Attention, step: StepInputs, fallback: float) -> float:
    """Host time of planning a decode step again; of the whole set-up for other steps.

    An engine plans every step on the host; it overlaps with the device where scheduling does.
    """
    replan: Callable[[StepInputs], Any] | None = getattr(attention, "replan", None)
    if replan is None or not step.decode_only:
        return fallback
    found = []
    for _ in range(_PLAN_REPEATS):
        begun = time.perf_counter()
        replan(step)
        found.append(1e3 * (time.perf_counter() - begun))
    return median(found)


def headline_of(measured: list[Measured]) -> Measured | None:
    """The measured decode point nearest to :data:`HEADLINE`, in factors of batch and context."""

    def distance(point: StepPoint) -> float:
        batch = max(point.batch, HEADLINE.batch) / min(point.batch, HEADLINE.batch)
        context = max(point.context, HEADLINE.context) / min(point.context, HEADLINE.context)
        return float(batch * context)

    decode = [found for found in measured if found.point.kind == "decode"]
    return min(decode, key=lambda found: distance(found.point), default=None)
