"""Look of every figure: readable on screen, in print and without colour vision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by people who do not see red or green, and in grey.
BLUE: Final = "#0072B2"
ORANGE: Final = "#D55E00"
GREEN: Final = "#009E73"
SKY: Final = "#56B4E9"
PURPLE: Final = "#CC79A7"
GREY: Final = "#666666"
INK: Final = "#1a1a1a"

DPI: Final = 150
WIDTH: Final = 8.0
"""Inches: the text width of a printed page at full size."""

_RC: Final[dict[str, Any]] = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": True,
    "legend.framealpha": 0.9,
    "legend.edgecolor": "none",
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


@contextmanager
def house_style() -> Iterator[None]:
    """Apply the style inside the block and leave matplotlib's settings as they were."""
    with mpl.rc_context(_RC):
        yield


def new_figure(height: float) -> Figure:
    """A figure of page width and ``height`` inches, laid out without overlaps.

    Made without pyplot: no window system, no global list of open figures.
    """
    return Figure(figsize=(WIDTH, height), layout="constrained", dpi=DPI)
