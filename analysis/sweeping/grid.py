"""The grid of a sweep: axes, and the configuration at each of its points."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from controllers.laws.base import FrozenModel
from twp_sglang.config import TwpConfig
from twp_sglang.config_values import build

AXES = {
    "gamma": "window gain of equation (4)",
    "k": "integral gain of law regulated",
    "beta": "weight of the newest step in the ITL filter",
    "h0_tokens": "nominal window H0",
    "h_min_share": "lower clamp over H0",
    "h_max_share": "upper clamp over H0",
    "chunk_tokens": "prompt tokens per step, C",
}
"""What can be swept, with its meaning."""

Point = dict[str, float]
"""Value of each axis."""

MOST_POINTS = 20_000
"""A larger grid has a slip in an axis."""


class Grid(FrozenModel):
    """Every combination of the axes' values.

    Attributes:
        axes: values by name of :data:`AXES`, ascending.
        base: configuration of everything else.
    """

    axes: dict[str, tuple[float, ...]]
    base: TwpConfig

    def points(self) -> list[Point]:
        """All points, the last axis fastest."""
        names = list(self.axes)
        return [
            dict(zip(names, values, strict=True))
            for values in itertools.product(*self.axes.values())
        ]

    def config(self, point: Mapping[str, float]) -> TwpConfig:
        """The configuration at ``point``.

        Raises:
            OptionsError: a value that a field refuses, or clamps out of order.
        """
        return configured(self.base, point)


class Plane(NamedTuple):
    """Two axes that a heat map shows, and the values of the others that it holds fixed."""

    x: str
    y: str
    fixed: Point


def make_grid(axes: Mapping[str, Sequence[float]], base: TwpConfig) -> Grid:
    """A grid whose every point can be configured.

    Raises:
        ValueError: no axis, too many points, shares without H0, or a value that the
            configuration refuses.
    """
    if not axes:
        raise ValueError(f"nothing to sweep: give at least one of {', '.join(AXES)}")
    grid = Grid(axes={name: tuple(sorted(set(v))) for name, v in axes.items()}, base=base)
    count = 1
    for values in grid.axes.values():
        count *= len(values)
    if count > MOST_POINTS:
        raise ValueError(f"{count:,} points, more than {MOST_POINTS:,}: thin out an axis")
    clamps = {"h_min_share", "h_max_share"} & set(grid.axes)
    if clamps and base.h0_tokens is None and "h0_tokens" not in grid.axes:
        raise ValueError(f"{min(clamps)} is a share of H0: give --h0-tokens, or --set h0_tokens=N")
    for point in grid.points():
        grid.config(point)
    return grid


def configured(base: TwpConfig, point: Mapping[str, float]) -> TwpConfig:
    """``base`` with the values of ``point``; see :meth:`Grid.config`."""
    values: dict[str, Any] = base.model_dump()
    values.update({k: v for k, v in point.items() if k in TwpConfig.model_fields})
    if "chunk_tokens" in point:
        values["chunk_tokens"] = int(point["chunk_tokens"])
    for share, clamp in (("h_min_share", "h_min_tokens"), ("h_max_share", "h_max_tokens")):
        if share in point:
            values[clamp] = point[share] * values["h0_tokens"]
    return build(values, dict.fromkeys(point, "grid"))


def planes(grid: Grid, x: str | None, y: str | None) -> list[Plane]:
    """The heat maps of ``grid``: one per combination of the axes not shown.

    Unset, ``x`` and ``y`` are the first two axes with more than one value, beta being x.

    Raises:
        ValueError: an axis that is not swept, or the same one twice.
    """
    names = list(grid.axes)
    wide = [name for name in names if len(grid.axes[name]) > 1] or names
    for flag, name in (("--x", x), ("--y", y)):
        if name is not None and name not in grid.axes:
            raise ValueError(f"{flag} {name}: is not swept; give one of {', '.join(names)}")
    if x is None:
        x = "beta" if "beta" in wide and y != "beta" else next((n for n in wide if n != y), None)
    if y is None:
        y = next((n for n in wide if n != x), None)
    if x is None or y is None:
        return []
    if x == y:
        raise ValueError(f"--x and --y are both {x}: give two axes")
    others = [name for name in names if name not in (x, y)]
    return [
        Plane(x, y, dict(zip(others, values, strict=True)))
        for values in itertools.product(*(grid.axes[name] for name in others))
    ]
