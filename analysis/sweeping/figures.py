"""Heat maps of a sweep with the predicted boundary of stability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.lines import Line2D

from analysis.cells.machines import slug
from analysis.cells.measure import Metrics
from analysis.sweeping.backends import HIGHER_IS_BETTER, METRICS
from analysis.sweeping.grid import Grid, Plane, Point
from analysis.sweeping.theory import Engine, margin_map
from controllers.report.style import GREY, INK, ORANGE, WIDTH, house_style, new_figure

SYMBOLS = {
    "gamma": "window gain γ",
    "k": "integral gain k",
    "beta": "filter weight β (1: no filter)",
    "h0_tokens": "nominal window H0, tokens",
    "h_min_share": "lower clamp / H0",
    "h_max_share": "upper clamp / H0",
    "chunk_tokens": "chunk C, tokens per step",
}

_COLUMNS = 3
MOST_PANELS = 12
_LABELLED = 64
"""Values are written into the cells up to so many per panel."""

_SPREAD = 20.0
"""Values that span more than this factor are coloured on a logarithmic scale."""


def draw(
    grid: Grid,
    planes: Sequence[Plane],
    found: Mapping[tuple[float, ...], Metrics],
    metrics: Sequence[str],
    engine: Engine | None,
    caption: str,
    folder: Path,
) -> list[Path]:
    """One picture per metric, a panel per plane; the paths written.

    Args:
        grid: what was swept.
        planes: at most :data:`MOST_PANELS`; further ones are left out.
        found: metrics by the values of the grid's axes.
        metrics: names of :data:`METRICS`.
        engine: for the boundary; None draws none.
        caption: what the numbers are.
        folder: where to write.

    Raises:
        OSError: a file cannot be written.
    """
    shown = planes[:MOST_PANELS]
    maps = [None if engine is None else margin_map(engine, grid, plane) for plane in shown]
    paths = []
    for metric in metrics:
        tables = [_table(grid, plane, found, metric) for plane in shown]
        if not any(np.isfinite(table).any() for table in tables):
            continue
        path = folder / f"{slug(metric)}.png"
        _draw_metric(grid, shown, tables, maps, metric, caption, path)
        paths.append(path)
    return paths


def _table(
    grid: Grid, plane: Plane, found: Mapping[tuple[float, ...], Metrics], metric: str
) -> Any:
    table = np.full((len(grid.axes[plane.y]), len(grid.axes[plane.x])), np.nan)
    for j, y in enumerate(grid.axes[plane.y]):
        for i, x in enumerate(grid.axes[plane.x]):
            point: Point = {**plane.fixed, plane.x: x, plane.y: y}
            value = found.get(tuple(point[name] for name in grid.axes), {}).get(metric)
            if value is not None:
                table[j, i] = value
    return table


def _draw_metric(
    grid: Grid,
    planes: Sequence[Plane],
    tables: Sequence[Any],
    maps: Sequence[Any],
    metric: str,
    caption: str,
    path: Path,
) -> None:
    values = np.concatenate([table[np.isfinite(table)] for table in tables])
    low, high = float(values.min()), float(values.max())
    logarithmic = low > 0 and high / low > _SPREAD
    columns = min(_COLUMNS, len(planes))
    rows = -(-len(planes) // columns)
    with house_style():
        figure = new_figure(1.3 + (3.6 if columns < 3 else 2.5) * rows)
        figure.set_size_inches(WIDTH if columns > 1 else 0.75 * WIDTH, figure.get_figheight())
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        mesh: Any = None
        for axes, plane, table, prediction in zip(panels.flat, planes, tables, maps, strict=False):
            x, y = grid.axes[plane.x], grid.axes[plane.y]
            colours: dict[str, Any] = (
                {"norm": LogNorm(low, high)} if logarithmic else {"vmin": low, "vmax": high}
            )
            mesh = axes.pcolormesh(
                _edges(x),
                _edges(y),
                table,
                cmap="viridis" if metric in HIGHER_IS_BETTER else "viridis_r",
                **colours,
            )
            axes.set(xscale="log", yscale="log", facecolor="0.8")
            axes.grid(visible=False)
            for axis, ticks in ((axes.xaxis, x), (axes.yaxis, y)):
                axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
                axis.set_ticks([], minor=True)
            if table.size <= _LABELLED and columns < 3:
                _write(axes, mesh, x, y, table)
            if prediction is not None:
                _boundary(axes, prediction)
            if plane.fixed:
                axes.set_title(
                    ", ".join(f"{name.split('_')[0]} {v:g}" for name, v in plane.fixed.items()),
                    fontsize=9,
                )
        for axes in list(panels.flat)[len(planes) :]:
            axes.set_visible(False)
        for axes in panels[-1]:
            axes.set_xlabel(SYMBOLS[planes[0].x])
        figure.supylabel(SYMBOLS[planes[0].y], fontsize=9.5)
        figure.colorbar(mesh, ax=panels, label=METRICS[metric])
        figure.suptitle(f"{METRICS[metric]}\n{caption}", fontsize=9.5)
        if any(prediction is not None for prediction in maps):
            figure.legend(
                handles=[Line2D([], [], color=ORANGE, linewidth=1.8, label=_BOUNDARY)],
                loc="outside lower center",
                frameon=False,
            )
        figure.savefig(path)


_BOUNDARY = "predicted boundary of stability (hatched: the linear loop is unstable)"


def _boundary(axes: Any, prediction: Any) -> None:
    margin = prediction.margin
    if min(margin.shape) < 2:
        return
    if margin.min() < 0:
        axes.contourf(
            prediction.x, prediction.y, margin, levels=[-10.0, 0.0], colors="none", hatches=["//"]
        )
    if margin.min() < 0 < margin.max():
        for colour, width in (("white", 3.2), (ORANGE, 1.8)):
            axes.contour(
                prediction.x, prediction.y, margin, levels=[0.0], colors=colour, linewidths=width
            )


def _write(axes: Any, mesh: Any, x: Sequence[float], y: Sequence[float], table: Any) -> None:
    for j, y_value in enumerate(y):
        for i, x_value in enumerate(x):
            value = table[j, i]
            if not np.isfinite(value):
                axes.text(x_value, y_value, "×", ha="center", va="center", color=GREY)
                continue
            red, green, blue, _ = mesh.cmap(mesh.norm(value))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            axes.text(
                x_value,
                y_value,
                f"{value:.3g}",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if dark else INK,
            )


def _edges(values: Sequence[float]) -> Any:
    """Edges of cells around ``values`` on a logarithmic axis."""
    logs = np.log(np.asarray(values))
    if len(logs) == 1:
        return np.exp([logs[0] - 0.5, logs[0] + 0.5])
    middles = 0.5 * (logs[1:] + logs[:-1])
    first, last = 2 * logs[0] - middles[0], 2 * logs[-1] - middles[-1]
    return np.exp(np.concatenate(([first], middles, [last])))
