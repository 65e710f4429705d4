"""What a profiling run prints: a table of the points, and the answer in words."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from twp_sglang.profiling.step_file import Findings, point_rows, summary_lines

_NARROWEST = 108
"""Columns that the table needs; a file or a pipe has no width of its own."""


def show(console: Console, findings: Findings) -> None:
    """Print ``findings``."""
    console.width = max(console.width, _NARROWEST)
    table = Table(title=f"{findings.shape.name}, {findings.backend}, {findings.dtype}")
    for name in ("step", "B", "context", "chunk", "prefix"):
        table.add_column(name, justify="left" if name == "step" else "right")
    for name in ("ms", "roofline", "times", "bound by", "model", ""):
        table.add_column(name, justify="right")
    for row in point_rows(findings):
        error = row.get("model_error_percent")
        table.add_row(
            row["kind"],
            *(str(row[name]) for name in ("batch", "context", "chunk", "prefix")),
            f"{row['ms']:.3f}",
            f"{row['roofline_ms']:.3f}",
            f"{row['over_roofline']:.2f}",
            row["bound_by"],
            "" if error is None else f"{error:+.1f} %",
            "held out" if row["held_out"] else "",
        )
    console.print(table)
    for line in summary_lines(findings):
        console.print(line, highlight=False, soft_wrap=True)
    for note in (*findings.machine.notes, *findings.left_out):
        console.print(f"note        {note}", highlight=False, soft_wrap=True)
