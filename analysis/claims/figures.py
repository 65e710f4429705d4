"""Pictures of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.claims.experiment import Task, simulate_task
from analysis.claims.published import SCHEDULERS, Published
from analysis.claims.runs import Results
from analysis.claims.statements import Judged
from analysis.claims.verdict import Verdict, estimate
from controllers.report.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    house_style,
    new_figure,
)
from twp_sglang.latency_metrics import ttft_ms

COLOURS = dict(zip(SCHEDULERS, (BLUE, SKY, GREEN, PURPLE, GREY, ORANGE), strict=True))
VERDICT_COLOURS: dict[Verdict, str] = {
    "reproduced": GREEN,
    "not reproduced": ORANGE,
    "contradicts itself": PURPLE,
}
SHORT = ("FCFS", "RR", "Prio", "DynB", "SLLM", "TWP")
"""Of :data:`SCHEDULERS`, for narrow axes."""

NAMES = ("fig4_ttft_by_request.png", "fig5_fig6_fig8.png", "fig7_itl.png", "claims.png")


def draw(
    results: Results, judged: Sequence[Judged], paper: Published, requests: int, folder: Path
) -> list[Path]:
    """Draw everything into ``folder``; the files.

    Raises:
        OSError: a file cannot be written.
    """
    with house_style():
        _ttft_by_request(requests, paper, folder / NAMES[0])
        _bars(results, paper, folder / NAMES[1])
        _itl(results, paper, folder / NAMES[2])
        _claims(judged, folder / NAMES[3])
    return [folder / name for name in NAMES]


def _ttft_by_request(requests: int, paper: Published, path: Path) -> None:
    """Fig. 4: TTFT of each request of one run."""
    figure = new_figure(3.4)
    axes = figure.subplots()
    for name in SCHEDULERS:
        task = Task(setup="paper", workload="poisson", scheduler=name, run=0, requests=requests)
        values = np.array([ttft_ms(times) for times in simulate_task(task).times])
        # Three of the six are the same line; the later ones are drawn thinner on top.
        width = 3.2 - 0.45 * SCHEDULERS.index(name) if name != "TWP" else 1.6
        axes.plot(values, color=COLOURS[name], lw=width, label=name)
    low, high = paper.fig4_twp_ms, max(paper.fig4_spike_ms.values())
    axes.axhspan(low, high, color=INK, alpha=0.15, lw=0, label="paper, all")
    axes.set(yscale="log", xlabel="request", ylabel="TTFT (ms)")
    axes.set_title("Fig. 4 simulated: TTFT by request, Poisson at 18 req/s, one run")
    _plain(axes)
    figure.legend(ncols=7, loc="outside lower center", fontsize=7.5)
    figure.savefig(path)


def _bars(results: Results, paper: Published, path: Path) -> None:
    """Figs. 5, 6 and 8: paper beside ours."""
    figure = new_figure(6.6)
    grid = figure.subplots(3, 2)
    for axes, percentile in zip(grid.flat, ("p50", "p95", "p99"), strict=False):
        printed = [getattr(paper.fig5_ttft_ms[name], percentile) for name in SCHEDULERS]
        _pair(axes, results, f"ttft_ms_{percentile}", printed)
        axes.set(yscale="log", ylabel="ms", title=f"Fig. 5: TTFT {percentile.upper()}")
    _pair(grid[1, 1], results, "throughput_rps", [paper.fig6_throughput_rps[n] for n in SCHEDULERS])
    grid[1, 1].set(yscale="log", ylabel="requests/s", title="Fig. 6: throughput")
    _pair(grid[2, 0], results, "itl_cv", [paper.fig8_itl_cv[n] for n in SCHEDULERS])
    grid[2, 0].set(yscale="log", ylabel="CV", title="Fig. 8: CV of ITL")
    for axes in grid.flat[:5]:
        _plain(axes)
    legend = grid[2, 1]
    legend.axis("off")
    handles = [
        Line2D([], [], color=GREY, lw=8, label="paper"),
        Line2D([], [], color=BLUE, lw=8, label="simulated, 95 % over runs"),
    ]
    legend.legend(handles=handles, loc="center", fontsize=10)
    figure.savefig(path)


def _pair(axes: Axes, results: Results, metric: str, printed: list[float]) -> None:
    places = np.arange(len(SCHEDULERS))
    ours = [estimate(results.values("paper", "poisson", name, metric)) for name in SCHEDULERS]
    means = np.array([value.mean for value in ours])
    errors = np.array([[v.mean - v.low for v in ours], [v.high - v.mean for v in ours]])
    axes.bar(places - 0.2, printed, 0.38, color=GREY)
    axes.bar(
        places + 0.2, means, 0.38, color=BLUE, yerr=np.maximum(errors, 0), ecolor=INK, capsize=2
    )
    axes.set_xticks(places, SHORT)
    axes.grid(axis="x", visible=False)


def _plain(axes: Axes) -> None:
    """Plain numbers on a logarithmic axis."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _itl(results: Results, paper: Published, path: Path) -> None:
    """Fig. 7: distribution of ITL."""
    figure = new_figure(3.2)
    axes = figure.subplots()
    boxes = []
    for name in SCHEDULERS:
        low, q1, middle, q3, high = (
            float(np.mean(results.values("paper", "poisson", name, f"itl_ms_p{p}")))
            for p in (1, 25, 50, 75, 99)
        )
        boxes.append(
            {"whislo": low, "q1": q1, "med": middle, "q3": q3, "whishi": high, "label": name}
        )
    axes.bxp(
        boxes,
        showfliers=False,
        patch_artist=True,
        boxprops={"facecolor": SKY},
        medianprops={"color": INK},
    )
    axes.axhspan(42.0, paper.fig7_tail_ms[1], color=INK, alpha=0.15, lw=0)
    axes.text(
        0.55, paper.fig7_tail_ms[1] * 1.05, "range of the paper's Fig. 7", fontsize=8.5, color=GREY
    )
    axes.set(yscale="log", ylabel="ITL (ms)")
    _plain(axes)
    axes.set_title("Fig. 7 simulated: ITL at 18 req/s, quartiles and P1 to P99")
    figure.savefig(path)


