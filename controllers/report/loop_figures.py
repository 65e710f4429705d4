"""Figures of the loop: Bode, Nyquist with the disk, stability map, margins, a burst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Circle

from controllers.linearisation import LinearLoop
from controllers.margins import DISK_MARGIN_GOAL, critical_factors, disk_margin, is_stable
from controllers.models import LoopModel
from controllers.report.style import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, new_figure
from controllers.simulation.request_level import simulate_requests
from controllers.tuning.loop_set import LoopSet

_MAP_GAINS: Final = 26
_BODE_FLOOR_DB: Final = -80.0
_BURST_STEPS: Final = 300
_BURST_FACTOR: Final = 4.0
_LOAD: Final = 0.6


def bode_figure(nominal: LinearLoop, others: Sequence[LinearLoop]) -> Figure:
    """Magnitude and phase of the loop gain, the plausible models as thin lines."""
    figure = new_figure(4.6)
    top, bottom = figure.subplots(2, 1, sharex=True)
    for index, linear in enumerate([*others, nominal]):
        omega, gain = linear.grid
        last = index == len(others)
        look = _look(estimate=last)
        label = "estimate" if last else ("plausible models" if index == 0 else None)
        top.semilogx(omega, 20 * np.log10(np.maximum(np.abs(gain), 1e-9)), label=label, **look)
        bottom.semilogx(omega, np.degrees(np.unwrap(np.angle(gain))), **look)
    omega, gain = nominal.grid
    top.axhline(0, color=INK, lw=1)
    at_pi = 20 * np.log10(max(abs(gain[-1]), 1e-9))
    if at_pi > _BODE_FLOOR_DB:  # lengths with a common divisor make it zero: nothing to mark
        top.plot(np.pi, at_pi, "o", color=ORANGE, label=f"at omega = pi: {at_pi:.1f} dB", zorder=5)
    top.set(ylabel="|L|, dB", title="Bode: loop gain, broken at the window, where it is largest")
    top.set_ylim(max(float(np.min(20 * np.log10(np.abs(gain) + 1e-9))) - 10, _BODE_FLOOR_DB), None)
    top.legend(loc="lower left")
    bottom.axhline(-180, color=INK, lw=1, ls="--")
    bottom.text(1.3e-3, -176, "-180 degrees", fontsize=8, va="bottom", color=INK)
    bottom.set(xlabel="frequency, radians per step", ylabel="phase, degrees")
    bottom.set_xlim(1e-3, np.pi * 1.1)
    return figure


def _look(*, estimate: bool) -> dict[str, Any]:
    if estimate:
        return {"color": BLUE, "lw": 1.8, "zorder": 3}
    return {"color": SKY, "lw": 0.5, "alpha": 0.5}


def nyquist_figure(nominal: LinearLoop, others: Sequence[LinearLoop]) -> Figure:
    """The loop gain in the complex plane, and the disk that it must not enter."""
    figure = new_figure(4.0)
    axis = figure.subplots()
    for index, linear in enumerate([*others, nominal]):
        _, gain = linear.grid
        last = index == len(others)
        look = _look(estimate=last)
        label = "estimate" if last else ("plausible models" if index == 0 else None)
        axis.plot(gain.real, gain.imag, label=label, **look)
        axis.plot(gain.real, -gain.imag, **(look | {"lw": 0.4}))
    goal = DISK_MARGIN_GOAL
    left, right = -(2 + goal) / (2 - goal), -(2 - goal) / (2 + goal)
    axis.add_patch(
        Circle(
            ((left + right) / 2, 0), (right - left) / 2, fc=ORANGE, alpha=0.25, ec=ORANGE,
            label=f"disk of margin {goal:g}: keep out",
        )
    )  # fmt: skip
    if is_stable(nominal):
        alpha = disk_margin(*nominal.grid)
        if alpha < 1.999:
            left, right = -(2 + alpha) / (2 - alpha), -(2 - alpha) / (2 + alpha)
            axis.add_patch(
                Circle(
                    ((left + right) / 2, 0), (right - left) / 2, fill=False, ec=GREEN, ls=":",
                    lw=1.4, label=f"disk that touches the estimate, {alpha:.2f}",
                )
            )  # fmt: skip
    axis.plot(-1, 0, "x", color=INK, ms=8, mew=2, label="critical point -1")
    axis.axhline(0, color=INK, lw=0.7)
    axis.axvline(0, color=INK, lw=0.7)
    reach = float(np.quantile(np.abs(nominal.grid[1]), 0.999))
    reach = min(max(1.2, 1.15 * reach), 4.0)
    axis.set(
        xlabel="real part of L", ylabel="imaginary part of L", title="Nyquist: distance from -1",
        xlim=(-max(reach, 2.4), reach), ylim=(-reach, reach),
    )  # fmt: skip
    axis.set_aspect("equal")
    # The layout measures labels before equal axes shrink the box, and is short by 0.1 inch.
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(w_pad=0.2)
    figure.legend(loc="outside right upper")  # equal axes leave room beside, layout keeps it
    return figure


def map_figure(
    loops: LoopSet,
    gain_name: str,
    chosen: tuple[float, float],
    recorded: tuple[float, float] | None,
) -> Figure:
    """Worst-case disk margin over gain and filter weight."""
    gains = np.geomspace(0.01, 1.0, _MAP_GAINS)
    betas = np.geomspace(0.01, 1.0, _MAP_GAINS)
    margin = np.array(
        [[loops.verdict(float(g), float(b)).disk_margin for b in betas] for g in gains]
    )
    figure = new_figure(4.2)
    axis = figure.subplots()
    levels = [0.0, 0.2, 0.4, DISK_MARGIN_GOAL, 0.8, 1.0, 1.25, 1.5, 1.75, 2.0]
    shades = axis.pcolormesh(
        betas, gains, margin, norm=BoundaryNorm(levels, 256), cmap="cividis", shading="nearest",
        rasterized=True,
    )  # fmt: skip
    bar = figure.colorbar(shades, ax=axis, ticks=levels)
    bar.set_label("worst-case balanced disk margin (0: unstable)")
    handles = []
    if margin.min() < DISK_MARGIN_GOAL < margin.max():
        axis.contour(betas, gains, margin, levels=[DISK_MARGIN_GOAL], colors="white", linewidths=2)
        handles.append(Line2D([], [], color="white", lw=2, label=f"goal {DISK_MARGIN_GOAL:g}"))
    if margin.min() <= 0 < margin.max():
        axis.contour(betas, gains, margin, levels=[0.02], colors=[ORANGE], linewidths=2)
        handles.append(Line2D([], [], color=ORANGE, lw=2, label="stability boundary"))
    marks: list[tuple[tuple[float, float], str, str]] = [(chosen, "*", "this configuration")]
    if recorded is not None and recorded != chosen:
        marks.append((recorded, "o", "as recorded"))
    for (gain, beta), marker, label in marks:
        axis.plot(beta, gain, marker, ms=13 if marker == "*" else 8, mfc="white", mec="black")
        handles.append(
            Line2D([], [], ls="", marker=marker, ms=10, mfc="white", mec="black", label=label)
        )
    axis.set(
        xscale="log", yscale="log", xlabel="beta, weight of the newest step in the ITL filter",
        ylabel=f"{gain_name}, window gain per step", title="Stability map, worst plausible model",
    )  # fmt: skip
    axis.legend(handles=handles, loc="lower left", facecolor="#8a8a8a", framealpha=1.0)
    return figure


def monte_carlo_figure(linears: Sequence[LinearLoop]) -> Figure:
    """Disk and gain margin of all plausible loops."""
    alphas, gains = [], []
    for linear in linears:
        omega, gain = linear.grid
        factors = critical_factors(omega, gain)
        stable = is_stable(linear)
        alphas.append(disk_margin(omega, gain) if stable else 0.0)
        above = [factor for factor in factors if factor > 1]
        gains.append((above[0] if above else np.inf) if stable else 0.0)
    figure = new_figure(3.0)
    left, right = figure.subplots(1, 2)
    left.hist(alphas, bins=np.linspace(0, 2, 41).tolist(), color=BLUE, edgecolor="white", lw=0.4)
    left.axvline(DISK_MARGIN_GOAL, color=ORANGE, lw=2, label=f"goal {DISK_MARGIN_GOAL:g}")
    left.axvline(min(alphas), color=INK, ls=":", label=f"worst {min(alphas):.2f}")
    left.set(
        xlabel="balanced disk margin", ylabel="operating points", xlim=(0, 2),
        title=f"Margins at {len(linears)} plausible points",
    )  # fmt: skip
    left.legend(loc="best")
    finite = np.isfinite(gains)
    decibels = 20 * np.log10(np.maximum(np.array(gains)[finite], 1e-3))
    right.scatter(decibels, np.array(alphas)[finite], s=14, color=PURPLE, alpha=0.5, lw=0)
    right.axhline(DISK_MARGIN_GOAL, color=ORANGE, lw=2, label=f"goal {DISK_MARGIN_GOAL:g}")
    right.axvline(6.0, color=GREY, ls="--", lw=1, label="6 dB")
    right.set(
        xlabel="gain margin, dB", ylabel="balanced disk margin", ylim=(0, 2.05),
        title="Gain margin and disk margin",
    )  # fmt: skip
    right.set_xlim(left=0)
    right.legend(loc="best")
    return figure


def burst_figure(loop: LoopModel, seed: int = 0) -> tuple[Figure, int | None]:
    """A fourfold burst and the drain after it; also the steps until the queue has gone.

    Requests arrive at 60 % of what a batch at the knee serves. Admitted requests cannot be
    taken back: after the burst K falls by at most B a step, whatever the window asks for.
    """
    before, after = 400, 1600
    rate = _LOAD * max(loop.latency.b0, 1.0) / loop.lengths.mean
    profile = np.full(before + _BURST_STEPS + after, rate)
    profile[before : before + _BURST_STEPS] *= _BURST_FACTOR
    arrivals = np.random.default_rng(seed).poisson(profile)
    run = simulate_requests(loop, profile.size, seed=seed, arrivals=arrivals.tolist(), noise=0.02)
    empty = np.flatnonzero(run.queue[before + _BURST_STEPS :] == 0)
    drained = int(empty[0]) if empty.size else None
    figure = new_figure(5.6)
    top, middle, bottom = figure.subplots(3, 1, sharex=True)
    steps = np.arange(profile.size) - before
    for axis in (top, middle, bottom):
        note = "burst, 4 times the load" if axis is bottom else None
        axis.axvspan(0, _BURST_STEPS, color=ORANGE, alpha=0.15, lw=0, label=note)
        if drained is not None:
            note = "queue empty again" if axis is bottom else None
            axis.axvline(_BURST_STEPS + drained, color=GREY, ls=":", label=note)
    top.plot(steps, run.window_tokens, color=BLUE, label="window H")
    top.plot(steps, run.load_tokens, color=GREEN, lw=1, label="load K")
    top.set(ylabel="tokens", title="A burst onto a loaded engine, request by request")
    middle.plot(steps, run.step_ms, color=GREY, lw=0.8, label="decode step")
    middle.plot(steps, run.sigma * loop.latency.l_min_ms, color=BLUE, label="filtered")
    middle.axhline(loop.latency.l_min_ms, color=INK, lw=0.8, ls="--", label="l_min")
    middle.set(ylabel="step time, ms")
    bottom.plot(steps, run.queue, color=PURPLE, label="waiting")
    bottom.plot(steps, run.batch, color=BLUE, label="running (batch B)")
    bottom.set(xlabel="steps since the burst began", ylabel="requests")
    for axis, place in ((top, "lower right"), (middle, "lower right"), (bottom, "upper right")):
        axis.set_ylim(bottom=0)
        axis.legend(loc=place, ncols=3)
    bottom.set_xlim(-before // 2, _BURST_STEPS + after)
    return figure, drained


def closed_loop_lines(linears: Sequence[LinearLoop], count: int) -> list[LinearLoop]:
    """Evenly spread members of ``linears``, for figures that draw each as a line."""
    if len(linears) <= count:
        return list(linears)
    picks: Any = np.linspace(0, len(linears) - 1, count).astype(int)
    return [linears[i] for i in picks]
