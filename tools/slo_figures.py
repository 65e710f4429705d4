"""Draws the figure of docs/results/slo.md from results of ``python -m analysis.compare``.

``python -m tools.slo_figures OUT.png --load DIR ... --wait DIR``: goodput over load, one line per
contender and folder, and goodput against the longest wait of the contenders of one folder.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
from collections import defaultdict
from pathlib import Path

from matplotlib.figure import Figure

_STYLE = {"slo": ("#009E73", "o"), "static": ("#D55E00", "s"), "static-knee": ("#D55E00", "s")}
_STYLE["static*"] = ("#CC79A7", "^")


def read(folder: Path) -> list[dict[str, str]]:
    """Rows of a comparison.

    Raises:
        OSError: there are none.
    """
    with (folder / "compare.csv").open(newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def draw(out: Path, over_load: list[list[Path]], wait: Path) -> None:
    """Write the figure.

    Args:
        out: a PNG.
        over_load: per panel the folders whose rows it shows.
        wait: folder of the last panel.
    """
    figure = Figure(figsize=(3.1 * (len(over_load) + 1), 3.0), layout="constrained")
    panels = figure.subplots(1, len(over_load) + 1)
    for panel, folders in zip(panels, over_load, strict=False):
        curves: dict[str, list[tuple[float, float, float, float]]] = defaultdict(list)
        rows = [row for folder in folders for row in read(folder)]
        for row in rows:
            if row["contender"] in _STYLE:
                values = [float(row["load"])]
                values += [float(row[f"goodput_fraction{end}"]) for end in ("", "_low", "_high")]
                curves[row["contender"]].append(tuple(values))  # type: ignore[arg-type]
        for name, points in sorted(curves.items()):
            load, mean, low, high = zip(*sorted(set(points)), strict=True)
            colour, marker = _STYLE[name]
            panel.plot(load, mean, color=colour, marker=marker, ms=4, label=name)
            panel.fill_between(load, low, high, color=colour, alpha=0.2, lw=0)
        panel.axhline(0.9, color="grey", lw=0.8, ls=":")
        panel.set(title=f"{rows[0]['traffic']}\n{rows[0]['machine']}", ylim=(0, 1.03))
        panel.set(xlabel="load U")
        panel.legend(fontsize=7, loc="lower left")
    panels[0].set_ylabel("in both objectives")
    last = panels[-1]
    rows = sorted(read(wait), key=lambda row: float(row["ttft_ms_max"]))
    # Points may coincide: unfilled markers of different shapes show through each other.
    for row, marker in zip(rows, itertools.cycle("os^vDPX*"), strict=False):
        x, y = float(row["ttft_ms_max"]) / 1e3, float(row["goodput_fraction"])
        last.plot(x, y, marker=marker, linestyle="", fillstyle="none", label=row["contender"])
    last.legend(fontsize=7, loc="lower right")
    last.set(xlabel="longest TTFT, s", ylim=(0, 1.03), title="waiting against goodput")
    figure.savefig(out, dpi=90)


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m tools.slo_figures")
    parser.add_argument("out", type=Path, metavar="OUT.png")
    parser.add_argument("--load", type=Path, nargs="+", action="append", required=True)
    parser.add_argument("--wait", type=Path, required=True)
    arguments = parser.parse_args(argv)
    try:
        draw(arguments.out, arguments.load, arguments.wait)
    except OSError as error:
        print(f"python -m tools.slo_figures: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
