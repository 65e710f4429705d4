"""The written and the printed result of a comparison."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from analysis.cells.store import code_fingerprint
from analysis.comparing.contenders import LEFT_OUT
from analysis.comparing.contest import Effort, Outcome
from analysis.comparing.rows import (
    HINDSIGHT,
    Row,
    capacities,
    finite,
    in_groups,
    name_of,
    table,
    write_csv,
)

SCHEMA = "twp-compare/1"


def write(
    outcomes: Sequence[Outcome],
    effort: Effort,
    reference: str,
    wanted: float,
    command: str,
    folder: Path,
) -> None:
    """Write ``compare.csv``, ``capacity.csv`` and ``compare.json``.

    Raises:
        OSError: a file cannot be written.
    """
    rows, loads = table(outcomes, reference), capacities(outcomes, wanted)
    write_csv(rows, folder / "compare.csv")
    write_csv(loads, folder / "capacity.csv")
    contenders = {o.contender.name: o.contender.model_dump(mode="json") for o in outcomes}
    content: dict[str, Any] = {
        "schema_version": SCHEMA,
        "simulated": True,
        "twp_version": metadata.version("twp-sglang"),
        "code": code_fingerprint(),
        "python": platform.python_version(),
        "command": command,
        "effort": effort.model_dump(mode="json"),
        "reference": reference,
        "contenders": contenders,
        "cannot_be_simulated": LEFT_OUT,
        "rows": [{key: finite(value) for key, value in row.items()} for row in rows],
        "capacity": loads,
    }
    path = folder / "compare.json"
    part = folder / ".compare.json.part"
    part.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)


def show(console: Console, outcomes: Sequence[Outcome], reference: str, wanted: float) -> None:
    """Print a table per cell, then the loads carried."""
    rows = {
        (o.cell, name_of(o)): row
        for o, row in zip(outcomes, table(outcomes, reference), strict=True)
    }
    for cell in dict.fromkeys(outcome.cell for outcome in outcomes):
        members = [rows[key] for key in rows if key[0] == cell]
        console.print(
            _cell_table(
                f"{cell.traffic} on {cell.machine}, load {cell.load:g}, {cell.slo}", members
            )
        )
    if any(len({o.cell.load for o in group}) > 1 for group in in_groups(outcomes).values()):
        console.print(_capacity_table(capacities(outcomes, wanted), wanted))
    if any(outcome.hindsight for outcome in outcomes):
        console.print(f"{HINDSIGHT} tuned on the very requests it is measured on")
    if any(run.get("whole_half") for outcome in outcomes for run in outcome.runs):
        console.print(
            "note: a half of some traffic has no more requests than --requests: its seeds differ "
            "by the scatter of step times alone, and intervals are narrower than they should be"
        )


def _cell_table(title: str, rows: Sequence[Row]) -> Table:
    result = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    result.add_column("", no_wrap=True)
    heads = ("goodput", "95 %", "longest 10 %", "tokens/s")
    for head in (*heads, "TTFT P50/P99/max, ms", "ITL P50/P99/max, ms"):
        result.add_column(head, justify="right", no_wrap=True)
    result.add_column("tuned to")
    for row in sorted(rows, key=lambda row: -(row["goodput_fraction"] or -1.0)):
        if row["error"]:
            result.add_row(row["contender"], "failed", *[""] * 5, row["error"])
            continue
        result.add_row(
            row["contender"],
            _cell(row["goodput_fraction"], ".3f"),
            _interval(row, "goodput_fraction"),
            _cell(row["goodput_long_prompts"], ".2f"),
            _cell(row["tokens_per_s"], ",.0f"),
            "/".join(_cell(row[f"ttft_ms_{one}"], ",.0f") for one in ("p50", "p99", "max")),
            "/".join(_cell(row[f"itl_ms_{one}"], ",.4g") for one in ("p50", "p99", "max")),
            _short(row["choice"]),
        )
    return result


_SHORT = {
    "chunk_tokens": "chunk",
    "max_running_requests": "cap",
    "prefill_decode_interval": "interval",
    "itl_target_share": "target",
}


def _short(choice: str) -> str:
    for name, word in _SHORT.items():
        choice = choice.replace(f"{name}=", f"{word} ")
    return choice.replace("=", " ")


def _capacity_table(rows: Sequence[Row], wanted: float) -> Table:
    result = Table(
        title=f"load up to which {wanted:.0%} of requests meet the objectives",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for head in ("machine", "traffic", "objectives", ""):
        result.add_column(head, overflow="fold")
    result.add_column("load", justify="right")
    result.add_column("95 %", justify="right")
    order = {key: index for index, key in enumerate(dict.fromkeys(_group(row) for row in rows))}
    for row in sorted(rows, key=lambda row: (order[_group(row)], -row["load"])):
        interval = "" if row["bound"] else f"{row['load_low']:.2f}-{row['load_high']:.2f}"
        result.add_row(*_group(row), row["contender"], f"{row['bound']}{row['load']:.2f}", interval)
    return result


def _group(row: Row) -> tuple[str, str, str]:
    return row["machine"], row["traffic"], row["slo"]


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _interval(row: Row, column: str) -> str:
    low, high = row[f"{column}_low"], row[f"{column}_high"]
    return "" if low is None or high is None else f"{low:.3f}-{high:.3f}"
