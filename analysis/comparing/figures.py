"""Figures of a comparison: goodput over load, and ITL against throughput and TTFT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from analysis.cells.machines import slug
from analysis.comparing.contenders import itl_limit_ms
from analysis.comparing.contest import Outcome
from analysis.comparing.intervals import Estimate, mean_over_seeds
from analysis.comparing.rows import HINDSIGHT, in_groups, name_of, values
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

SIMULATED = "simulated; nothing here was measured on a machine"

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, INK)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "p")


def draw(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """Write all figures into ``folder``; their paths.

    Raises:
        OSError: a file cannot be written.
    """
    paths = []
    several = len({outcome.cell.slo for outcome in outcomes}) > 1
    looks = _looks(outcomes)
    for (machine, traffic, slo), members in in_groups(outcomes).items():
        end = slug(machine, traffic, *([slo] if several else []))
        title = f"{traffic} on {machine}"
        loads = sorted({outcome.cell.load for outcome in members})
        if len(loads) > 1:
            path = folder / f"goodput-{end}.png"
            _goodput_over_load(members, f"{title}: goodput over load", slo, looks, path)
            paths.append(path)
        for load in loads:
            at = [outcome for outcome in members if outcome.cell.load == load]
            path = folder / f"pareto-{end}-load{load:g}.png"
            _pareto(at, f"{title}, load {load:g}", slo, looks, path)
            paths.append(path)
    return paths


def _looks(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """One look per contender for all figures; hindsight is the same, hollow."""
    looks: dict[str, dict[str, Any]] = {}
    plain = list(dict.fromkeys(outcome.contender.name for outcome in outcomes))
    for index, name in enumerate(plain):
        colour = GREY if name == "stock" else _COLOURS[index % len(_COLOURS)]
        look = {"color": colour, "marker": _MARKERS[index % len(_MARKERS)]}
        looks[name] = {**look, "markerfacecolor": colour}
        looks[name + HINDSIGHT] = {**look, "markerfacecolor": "white", "linestyle": "--"}
    return looks


def _label(outcome: Outcome) -> str:
    return outcome.contender.label + (" (hindsight)" if outcome.hindsight else "")


def _estimate(outcome: Outcome, column: str) -> Estimate | None:
    return mean_over_seeds(values(outcome, column))


def _bars(estimate: Estimate) -> list[list[float]] | None:
    if estimate.low is None or estimate.high is None:
        return None
    return [[max(0.0, estimate.mean - estimate.low)], [max(0.0, estimate.high - estimate.mean)]]


def _goodput_over_load(
    outcomes: Sequence[Outcome],
    title: str,
    slo: str,
    looks: dict[str, dict[str, Any]],
    path: Path,
) -> None:
    with house_style():
        figure = new_figure(4.4)
        axes = figure.add_subplot()
        for name in dict.fromkeys(name_of(outcome) for outcome in outcomes):
            line = sorted((o for o in outcomes if name_of(o) == name), key=lambda o: o.cell.load)
            points = [(o.cell.load, e) for o in line if (e := _estimate(o, "goodput_fraction"))]
            if not points:
                continue
            loads = [load for load, _ in points]
            axes.plot(
                loads,
                [e.mean for _, e in points],
                label=_label(line[0]),
                markersize=5,
                **looks[name],
            )
            if all(e.low is not None for _, e in points):
                axes.fill_between(
                    loads,
                    [e.low or 0.0 for _, e in points],
                    [e.high or 0.0 for _, e in points],
                    color=looks[name]["color"],
                    alpha=0.12,
                    linewidth=0,
                )
        axes.axhline(0.9, color=GREY, linewidth=0.8, linestyle=":")
        axes.set(
            xlabel="load U: engine time needed / time",
            ylabel=f"share of requests that meet\n{slo}",
            ylim=(-0.03, 1.03),
            title=title,
        )
        figure.legend(loc="outside right upper")
        figure.supxlabel(SIMULATED, fontsize=8, color=GREY)
        figure.savefig(path)


def _pareto(
    outcomes: Sequence[Outcome],
    title: str,
    slo: str,
    looks: dict[str, dict[str, Any]],
    path: Path,
) -> None:
    sides = (
        ("tokens_per_s", "output tokens/s", "linear", -1.0),
        ("ttft_ms_p99", "TTFT P99, ms", "log", 1.0),
    )
    with house_style():
        figure = new_figure(4.4)
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (column, label, scale, sign) in zip(panels, sides, strict=True):
            shown = []
            for outcome in outcomes:
                x, y = _estimate(outcome, column), _estimate(outcome, "itl_ms_p99")
                if x is None or y is None:
                    continue
                shown.append((sign * x.mean, y.mean))
                axes.errorbar(
                    x.mean,
                    y.mean,
                    xerr=_bars(x),
                    yerr=_bars(y),
                    label=_label(outcome),
                    markersize=6,
                    elinewidth=0.8,
                    **{**looks[name_of(outcome)], "linestyle": "none"},
                )
            front = pareto_front(shown)
            axes.step(
                [sign * x for x, _ in front],
                [y for _, y in front],
                where="post",
                color=INK,
                linewidth=0.8,
                alpha=0.5,
                zorder=0,
            )
            axes.set(xlabel=label, xscale=scale, yscale="log")
            axes.axhline(itl_limit_ms(slo), color=GREY, linewidth=0.8, linestyle=":", zorder=0)
            for axis in (axes.xaxis, axes.yaxis):
                if axis.get_scale() == "log":
                    _plain_numbers(axis)
        panels[0].set_ylabel("ITL P99, ms")
        figure.suptitle(f"{title} ({slo})", fontweight="bold", fontsize=10.5, x=0.01, ha="left")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
        figure.supxlabel(
            f"{SIMULATED}; thin line: nobody is better in both; dotted: the ITL objective",
            fontsize=8,
            color=GREY,
        )
        figure.savefig(path)


def _plain_numbers(axis: Axis) -> None:
    """Few and plain numbers on a logarithmic axis: powers of ten alone leave one that spans less
    than a decade without any, and matplotlib's own in between run into each other."""
    low, high = sorted(axis.get_view_interval())
    decades = math.log10(high / low) if low > 0 else 1.0
    if decades < 0.5:
        # Even steps: 1, 2, 5 of each decade could leave a single number.
        axis.set_major_locator(MaxNLocator(4))
    else:
        subs = (1.0, 2.0, 5.0) if decades < 1.3 else (1.0, 3.0) if decades < 2.3 else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=4))
    axis.set_major_formatter(FuncFormatter(_plain_number))
    axis.set_minor_formatter(NullFormatter())


def _plain_number(value: float, _: int | None = None) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other is at least as low as in both coordinates, by the first."""
    front: list[tuple[float, float]] = []
    for point in sorted(set(points)):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front