def _claims(judged: Sequence[Judged], path: Path) -> None:
    """Every claim that is a ratio, with its interval, beside the paper's."""
    rows = [j.row for j in judged if j.row.unit == "ratio" and j.row.ours is not None]
    figure = new_figure(0.9 + 0.24 * len(rows))
    axes = figure.subplots()
    for place, row in enumerate(rows):
        assert row.ours is not None
        colour = VERDICT_COLOURS[row.verdict]
        axes.plot(
            [row.ours.low, row.ours.high], [place, place], color=colour, lw=3, solid_capstyle="butt"
        )
        axes.plot(row.ours.mean, place, "o", color=colour, ms=5)
        try:
            axes.plot(float(row.paper), place, "D", mfc="white", mec=INK, ms=5)
        except ValueError:
            continue  # the paper gives a direction and no number
    axes.axvline(1.0, color=INK, lw=1)
    axes.set(
        xscale="log",
        yticks=range(len(rows)),
        xlabel="ratio; TWP over the best other unless the claim names another (log)",
    )
    axes.set_yticklabels([row.place for row in rows], fontsize=8)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    handles = [
        Line2D([], [], color=colour, marker="o", lw=3, label=verdict)
        for verdict, colour in VERDICT_COLOURS.items()
    ]
    handles.append(Line2D([], [], color=INK, marker="D", mfc="white", lw=0, label="paper"))
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.35, -0.08), ncols=4)
    axes.set_title("Claims as ratios: simulated with 95 % interval, beside the paper's")
    figure.savefig(path)
