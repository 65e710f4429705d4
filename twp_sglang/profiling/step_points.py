"""Which steps are measured, in which order, and which of them the fit does not see."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from controllers.laws.base import FrozenModel

Kind = Literal["decode", "mixed", "prefill"]

_HELD_OUT_EVERY = 4
"""A quarter of the points judges the fit: enough to average over, few enough to fit well."""


class PlanError(ValueError):
    """No step can be measured; the message says why."""


class StepPoint(NamedTuple):
    """One kind of step.

    ``batch`` requests decode, each with ``context`` KV tokens before the step, beside
    ``chunk`` prompt tokens of one more request of which ``prefix`` tokens are in the cache.
    """

    kind: Kind
    batch: int
    context: int
    chunk: int = 0
    prefix: int = 0

    @property
    def kv_tokens(self) -> int:
        """KV tokens held when the step starts, as a step trace counts them."""
        return self.batch * self.context + self.prefix

    @property
    def tokens(self) -> int:
        """Tokens that pass through the decoder."""
        return self.batch + self.chunk

    @property
    def slots(self) -> int:
        """KV slots that the step needs, its own tokens included."""
        return self.kv_tokens + self.tokens

    def label(self) -> str:
        """For people."""
        decode = f"B {self.batch} x {self.context}" if self.batch else ""
        prompt = f"chunk {self.chunk} after {self.prefix}" if self.chunk else ""
        return f"{self.kind} {' + '.join(part for part in (decode, prompt) if part)}"


class Plan(FrozenModel):
    """The points in the order of measuring.

    Attributes:
        points: a run cut short has seen all corners of the grid before its inside.
        held_out: of these, the ones that the fit does not see.
        left_out: why points of the grid are missing.
    """

    points: tuple[StepPoint, ...]
    held_out: frozenset[StepPoint]
    left_out: tuple[str, ...] = ()


def make_plan(
    batches: Sequence[int],
    contexts: Sequence[int],
    chunks: Sequence[int],
    *,
    slots: int,
    context_limit: int,
    seed: int,
) -> Plan:
    """Decode over batch x context; mixed and prefill over chunk x a part of those.

    Args:
        slots: KV slots that there is memory for; larger points are left out.
        context_limit: longest sequence of the model.
        seed: of the order and of what is held out.

    Raises:
        PlanError: no point fits.
    """
    decode = [StepPoint("decode", b, c) for b in batches for c in contexts]
    # A mixed step is a decode step with a chunk in it: three batches show how they add up.
    beside = _spread(batches, 3)
    middle = contexts[len(contexts) // 2]
    mixed = [StepPoint("mixed", b, middle, n) for b in beside for n in chunks]
    # The step model has no term for a chunk's attention to a long prefix: prompts are
    # measured from their beginning and from the middle context on.
    mixed += [StepPoint("mixed", beside[-1], contexts[0], chunks[-1], middle)]
    prefill = [StepPoint("prefill", 0, 0, n, p) for n in chunks for p in (0, middle)]
    left_out, fitting = [], []
    for point in (*decode, *mixed, *prefill):
        longest = max(point.context + 1 if point.batch else 0, point.prefix + point.chunk)
        if longest > context_limit:
            left_out.append(f"{point.label()}: longer than the model's {context_limit} tokens")
        elif point.slots > slots:
            left_out.append(f"{point.label()}: {point.slots} KV slots, there is room for {slots}")
        else:
            fitting.append(point)
    if not fitting:
        raise PlanError(
            f"no step of the grid fits: {left_out[0]}; give smaller --batches or --contexts"
        )
    return _ordered(fitting, seed, tuple(left_out))


def _ordered(points: Iterable[StepPoint], seed: int, left_out: tuple[str, ...]) -> Plan:
    rng = random.Random(seed)
    corners: list[StepPoint] = []
    inside: list[StepPoint] = []
    by_kind: dict[str, list[StepPoint]] = {}
    for point in points:
        by_kind.setdefault(point.kind, []).append(point)
    for of_kind in by_kind.values():
        edge = _corners(of_kind)
        corners += edge
        rest = [point for point in of_kind if point not in edge]
        rng.shuffle(rest)
        inside += rest
    held = [point for of_kind in by_kind.values() for point in _held_out(of_kind, inside)]
    rng.shuffle(corners)
    rng.shuffle(inside)
    return Plan(points=(*corners, *inside), held_out=frozenset(held), left_out=left_out)


def _held_out(points: Sequence[StepPoint], inside: Sequence[StepPoint]) -> list[StepPoint]:
    """At most a quarter of ``points``, all of them ``inside``, and one of each batch or chunk:
    a bend between two values can only be found where both are in the fit."""
    taken: dict[tuple[int, int], StepPoint] = {}
    for point in inside:
        if point in points and len(taken) < len(points) // _HELD_OUT_EVERY:
            # Along a grid of decode steps the batch decides, along prompts the chunk.
            taken.setdefault((0, point.chunk) if point.chunk else (point.batch, 0), point)
    return list(taken.values())


def _corners(points: Sequence[StepPoint]) -> list[StepPoint]:
    """The extremes in every direction: a fit must not be asked to reach beyond its data."""
    axes = ("batch", "context", "chunk", "prefix")
    found = []
    for axis in axes:
        values = [getattr(point, axis) for point in points]
        for end in (min(values), max(values)):
            at_end = [point for point in points if getattr(point, axis) == end]
            found += [min(at_end, key=lambda p: p.slots), max(at_end, key=lambda p: p.slots)]
    return list(dict.fromkeys(found))


def _spread(values: Sequence[int], count: int) -> list[int]:
    """At most ``count`` of ``values``, the last among them, evenly by position."""
    if len(values) <= count:
        return list(values)
    step = (len(values) - 1) / count
    return [values[round((index + 1) * step)] for index in range(count)]
