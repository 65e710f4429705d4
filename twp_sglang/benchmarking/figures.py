"""The PNG of one or several runs: distributions, and what happened when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from twp_sglang.benchmarking.results import RunReport
from twp_sglang.latency_metrics import FloatArray, pooled_itl_ms, ttft_ms

# Okabe-Ito: told apart by colour-blind readers; black and yellow left out.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_STYLES = ("-", "--", "-.", ":")
_BINS = 60


def draw(reports: Sequence[RunReport], names: Sequence[str], path: Path) -> None:
    """Draw ``reports`` to a PNG.

    Top: cumulative distributions of ITL and TTFT with P99 marked. Bottom, over the time
    of the run: output tokens per second with the arrivals, and the longest ITL that ended
    in each bin.

    Raises:
        OSError: ``path`` cannot be written.
    """
    figure = Figure(figsize=(12, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    ends_s = [max((r.ended_s for r in report.requests), default=1.0) for report in reports]
    edges_s = np.linspace(0.0, max(*ends_s, 1e-3), _BINS + 1)
    pools: tuple[list[FloatArray], list[FloatArray]] = ([], [])
    for place, (report, name) in enumerate(zip(reports, names, strict=True)):
        colour = _COLOURS[place % len(_COLOURS)]
        style = _STYLES[place % len(_STYLES)]
        times = [record.token_times() for record in report.requests]
        first_ms = np.array([t for x in times if x.completed and (t := ttft_ms(x)) is not None])
        for axis, pool, values in zip(
            axes[0], pools, (pooled_itl_ms(times), first_ms), strict=True
        ):
            _cdf(axis, values, name, colour, style)
            pool.append(values)
        tokens_s = np.concatenate([x.token_ms for x in times] or [np.empty(0)]) / 1000.0
        counts, _ = np.histogram(tokens_s, edges_s)
        axes[1, 0].stairs(
            counts / np.diff(edges_s), edges_s, color=colour, ls=style, lw=1.6, label=name
        )
        worst_ms = _worst_itl(report, edges_s)
        axes[1, 1].plot(
            (edges_s[:-1] + edges_s[1:]) / 2, worst_ms, color=colour, ls=style, lw=1.6,
            marker=".", label=name,
        )  # fmt: skip
    for axis, pool in zip(axes[0], pools, strict=True):
        _scale(axis, np.concatenate(pool))
    _arrivals(axes[1, 0], reports, edges_s)
    for axis, title, unit in (
        (axes[0, 0], "Inter-token latency (ITL)", "ITL, ms"),
        (axes[0, 1], "Time to first token (TTFT)", "TTFT, ms"),
    ):
        axis.set(title=title, xlabel=unit, ylabel="fraction at or below", ylim=(0, 1.01))
    axes[1, 0].set(
        title="Throughput over the run", xlabel="time, s", ylabel="output tokens/s", ylim=(0, None)
    )
    axes[1, 1].set(title="Longest ITL over the run", xlabel="time, s", ylabel="ITL, ms")
    if any(line.get_ydata().size for line in axes[1, 1].lines):
        axes[1, 1].set_ylim(bottom=0)
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.set_axisbelow(True)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=9, framealpha=0.9)
    figure.suptitle(_title(reports), fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, format="png")


def _cdf(axis: Axes, values: FloatArray, name: str, colour: str, style: str) -> None:
    if not len(values):
        axis.plot([], [], color=colour, ls=style, label=f"{name}: none")
        return
    ordered = np.sort(values)
    p99 = float(np.percentile(ordered, 99))
    axis.step(
        ordered, np.arange(1, len(ordered) + 1) / len(ordered), where="post", color=colour,
        ls=style, lw=1.6, label=f"{name} (P99 {p99:,.4g} ms, n = {len(ordered):,})",
    )  # fmt: skip
    axis.plot([p99], [0.99], "o", color=colour, ms=5)


def _scale(axis: Axes, values: FloatArray) -> None:
    # A stall can be a thousand times the median, and one run many times another: a linear
    # axis would show one of them as a vertical line.
    positive = values[values > 0]
    if not len(positive):
        return
    low, high = np.percentile(positive, (1, 100))
    if high < 10 * low:
        axis.set_xlim(left=0)
        return
    # Gaps of 0 (tokens that came together) lie left of the axis: the curve starts at
    # their share.
    axis.set_xscale("log")
    axis.set_xlim(0.8 * low, 1.25 * high)
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())


def _worst_itl(report: RunReport, edges_s: FloatArray) -> FloatArray:
    ends = [x.token_times().token_ms[1:] / 1000.0 for x in report.requests]
    gaps = [np.asarray(x.itl_ms, dtype=np.float64) for x in report.requests]
    worst = np.full(len(edges_s) - 1, np.nan)
    if not ends:
        return worst
    where = np.clip(np.searchsorted(edges_s, np.concatenate(ends)) - 1, 0, len(worst) - 1)
    np.fmax.at(worst, where, np.concatenate(gaps))
    return worst


def _arrivals(axis: Axes, reports: Sequence[RunReport], edges_s: FloatArray) -> None:
    # Runs of one workload share their arrivals; of several workloads none stands for all.
    if len({report.header.workload.fingerprint for report in reports}) > 1:
        return
    arrivals_s = [record.arrival_s for record in reports[0].requests]
    if not arrivals_s:
        return
    counts, _ = np.histogram(arrivals_s, edges_s)
    twin = axis.twinx()
    twin.stairs(counts / np.diff(edges_s), edges_s, fill=True, color="0.5", alpha=0.2)
    twin.set_ylabel("arrivals/s (grey)", color="0.4")
    twin.tick_params(colors="0.4")
    twin.set_ylim(bottom=0)


def _title(reports: Sequence[RunReport]) -> str:
    header = reports[0].header
    model = header.server.model or "unknown model"
    if model.startswith("/"):
        model = Path(model).name  # a hub name keeps its owner, a folder its last part
    mixed = len({report.header.workload.fingerprint for report in reports}) > 1
    work = "different workloads: not comparable" if mixed else header.workload.name
    emulated = " · EMULATED step times" if any(r.header.server.emulated for r in reports) else ""
    return f"{model} · {work} · {len(reports[0].requests)} requests{emulated}"
