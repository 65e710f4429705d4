"""Analytic derivatives of the predictive law, by the chain rule through its parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from controllers.laws.base import LawSample
from controllers.laws.jacobian import SAMPLE_FIELDS, LawJacobian
from controllers.laws.predictive import PredictiveLaw, PredictiveState, largest_batch
from controllers.laws.two_gain import update_derivatives

STATES = PredictiveState._fields
_N = len(STATES)
_X = {name: i for i, name in enumerate(STATES)}
_U = {name: _N + i for i, name in enumerate(SAMPLE_FIELDS)}

Gradient = NDArray[np.float64]
"""Derivatives by (state entries, sample fields), shape (states + fields,)."""


def _unit(index: int) -> Gradient:
    gradient = np.zeros(_N + len(SAMPLE_FIELDS))
    gradient[index] = 1.0
    return gradient


def jacobian(law: PredictiveLaw, sample: LawSample, state: PredictiveState) -> LawJacobian:
    """d next_state / d (state, sample)."""
    config, model = law.config, law.config.latency
    gains = (state.gain_decode, state.gain_prefill)
    decode = law.decode_ms(sample.batch, sample.kv_tokens)
    prefill = model.prefill_ms_per_token * sample.prefill_tokens
    d_decode = model.slope_ms(sample.batch) * _unit(_U["batch"])
    d_decode += model.kappa_ms_per_token * _unit(_U["kv_tokens"])
    d_prefill = model.prefill_ms_per_token * _unit(_U["prefill_tokens"])
    inputs = np.array(
        [
            _unit(_X["gain_decode"]),
            _unit(_X["gain_prefill"]),
            _unit(_U["step_ms"]),
            d_decode,
            d_prefill,
        ]
    )
    rows = {name: _unit(_X[name]) for name in STATES}

    if sample.step_ms > 0:
        update = update_derivatives(config.gains, gains, sample.step_ms, decode, prefill)
        rows["gain_decode"] = np.array(update.derivatives[0]) @ inputs
        rows["gain_prefill"] = np.array(update.derivatives[1]) @ inputs
        predicted = gains[0] * decode + gains[1] * prefill
        residual = law.residual(sample.step_ms, predicted)
        rows["residual_var"] = (1 - config.residual_weight) * _unit(_X["residual_var"])
        if 0 < abs(residual) < law.residual_clip:
            by_inputs = np.array(
                [
                    -decode / predicted,
                    -prefill / predicted,
                    1 / sample.step_ms,
                    -gains[0] / predicted,
                    -gains[1] / predicted,
                ]
            )
            rows["residual_var"] += 2 * config.residual_weight * residual * (by_inputs @ inputs)

    if sample.batch > 0:
        seeded = state.row_tokens > 0
        weight = config.row_weight if seeded else 1.0
        for name, field in (("row_tokens", "load_tokens"), ("row_kv_tokens", "kv_tokens")):
            total = getattr(sample, field)
            rows[name] = (1 - weight) * _unit(_X[name])
            rows[name] += weight / sample.batch * _unit(_U[field])
            rows[name] -= weight * total / sample.batch**2 * _unit(_U["batch"])
    rows["prefill_per_step"] = (1 - config.prefill_weight) * _unit(_X["prefill_per_step"])
    rows["prefill_per_step"] += config.prefill_weight * _unit(_U["prefill_tokens"])

    _, after = law.step(sample, state)
    if after.row_tokens > 0:
        rows["window_tokens"] = _window_gradient(law, after, gains, rows)
    table = np.array([rows[name] for name in STATES])
    return LawJacobian(
        tuple(tuple(row) for row in table[:, :_N].tolist()),
        tuple(tuple(row) for row in table[:, _N:].tolist()),
    )


def _window_gradient(
    law: PredictiveLaw,
    after: PredictiveState,
    gains: tuple[float, float],
    rows: dict[str, Gradient],
) -> Gradient:
    """Derivatives of the window, which rests on the means after and the gains before."""
    config, model = law.config, law.config.latency
    if config.clamps_bind(law.bound(after, gains)):
        return np.zeros(_N + len(SAMPLE_FIELDS))
    theta = law.theta(after.residual_var)
    d_theta = np.zeros(_N + len(SAMPLE_FIELDS))
    if config.theta_min < theta < config.theta_max:
        root = after.residual_var**0.5
        d_theta = -config.margin_sigmas * theta / (2 * root) * rows["residual_var"]
    objective = config.itl_objective_ms
    prompts = gains[1] * model.prefill_ms_per_token * after.prefill_per_step
    ceiling = config.prefill_share_max * theta * objective
    if prompts < ceiling:
        d_prompts = model.prefill_ms_per_token * (
            after.prefill_per_step * _unit(_X["gain_prefill"]) + gains[1] * rows["prefill_per_step"]
        )
    else:
        prompts, d_prompts = ceiling, config.prefill_share_max * objective * d_theta
    budget = theta * objective - prompts
    d_step = (objective * d_theta - d_prompts) / gains[0]
    d_step -= budget / gains[0] ** 2 * _unit(_X["gain_decode"])
    bound = largest_batch(model, budget / gains[0], after.row_kv_tokens)
    d_batch = bound.by_step_ms * d_step + bound.by_row_kv * rows["row_kv_tokens"]
    return d_batch * after.row_tokens + bound.batch * rows["row_tokens"]
