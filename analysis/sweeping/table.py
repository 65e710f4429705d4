"""The printed result of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

_COLUMNS = {
    "itl_ms_p50": "ITL P50",
    "itl_ms_p99": "ITL P99, ms",
    "itl_cv": "ITL CV",
    "window_cv": "window CV",
    "ttft_ms_p99": "TTFT P99, ms",
    "tokens_per_s": "tokens/s",
    "goodput_fraction": "goodput",
}

_MOST_ROWS = 60
"""Longer tables are for the CSV."""


def show(
    console: Console, rows: Sequence[dict[str, Any]], axes: Sequence[str], caption: str
) -> None:
    """Print ``rows``."""
    used = {
        key: head for key, head in _COLUMNS.items() if any(r.get(key) is not None for r in rows)
    }
    theory = any("theory_stable" in row for row in rows)
    table = Table(title=caption, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in (*(axis.split("_tokens")[0] for axis in axes), *used.values()):
        table.add_column(name, justify="right")
    if theory:
        table.add_column("theory", no_wrap=True)
    for row in rows[:_MOST_ROWS]:
        cells = [f"{row[axis]:g}" for axis in axes]
        cells += ["-" if row.get(key) is None else f"{row[key]:,.4g}" for key in used]
        if theory:
            cells.append(_verdict(row))
        table.add_row(*cells)
    console.print(table)
    if len(rows) > _MOST_ROWS:
        console.print(f"{len(rows) - _MOST_ROWS} more rows in the CSV")
    for message in dict.fromkeys(row["error"] for row in rows if row["error"]):
        console.print(f"[yellow]failed:[/yellow] {message}", highlight=False)


def _verdict(row: dict[str, Any]) -> str:
    margin = row["theory_gain_margin"]
    factor = "" if margin is None else f", {margin:.2g}x"
    return f"{'stable' if row['theory_stable'] else 'unstable'}{factor} ({row['theory_regime']})"
