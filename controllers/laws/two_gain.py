"""Online correction of a calibrated step model by two gains, normalised LMS with leak.

    l ~ g_d d + g_p p,   d = modelled decode part, p = modelled prefill part of the step, ms
    e = l - (g_d d + g_p p)
    g <- clip(g + mu e phi/|phi|^2 - leak (g - 1)),   phi = (d, p)

Only two gains, because that is what closed-loop data can carry: the controller that uses the
model holds l constant, so most directions of a richer model are never excited. The leak pulls
what is not excited back to the calibration instead of letting it drift (the analysis is in
:mod:`controllers.adaptation`). Normalised LMS: Haykin, Adaptive Filter Theory, ch. 7; leakage:
Ioannou and Sun, Robust Adaptive Control, 8.4.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field, model_validator

from controllers.laws.base import FrozenModel


class TwoGainConfig(FrozenModel):
    """Step size, leak, clamps and outlier bound of the correction."""

    step_size: float = Field(
        default=0.02,
        gt=0,
        lt=2,
        description="mu; converges for 0 < mu < 2, and 0.02 averages over 50 steps",
    )
    leak: float = Field(
        default=2e-4,
        ge=0,
        lt=1,
        description="pull towards 1 per step; a hundredth of mu, so it biases the excited "
        "direction by 1 % of the model's error and forgets an unexcited one in 5,000 steps",
    )
    decode_min: float = Field(default=0.5, gt=0, description="half the calibration")
    decode_max: float = Field(default=2.0, gt=0, description="twice the calibration")
    prefill_min: float = Field(
        default=0.4, gt=0, description="wider than decode: prefill cost varies with the prefix"
    )
    prefill_max: float = Field(default=2.5, gt=0, description="as prefill_min")
    drop_above: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="errors above this part of the larger of step and prediction are not "
        "learned from: a pause of the process says nothing about the model",
    )

    @model_validator(mode="after")
    def _clamps_hold_one(self) -> TwoGainConfig:
        for name in ("decode", "prefill"):
            low, high = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if not low <= 1.0 <= high:
                raise ValueError(
                    f"{name}_min = {low:g} and {name}_max = {high:g} must enclose 1, the "
                    "calibrated gain"
                )
        return self


class GainUpdate(NamedTuple):
    """Next gains and their derivatives by (g_d, g_p, l, d, p); rows: decode, prefill."""

    gains: tuple[float, float]
    derivatives: tuple[tuple[float, ...], tuple[float, ...]]


def is_outlier(config: TwoGainConfig, step_ms: float, predicted_ms: float) -> bool:
    """Whether the error is too large to learn from, or the step was not timed at all."""
    bound = config.drop_above * max(step_ms, predicted_ms)
    return step_ms <= 0 or predicted_ms <= 0 or abs(step_ms - predicted_ms) > bound


def update_gains(
    config: TwoGainConfig,
    gains: tuple[float, float],
    step_ms: float,
    decode_ms: float,
    prefill_ms: float,
) -> tuple[float, float]:
    """Next (g_d, g_p)."""
    g_decode, g_prefill = gains
    predicted = g_decode * decode_ms + g_prefill * prefill_ms
    if is_outlier(config, step_ms, predicted):
        return gains
    scale = config.step_size * (step_ms - predicted) / (decode_ms**2 + prefill_ms**2)
    g_decode += scale * decode_ms - config.leak * (g_decode - 1.0)
    g_prefill += scale * prefill_ms - config.leak * (g_prefill - 1.0)
    return (
        min(max(g_decode, config.decode_min), config.decode_max),
        min(max(g_prefill, config.prefill_min), config.prefill_max),
    )


def update_derivatives(
    config: TwoGainConfig,
    gains: tuple[float, float],
    step_ms: float,
    decode_ms: float,
    prefill_ms: float,
) -> GainUpdate:
    """As :func:`update_gains`, with derivatives; zero where a clamp binds."""
    after = update_gains(config, gains, step_ms, decode_ms, prefill_ms)
    g_d, g_p = gains
    d, p, mu = decode_ms, prefill_ms, config.step_size
    error = step_ms - (g_d * d + g_p * p)
    if is_outlier(config, step_ms, step_ms - error):
        return GainUpdate(after, ((1.0, 0, 0, 0, 0), (0, 1.0, 0, 0, 0)))
    norm = d * d + p * p
    stay = 1.0 - config.leak
    by_decode = (
        stay - mu * d * d / norm,
        -mu * d * p / norm,
        mu * d / norm,
        mu * ((error - g_d * d) / norm - 2 * error * d * d / norm**2),
        mu * (-g_p * d / norm - 2 * error * d * p / norm**2),
    )
    by_prefill = (
        -mu * d * p / norm,
        stay - mu * p * p / norm,
        mu * p / norm,
        mu * (-g_d * p / norm - 2 * error * d * p / norm**2),
        mu * ((error - g_p * p) / norm - 2 * error * p * p / norm**2),
    )
    zero = (0.0,) * 5
    return GainUpdate(
        after,
        (
            by_decode if config.decode_min < after[0] < config.decode_max else zero,
            by_prefill if config.prefill_min < after[1] < config.prefill_max else zero,
        ),
    )
