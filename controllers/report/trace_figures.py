"""Figures that show the trace itself beside what the model makes of it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from controllers.identification import Identification
from controllers.report.replay import WindowReplay
from controllers.report.style import BLUE, GREEN, GREY, INK, ORANGE, SKY, new_figure
from controllers.trace_reader import FloatArray, StepTrace

_MAX_DOTS: Final = 4000
_EXCERPT: Final = 600


def fit_figure(found: Identification) -> Figure:
    """Step time over batch and over KV, each with the other terms taken out, and the profile."""
    fit, samples = found.fit, found.samples
    assert fit is not None, "only drawn when a regression was possible"
    c, a, alpha, kappa, prefill = fit.coefficients
    knee = 0.0 if np.isnan(fit.b0) else fit.b0
    by_batch = a * samples.batch + (
        0 if np.isnan(fit.b0) else alpha * np.maximum(samples.batch - knee, 0)
    )
    by_kv, by_prefill = kappa * samples.kv_tokens, prefill * samples.prefill_tokens
    kv_mean = float(samples.kv_tokens.mean())
    shown = fit.robust > 0
    rows = np.flatnonzero(shown)
    rows = rows[:: max(1, rows.size // _MAX_DOTS)]
    with_profile = found.profile is not None
    figure = new_figure(3.4)
    axes = figure.subplots(
        1, 3 if with_profile else 2, width_ratios=[1.3, 1, 0.9][: 2 + with_profile]
    )

    left = axes[0]
    adjusted = samples.step_ms - by_kv - by_prefill + kappa * kv_mean
    jitter = np.random.default_rng(0).uniform(-0.3, 0.3, rows.size)  # batches are whole numbers
    left.scatter(
        samples.batch[rows] + jitter, adjusted[rows], s=3, color=GREY, alpha=0.25, lw=0,
        label="step, prefill and KV taken out", rasterized=True,
    )  # fmt: skip
    grid = np.linspace(0, float(samples.batch.max()) * 1.05, 300)
    line = c + kappa * kv_mean + a * grid
    if not np.isnan(fit.b0):
        line = line + alpha * np.maximum(grid - knee, 0)
    if found.bootstrap_latencies:
        curves = np.stack(
            [m.step_ms(grid, np.full_like(grid, kv_mean)) for m in found.bootstrap_latencies]
        )
        # A line without a knee is kept as a knee at the smallest batch: none below it.
        low, high = np.quantile(curves, [0.025, 0.975], axis=0)
        left.fill_between(grid, low, high, color=SKY, alpha=0.6, lw=0, label="95 % of models")
    left.plot(grid, line, color=BLUE, label="model")
    b0 = found.summary.b0
    if b0 is not None:
        left.axvline(b0.value, color=ORANGE, ls="--", lw=1.2, label=f"knee B0 = {b0.value:.2f}")
    left.set(xlabel="batch B, requests", ylabel="step time, ms", title="Step time over batch")
    left.set_ylim(0, float(np.quantile(adjusted[shown], 0.999)) * 1.12)
    left.set_xlim(0, float(grid[-1]))
    left.legend(loc="lower right", markerscale=3)

    right = axes[1]
    rest = samples.step_ms - by_batch - by_prefill
    right.scatter(
        samples.kv_tokens[rows] / 1e3, rest[rows], s=3, color=GREY, alpha=0.25, lw=0,
        label="step, batch and\nprefill taken out", rasterized=True,
    )  # fmt: skip
    tokens = np.linspace(0, float(samples.kv_tokens.max()), 50)
    estimate = found.summary.kappa_ms_per_token
    if estimate is not None and estimate.hi > 0:
        right.fill_between(
            tokens / 1e3,
            c + kappa * kv_mean + estimate.lo * (tokens - kv_mean),
            c + kappa * kv_mean + estimate.hi * (tokens - kv_mean),
            color=SKY, alpha=0.6, lw=0, label="95 % interval",
        )  # fmt: skip
    label = f"{1e3 * kappa:.3g} ms per 1000 tokens" if kappa > 0 else "no KV term wanted"
    right.plot(tokens / 1e3, c + kappa * tokens, color=BLUE, label=label)
    right.set(xlabel="KV cache, thousand tokens", ylabel="step time, ms", title="Over KV")
    right.set_ylim(0, float(np.quantile(rest[shown], 0.999)) * 1.12)
    right.legend(loc="lower right", markerscale=3)

    if found.profile is not None:
        last = axes[2]
        near = found.profile.deviance < 20
        last.plot(found.profile.b0[near], found.profile.deviance[near], color=BLUE)
        last.axhline(3.84, color=GREY, lw=1, ls=":", label="95 % alone")
        if b0 is not None:
            last.axvspan(b0.lo, b0.hi, color=SKY, alpha=0.4, lw=0, label="95 % joint")
        last.set(xlabel="knee B0, requests", ylabel="deviance", title="Knee profile")
        last.set_ylim(0, 20)
        last.legend(loc="upper center", framealpha=1.0)
    return figure


def prediction_figure(
    trace: StepTrace, found: Identification, replay: WindowReplay | None
) -> Figure:
    """Recorded and predicted step time, and window where it was recorded, over one excerpt."""
    fit = found.fit
    assert fit is not None, "only drawn when a regression was possible"
    has_window = bool(np.isfinite(trace["window_tokens"]).any())
    figure = new_figure(5.0 if has_window else 2.9)
    axes = figure.subplots(2 if has_window else 1, 1, sharex=True, squeeze=False)[:, 0]
    start = _liveliest(trace["batch"])
    stop = min(start + _EXCERPT, len(trace))
    step = trace["step"]

    top = axes[0]
    inside = (found.samples.row >= start) & (found.samples.row < stop)
    rows = found.samples.row[inside]
    scatter = 1.96 * fit.scatter_ms[inside]
    top.plot(step[rows], found.samples.step_ms[inside], ".", ms=3, color=GREY, label="recorded")
    top.fill_between(
        step[rows], fit.fitted_ms[inside] - scatter, fit.fitted_ms[inside] + scatter,
        color=SKY, alpha=0.4, lw=0, label="95 % of steps",
    )  # fmt: skip
    top.plot(step[rows], fit.fitted_ms[inside], color=BLUE, lw=1.1, label="model")
    highest = float(np.max(fit.fitted_ms[inside] + 2 * scatter))
    top.set_ylim(0, highest)
    beyond = int((found.samples.step_ms[inside] > highest).sum())
    note = f" ({beyond} outliers above the frame)" if beyond else ""
    top.set(ylabel="step time (ITL), ms", title=f"Step time: recorded and model{note}")
    top.legend(loc="lower right", ncols=3)
    if has_window:
        _window_panel(axes[1], trace, replay, slice(start, stop))
    axes[-1].set_xlabel("scheduler step")
    return figure


def _window_panel(axis: Any, trace: StepTrace, replay: WindowReplay | None, part: slice) -> None:
    step = trace["step"][part]
    axis.plot(step, trace["window_tokens"][part], color=INK, lw=2.2, label="recorded window H")
    if np.isfinite(trace["load_tokens"]).any():
        axis.plot(step, trace["load_tokens"][part], color=GREEN, lw=1, label="load K")
    title = "Window: recorded"
    if replay is not None:
        axis.plot(
            step, replay.predicted_tokens[part], color=ORANGE, lw=1.2, ls="--",
            label=f"law {replay.law} replayed",
        )  # fmt: skip
        title = f"Window: recorded and replayed (fit {replay.fit_percent:.1f} %)"
    axis.set(ylabel="tokens", title=title)
    axis.set_ylim(bottom=0)
    axis.legend(loc="lower right", ncols=3)


def _liveliest(batch: FloatArray) -> int:
    """Start of the excerpt in which the batch varies most."""
    if batch.size <= _EXCERPT:
        return 0
    starts = range(0, batch.size - _EXCERPT, _EXCERPT // 2)
    return max(starts, key=lambda s: float(np.std(batch[s : s + _EXCERPT])))
