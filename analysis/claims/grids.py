"""The figures and the table as grids of text, ours beside the paper's, for screen and page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analysis.claims.printed import TABLE_COLUMNS
from analysis.claims.published import LOADS, SCHEDULERS
from analysis.claims.statements import Judged
from analysis.claims.verdict import Estimate, Row, Verdict

MARKS: dict[Verdict, str] = {
    "reproduced": "=",
    "not reproduced": "x",
    "contradicts itself": "!",
}
LEGEND = "paper → ours (mean over runs); = reproduced, x not reproduced, ! contradicts itself"


class Grid(NamedTuple):
    """A table of text."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]


def number(value: float) -> str:
    """Three significant digits, without exponents."""
    if value != 0 and abs(value) < 0.001:
        return "0" if abs(value) < 5e-6 else f"{value:.5f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def interval(ours: Estimate) -> str:
    """Mean with its interval."""
    if ours.low == ours.high:
        return number(ours.mean)
    return f"{number(ours.mean)} [{number(ours.low)}, {number(ours.high)}]"


def statement_grid(rows: Sequence[Judged]) -> Grid:
    """The claims in words."""
    lines: list[tuple[str, ...]] = []
    for row, _, elsewhere in rows:
        assert row.ours is not None
        others = "; ".join(
            f"{setup} {number(value.mean)} {MARKS[verdict]}"
            for setup, (value, verdict) in elsewhere.items()
        )
        where = row.place.split()[0]
        lines.append(
            (where, row.claim, row.paper, interval(row.ours), row.verdict, row.why, others)
        )
    header = ("where", "claim", "paper", "ours [95 %]", "verdict", "why", "other set-ups")
    return Grid("Claims", header, lines)


def figure_grid(rows: Sequence[Row]) -> Grid:
    """Figures 4 to 8, a line per scheduler."""
    by_place = {(row.place, row.claim): row for row in rows}
    columns = (
        ("Fig. 4", "largest TTFT", "Fig. 4 largest TTFT (ms)"),
        ("Fig. 5", "TTFT P50", "Fig. 5 TTFT P50 (ms)"),
        ("Fig. 5", "TTFT P95", "P95"),
        ("Fig. 5", "TTFT P99", "P99"),
        ("Fig. 6", "throughput", "Fig. 6 throughput (req/s)"),
        ("Fig. 7", "median ITL", "Fig. 7 median ITL (ms)"),
        ("Fig. 7", "largest ITL", "largest"),
        ("Fig. 8", "ITL CV", "Fig. 8 ITL CV"),
    )
    lines = [
        (name, *(_cell(by_place.get((f"{figure} {name}", claim))) for figure, claim, _ in columns))
        for name in SCHEDULERS
    ]
    header = ("scheduler", *(head for _, _, head in columns))
    return Grid("Figures 4 to 8 (Poisson, 18 req/s)", header, lines)


def table_grid(rows: Sequence[Row]) -> Grid:
    """The table of section VI-B6."""
    by_place = {row.place: row for row in rows}
    lines = [
        (
            load,
            name,
            *(_cell(by_place[f"Table {column} {load} {name}"]) for column in TABLE_COLUMNS),
        )
        for load in LOADS
        for name in SCHEDULERS
    ]
    units = {"throughput": "throughput (req/s)", "P99": "P99 latency (ms)", "CV": "ITL CV"}
    heads = (units.get(column, f"{column} (ms)") for column in TABLE_COLUMNS)
    return Grid("Table of VI-B6", ("load", "scheduler", *heads), lines)


def _cell(row: Row | None) -> str:
    if row is None or row.ours is None:
        return ""
    return f"{row.paper} → {number(row.ours.mean)} {MARKS[row.verdict]}"
