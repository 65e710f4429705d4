"""l_min, B0 and alpha from decode steps at held batch sizes.

The regression, its intervals and the decision whether there is a knee at all are those of
:mod:`controllers.identification`. What is decided here: how the result reads as the
paper's three numbers, and what stands in for a knee that was not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from pydantic import Field

from controllers.identification import Estimate, Identification, identify
from controllers.laws.base import FrozenModel
from controllers.models import LatencyModel
from twp_sglang.calibration.samples import (
    DISTURBED,
    DecodePoint,
    FloatArray,
    median,
    undisturbed,
)
from twp_sglang.calibration.settings import MIN_BATCH_SIZES
from twp_sglang.calibration.sweep_trace import as_trace, at_base_context, context_tokens

Shape = Literal["knee", "line", "flat", "unresolved"]

_ALONE_FASTER: Final = 0.05
_NO_LENGTHS: Final = "no-lengths"
_FLAT: Final = {"knee-not-reached", "response-too-small"}


class FitRefused(Exception):
    """The measurements cannot carry a fit; the message says why."""


class DecodeFit(FrozenModel):
    """The step time over the batch, and the paper's numbers read off it.

    All at ``context_tokens`` KV tokens per request, those of the shortest context measured.
    """

    shape: Shape = Field(
        description="knee: a change of slope is established; line: rises along one line; flat: "
        "does not rise; unresolved: the data do not decide, see the warnings"
    )
    b0: int = Field(
        ge=1, description="saturation batch, the knee to the nearest request where there is one"
    )
    l_min_ms: float = Field(gt=0, description="decode step time at the knee, or at b0")
    alpha_ms: float | None = Field(description="slope above b0, ms per request; None if not seen")
    below_ms: float | None = Field(description="slope below b0, ms per request; None if not seen")
    x: float | None = Field(description="alpha b0 / l_min; throughput peaks at b0 only above 1")
    context_tokens: float
    model: LatencyModel | None = Field(description="the fitted step time, None if unresolved")
    predicts: LatencyModel | None = Field(
        default=None,
        description="the same even where a knee is not established: it describes the steps that "
        "were measured, and policy slo plans with it",
    )
    intervals: dict[str, Estimate] = Field(
        default_factory=dict, description="joint 95 % intervals of the model's parameters"
    )
    noise_percent: float | None = Field(description="scatter of single steps about the model")
    fit_percent: float | None = Field(description="held-out fit")
    worst_residual_percent: float | None = Field(
        description="largest distance of a batch size's median from the model"
    )
    warnings: tuple[str, ...] = ()


def medians(points: Sequence[DecodePoint]) -> dict[int, float]:
    """Median step time at the shortest context, ms, by batch size, ascending."""
    base = at_base_context(points)
    return {
        batch: median(np.concatenate([p.steps.step_ms for p in base if p.batch == batch]))
        for batch in sorted({p.batch for p in base})
    }


def fit_decode(points: Sequence[DecodePoint], min_scaling: float, seed: int = 0) -> DecodeFit:
    """Fit the step time.

    Raises:
        FitRefused: too few batch sizes or steps.
    """
    sizes = sorted({point.batch for point in points})
    if len(sizes) < MIN_BATCH_SIZES:
        seen = ", ".join(map(str, sizes)) or "none"
        raise FitRefused(
            f"batch sizes measured: {seen}; a knee cannot be seen in fewer than {MIN_BATCH_SIZES}"
        )
    given, points = points, undisturbed(points)
    result = identify(as_trace(points), seed)
    if result.fit is None:
        raise FitRefused(" ".join(_refusals(result)))
    warnings: list[str] = []
    if len(points) < len(given):
        warnings.append(
            f"{len(given) - len(points)} of {len(given)} visits were more than "
            f"{100 * (DISTURBED - 1):.0f} % slower than the fastest of their batch size and were "
            "left out: something else ran on the machine (repeat on a quiet one, or --rounds 6)"
        )
    rest = [point for point in points if point.batch > 1]
    if len(sizes) > MIN_BATCH_SIZES and sizes[0] == 1:
        without = identify(as_trace(rest), seed)
        alone = median(np.concatenate([p.steps.step_ms for p in points if p.batch == 1]))
        jump = _jump(without, points, alone)
        if jump is not None and jump > _ALONE_FASTER:
            result = without
            warnings.append(
                f"a request alone is {100 * jump:.0f} % faster ({alone:.3g} ms) than the line of "
                "the larger batches says: batch 1 was left out of the fit, so that l_min is not "
                "taken from a step that no batch can reach"
            )
    return _read(result, points, min_scaling, warnings)


def _jump(without: Identification, points: Sequence[DecodePoint], alone: float) -> float | None:
    """By which share batch 1 lies below what the fit without it predicts."""
    if without.fit is None:
        return None
    predicted = _curve(_model(without), context_tokens(points), np.array([1.0]))[0]
    return float(1.0 - alone / predicted)


def _read(
    result: Identification,
    points: Sequence[DecodePoint],
    min_scaling: float,
    warnings: list[str],
) -> DecodeFit:
    summary = result.summary
    refusals = [item for item in summary.refusals if item.code != _NO_LENGTHS]
    context = context_tokens(points)
    at = medians(points)
    straight = result.fit is not None and not result.fit.terms.knee
    largest = max(at)
    model: LatencyModel | None = _model(result)
    shape: Shape
    b0, reason = _by_scaling(at, min_scaling)
    alpha: float | None = None
    below: float | None = None
    x: float | None = None
    if not refusals:
        shape = "line" if straight else "knee"
    elif {item.code for item in refusals} <= {
        "knee-not-reached",
        "response-too-small",
    } and straight:
        shape = "flat"
    else:
        shape, model = "unresolved", None
        warnings += [item.sentence() for item in refusals]
    if shape == "knee":
        assert model is not None
        b0 = max(round(model.b0), 1)
        l_min = _step(model, context, model.b0)
        below = _slope(model, context, model.b0 / 2)
        alpha = _slope(model, context, model.b0 + 1)
        x = alpha * b0 / l_min
        if x <= 1:
            warnings.append(
                f"throughput still rises beyond the knee (x = alpha b0 / l_min = {x:.2f} <= 1): a "
                "window at b0 holds latency and costs tokens per second"
            )
    else:
        l_min = at[b0] if model is None else _step(model, context, b0)
        if shape == "line":
            assert model is not None
            b0, reason = _by_scaling({b: _step(model, context, b) for b in at}, min_scaling)
            l_min = _step(model, context, b0)
            alpha = below = _slope(model, context, largest)
            x = alpha * b0 / l_min
        what = {
            "line": "the step time rises along one line, without a knee",
            "flat": f"the step time does not rise up to batch {largest}",
            "unresolved": "a knee is not established",
        }[shape]
        warnings.append(f"{what}; {reason}")
    if shape in ("knee", "line"):
        warnings += [note for note in summary.notes if not note.startswith("No knee")]
    return DecodeFit(
        shape=shape,
        b0=b0,
        l_min_ms=l_min,
        alpha_ms=alpha,
        below_ms=below,
        x=x,
        context_tokens=context,
        model=model,
        predicts=_model(result),
        intervals={} if model is None else _intervals(result),
        noise_percent=summary.noise_percent,
        fit_percent=summary.fit_percent,
        worst_residual_percent=None if model is None else _worst(model, context, at, warnings),
        warnings=tuple(warnings),
    )


def _by_scaling(step_ms: dict[int, float], min_scaling: float) -> tuple[int, str]:
    """Largest batch up to which growing it pays, and that in words.

    From one size to twice it, the rise of log tokens/s over the rise of log batch: 1 where
    the step time is flat, 0 where throughput stands still. A whole octave, because between
    neighbours the scatter of two medians would decide.
    """
    sizes = list(step_ms)
    for small in sizes:
        large = next((size for size in sizes if size >= 2 * small), None)
        if small == 1 or large is None:
            continue
        gain = 1.0 - math.log(step_ms[large] / step_ms[small]) / math.log(large / small)
        if gain < min_scaling:
            return small, (
                f"b0 = {small} is where the gain ends: from there to {large}, 1 % more requests "
                f"bring {max(gain, 0):.2f} % more tokens/s, less than --min-scaling "
                f"{min_scaling:g}"
            )
    return sizes[-1], (
        f"more requests bring more tokens/s everywhere measured, so b0 = {sizes[-1]} is the "
        "largest measured and a lower bound; measure larger batches with --max-batch to find more"
    )


def _model(result: Identification) -> LatencyModel:
    """The fitted coefficients as a latency model; a line has its knee at 0, without a bend."""
    assert result.fit is not None
    constant, a, alpha, kappa, _ = (max(float(c), 0.0) for c in result.fit.coefficients)
    b0 = float(result.fit.b0)
    return LatencyModel(
        l_min_ms=max(constant, 1e-6),
        b0=0.0 if math.isnan(b0) else b0,
        alpha_ms=alpha,
        a_ms=a,
        kappa_ms_per_token=kappa,
    )


def _curve(model: LatencyModel, context: float, batch: FloatArray) -> FloatArray:
    return np.asarray(model.step_ms(batch, kv_tokens=batch * context), dtype=np.float64)


def _step(model: LatencyModel, context: float, batch: float) -> float:
    return float(_curve(model, context, np.array([float(batch)]))[0])


def _slope(model: LatencyModel, context: float, batch: float) -> float:
    return model.slope_ms(batch) + model.kappa_ms_per_token * context


def _worst(model: LatencyModel, context: float, at: dict[int, float], warnings: list[str]) -> float:
    fitted = {batch for batch in at if batch > 1 or not any("batch 1 was" in w for w in warnings)}
    return max(abs(100.0 * (at[b] / _step(model, context, b) - 1.0)) for b in fitted)


def _intervals(result: Identification) -> dict[str, Estimate]:
    names = ("l_min_ms", "b0", "alpha_ms", "a_ms", "kappa_ms_per_token")
    found = {name: getattr(result.summary, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _refusals(result: Identification) -> list[str]:
    return [item.sentence() for item in result.summary.refusals if item.code != _NO_LENGTHS]
