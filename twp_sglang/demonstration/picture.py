"""The PNG of a demo: what the engine did step by step, and what its clients saw of it."""

from __future__ import annotations

import os
import platform
import subprocess
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controllers.trace_reader import FloatArray, StepTrace
from twp_sglang.benchmarking.results import RequestRecord

# Okabe-Ito: told apart by colour-blind readers.
_WINDOW, _LOAD, _STEP, _FILTER, _QUEUE, _FORCED = (
    "#0072B2", "#E69F00", "#56B4E9", "#D55E00", "#CC79A7", "#000000",
)  # fmt: skip


_TITLE_CHARACTERS = 105
"""That fit one line of the title: at 11 points on 11 inches of DejaVu Sans, wide letters too."""


def machine(device: str) -> str:
    """The machine in words: the GPU, or the processor and the cores this process may use."""
    if device != "cpu":
        return _gpu_name() or device
    cores = len(os.sched_getaffinity(0))
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{name}, {cores} core{'s' if cores != 1 else ''}"


def _gpu_name() -> str | None:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.partition("\n")[0].strip() or None


def draw(
    trace: StepTrace,
    records: Sequence[RequestRecord],
    run_start_ms: float,
    title: str,
    path: Path,
) -> None:
    """Write :func:`figure_of` as PNG.

    Raises:
        OSError: ``path`` cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figure_of(trace, records, run_start_ms, title).savefig(path, dpi=130, format="png")


def figure_of(
    trace: StepTrace, records: Sequence[RequestRecord], run_start_ms: float, title: str
) -> Figure:
    """Three panels over one time axis: window and load, step time and ITL, queue.

    Args:
        trace: of the server, on its own clock.
        records: of the clients, on the run's clock.
        run_start_ms: when the run's clock started, on the trace's; steps before it (the
            server's own warm-up) are left out.
        title: names machine and model.
    """
    time_s = (trace["t_ms"] - run_start_ms) / 1000.0
    shown = time_s >= 0.0
    figure = Figure(figsize=(11, 9), layout="constrained")
    tokens, latency, queue = figure.subplots(3, 1, sharex=True, height_ratios=(1.3, 1, 1))
    _tokens(tokens, trace, time_s, shown)
    _latency(latency, trace, time_s, shown, records)
    _queue(queue, trace, time_s, shown)
    for axis in (tokens, latency, queue):
        axis.grid(alpha=0.25)
        axis.set_axisbelow(True)
        # A fifth of room above the curves, for the legend.
        axis.set_ylim(0, 1.2 * axis.dataLim.ymax if axis.dataLim.ymax > 0 else 1.0)
        axis.margins(x=0.01)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(loc="upper right", fontsize=9, framealpha=0.9, ncols=3)
    queue.set_xlabel("time since the first request, s")
    # A processor's full name can be as long as the figure is wide, and matplotlib cuts both ends.
    lines = [part for line in title.splitlines() for part in textwrap.wrap(line, _TITLE_CHARACTERS)]
    figure.suptitle("\n".join(lines), fontsize=11)
    return figure


def _tokens(axis: Axes, trace: StepTrace, time_s: FloatArray, shown: np.ndarray) -> None:
    window, load = trace["window_tokens"][shown], trace["load_tokens"][shown]
    at_s = time_s[shown]
    axis.fill_between(
        at_s, 0, load, step="post", color=_LOAD, alpha=0.55, lw=0,
        label="load K: output tokens still owed",
    )  # fmt: skip
    if np.isfinite(window).any():
        axis.step(at_s, window, where="post", color=_WINDOW, lw=2, label="window H")
        forced = shown & (trace["forced"] > 0)
        if forced.any():
            axis.plot(
                time_s[forced], trace["load_tokens"][forced], "x", color=_FORCED, ms=6,
                label="forced admission",
            )  # fmt: skip
    axis.set(title="Window and load", ylabel="tokens")


def _latency(
    axis: Axes,
    trace: StepTrace,
    time_s: FloatArray,
    shown: np.ndarray,
    records: Sequence[RequestRecord],
) -> None:
    ends, gaps = [], []
    for record in records:
        seen_ms = record.token_times().token_ms
        if len(seen_ms) > 1:
            ends.append(seen_ms[1:] / 1000.0)
            gaps.append(np.asarray(record.itl_ms))
    if ends:
        axis.plot(
            np.concatenate(ends), np.concatenate(gaps), ".", color=_STEP, ms=3, alpha=0.5,
            label="ITL, as clients saw it",
        )  # fmt: skip
    filtered = trace["itl_ms"]
    known = shown & np.isfinite(filtered)
    if known.any():
        axis.plot(
            time_s[known], filtered[known], color=_FILTER, lw=1.8,
            label="filtered decode step time (the monitor)",
        )  # fmt: skip
    axis.set(title="Inter-token latency", ylabel="ms")


def _queue(axis: Axes, trace: StepTrace, time_s: FloatArray, shown: np.ndarray) -> None:
    at_s = time_s[shown]
    axis.fill_between(
        at_s, 0, trace["queue"][shown], step="post", color=_QUEUE, alpha=0.45, lw=0,
        label="waiting requests",
    )  # fmt: skip
    # A pure prefill step decodes nobody; drawn, it would cut the batch to 0 at every chunk.
    rows = shown & trace.is_kind("decode", "mixed")
    axis.step(time_s[rows], trace["batch"][rows], where="post", color="0.35", lw=1, label="batch B")
    admitted = np.nan_to_num(trace["admitted"][shown])
    axis.step(
        at_s, np.cumsum(admitted), where="post", color=_WINDOW, lw=1.6, ls="--",
        label="admitted so far",
    )  # fmt: skip
    axis.set(title="Queue and admissions", ylabel="requests")
