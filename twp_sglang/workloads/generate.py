"""Generated workloads: streams of requests, several at a time, in phases one after another.

A stream draws arrivals and lengths; a phase runs its streams together for a time (a
mixture of clients); phases follow each other. Everything is a function of the seed, and each
quantity has a random stream of its own, so that changing a rate leaves the lengths alone.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, ValidationError

from controllers.laws.base import FrozenModel
from twp_sglang.benchmarking.lengths import parse_lengths
from twp_sglang.workloads.fields import WorkloadError, opened
from twp_sglang.workloads.request import PrefixBlock, Request
from twp_sglang.workloads.workload import Workload, in_order

Times = NDArray[np.float64]

MOST_REQUESTS = 5_000_000
"""A generator asked for more has a slip in its rate or duration."""


_BLOCK = 1024
"""Lengths drawn at a time."""


def _lengths(text: str) -> str:
    parse_lengths(text)
    return text


Lengths = Annotated[str, AfterValidator(_lengths)]
"""``128``, ``30-80@.6,120-250@.4``: see :mod:`twp_sglang.benchmarking.lengths`."""


class Poisson(FrozenModel):
    """Independent arrivals at a constant rate."""

    kind: Literal["poisson"] = "poisson"
    rate_rps: float = Field(gt=0)


class Even(FrozenModel):
    """Arrivals at equal gaps."""

    kind: Literal["even"] = "even"
    rate_rps: float = Field(gt=0)


class GammaBursts(FrozenModel):
    """Gamma-distributed gaps: ``cv`` above 1 is bursty, 1 is Poisson, below is regular."""

    kind: Literal["gamma"] = "gamma"
    rate_rps: float = Field(gt=0)
    cv: float = Field(gt=0, le=100)


class OnOff(FrozenModel):
    """Poisson at one rate for ``on_s``, at another for ``off_s``, in turn."""

    kind: Literal["on-off"] = "on-off"
    on_rps: float = Field(gt=0)
    off_rps: float = Field(default=0.0, ge=0)
    on_s: float = Field(gt=0)
    off_s: float = Field(gt=0)


class Ramp(FrozenModel):
    """Poisson with a rate that changes linearly over the phase."""

    kind: Literal["ramp"] = "ramp"
    from_rps: float = Field(ge=0)
    to_rps: float = Field(ge=0)


Arrivals = Annotated[Poisson | Even | GammaBursts | OnOff | Ramp, Field(discriminator="kind")]


class Stream(FrozenModel):
    """Requests of one kind. ``shared_prefix_tokens`` start every prompt of the stream."""

    arrivals: Arrivals
    input_tokens: Lengths
    output_tokens: Lengths
    client: str = ""
    priority: int = 0
    shared_prefix_tokens: int = Field(default=0, ge=0)


class Phase(FrozenModel):
    """Streams running together for ``duration_s``."""

    duration_s: float = Field(gt=0)
    streams: tuple[Stream, ...] = Field(min_length=1)


class WorkloadSpec(FrozenModel):
    """Phases in sequence."""

    name: str = "generated"
    phases: tuple[Phase, ...] = Field(min_length=1)


def read_spec(path: Path) -> WorkloadSpec:
    """A specification from a TOML or JSON file.

    Raises:
        WorkloadError: the file cannot be read, or a field is wrong.
    """
    with opened(path) as handle:
        text = handle.read()
    try:
        loaded = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return WorkloadSpec.model_validate(loaded)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise WorkloadError(f"{path}: cannot be read ({error})") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise WorkloadError(f"{path}: {place} = {first.get('input')!r}: {first['msg']}") from None


def generate(spec: WorkloadSpec, seed: int = 0, limit: int | None = None) -> Workload:
    """Draw a workload.

    Raises:
        WorkloadError: it would hold no request, or more than five million.
    """
    requests: list[Request] = []
    start_s = 0.0
    for number, phase in enumerate(spec.phases):
        for index, stream in enumerate(phase.streams):
            requests += _draw(stream, phase.duration_s, start_s, (seed, number, index))
            if len(requests) > MOST_REQUESTS:
                raise WorkloadError(
                    f"{spec.name}: more than {MOST_REQUESTS:,} requests; lower a rate or a duration"
                )
        start_s += phase.duration_s
    requests.sort(key=lambda request: request.arrival_s)
    return in_order(spec.name, requests[:limit])


def _draw(
    stream: Stream, duration_s: float, start_s: float, seed: tuple[int, ...]
) -> list[Request]:
    times = _arrivals(stream.arrivals, duration_s, np.random.default_rng([*seed, 0]))
    count = len(times)
    inputs = _sample(stream.input_tokens, count, np.random.default_rng([*seed, 1]))
    outputs = _sample(stream.output_tokens, count, np.random.default_rng([*seed, 2]))
    key = f"{stream.client}/{stream.input_tokens}"
    shared = stream.shared_prefix_tokens
    return [
        Request(
            start_s + float(t),
            given,
            made,
            client=stream.client,
            priority=stream.priority,
            prefix=(PrefixBlock(key, shared),) if 0 < shared <= given else (),
        )
        for t, given, made in zip(times, inputs, outputs, strict=True)
    ]


def _sample(text: str, count: int, rng: np.random.Generator) -> list[int]:
    """``count`` lengths, the first of them the same for every ``count``."""
    law = parse_lengths(text)
    lengths: list[int] = []
    while len(lengths) < count:
        lengths += law.sample(_BLOCK, rng).tolist()
    return lengths[:count]


def _arrivals(law: Arrivals, duration_s: float, rng: np.random.Generator) -> Times:
    """Times in [0, duration_s)."""
    if isinstance(law, Ramp):
        # Time change: unit-rate arrivals through the inverse of the integrated rate.
        slope = (law.to_rps - law.from_rps) / duration_s
        work = _unit(0.5 * (law.from_rps + law.to_rps) * duration_s, rng)
        if slope == 0:
            return work / law.from_rps if law.from_rps else work[:0]
        root = np.sqrt(np.maximum(law.from_rps**2 + 2 * slope * work, 0.0))
        return np.asarray((root - law.from_rps) / slope)
    if isinstance(law, OnOff):
        period = law.on_s + law.off_s
        edges = [0.0]
        rates: list[float] = []
        while edges[-1] < duration_s:
            at = len(rates) // 2 * period
            rates.append(law.off_rps if len(rates) % 2 else law.on_rps)
            edges.append(min(at + (period if len(rates) % 2 == 0 else law.on_s), duration_s))
        upto = np.concatenate(([0.0], np.cumsum(np.diff(edges) * rates)))
        return np.asarray(np.interp(_unit(float(upto[-1]), rng), upto, edges))
    expected = law.rate_rps * duration_s
    _check(expected)
    if isinstance(law, Even):
        return np.arange(int(np.ceil(expected))) / law.rate_rps
    if isinstance(law, Poisson):
        return _unit(expected, rng) / law.rate_rps
    shape = 1.0 / law.cv**2
    parts = [np.empty(0)]
    total = 0.0
    block = max(64, int(1.2 * expected))
    while total < duration_s:
        gaps = rng.gamma(shape, 1.0 / (law.rate_rps * shape), block)
        parts.append(total + np.cumsum(gaps))
        total = float(parts[-1][-1])
    times = np.concatenate(parts)
    return times[times < duration_s]


def _unit(length: float, rng: np.random.Generator) -> Times:
    """Arrivals of a unit-rate Poisson process in [0, length)."""
    _check(length)
    count = int(rng.poisson(length))
    return np.sort(rng.uniform(0.0, length, count))


def _check(expected: float) -> None:
    if expected > MOST_REQUESTS:
        raise WorkloadError(
            f"about {expected:,.0f} requests in one stream, more than {MOST_REQUESTS:,}; lower its "
            "rate or the duration"
        )
