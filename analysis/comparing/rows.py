"""From outcomes to the rows of a table: one per cell and contender."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.comparing.contest import Cell, Outcome
from analysis.comparing.intervals import Estimate, capacity, mean_over_seeds, paired_difference

Row = dict[str, Any]

HINDSIGHT = "*"
"""After the name of a contender that was tuned on the half it is measured on."""

GOODPUT = {
    "goodput_fraction": "fraction",
    "goodput_rps": "rps",
    "goodput_long_prompts": "long_fraction",
}
"""Columns from the goodput of a run; ``goodput_long_prompts`` is over the longest tenth."""

PLAIN = (
    "tokens_per_s",
    "tokens_per_s_arrivals",
    "ttft_ms_p50",
    "ttft_ms_p95",
    "ttft_ms_p99",
    "ttft_ms_max",
    "itl_ms_p50",
    "itl_ms_p95",
    "itl_ms_p99",
    "itl_ms_max",
    "itl_ms_max_unretracted",
    "decode_gap_ms_p99",
    "tpot_ms_p50",
    "e2e_ms_p50",
    "e2e_ms_p99",
    "itl_cv",
    "retractions",
    "forced",
    "refused",
    "failed",
)
"""Columns that are metrics of a run as they are."""


def name_of(outcome: Outcome) -> str:
    """Name in tables, with the mark of hindsight."""
    return outcome.contender.name + (HINDSIGHT if outcome.hindsight else "")


def values(outcome: Outcome, column: str) -> list[float]:
    """A column's value of each seed; empty where a run had an error or lacks it."""
    if any("error" in run for run in outcome.runs):
        return []
    if column in GOODPUT:
        key = GOODPUT[column]
        return [float(run["goodput"][outcome.cell.slo][key]) for run in outcome.runs]
    found = [run.get(column) for run in outcome.runs]
    return [] if any(value is None for value in found) else [float(v) for v in found]  # type: ignore[arg-type]


def table(outcomes: Sequence[Outcome], reference: str) -> list[Row]:
    """Rows of ``outcomes`` in their order; differences are to the contender ``reference``
    of the same cell, where it takes part."""
    base = {o.cell: o for o in outcomes if name_of(o) == reference}
    return [_row(outcome, base.get(outcome.cell)) for outcome in outcomes]


def _row(outcome: Outcome, base: Outcome | None) -> Row:
    cell = outcome.cell
    row: Row = {
        "machine": cell.machine,
        "traffic": cell.traffic,
        "load": cell.load,
        "slo": cell.slo,
        "contender": name_of(outcome),
        "choice": " ".join(f"{key}={value}" for key, value in outcome.choice.items()),
        "tried": outcome.tried,
        "seeds": len(outcome.runs),
        "error": next((run["error"] for run in outcome.runs if "error" in run), ""),
    }
    for column in (*GOODPUT, *PLAIN):
        _put(row, column, mean_over_seeds(values(outcome, column)))
    difference = None
    if base is not None:
        ours, theirs = (values(o, "goodput_fraction") for o in (outcome, base))
        difference = paired_difference(ours, theirs) if ours and theirs else None
    _put(row, "goodput_fraction_minus_reference", difference)
    return row


def _put(row: Row, column: str, estimate: Estimate | None) -> None:
    mean, low, high = estimate or (None, None, None)
    row[column] = mean
    row[f"{column}_low"] = low
    row[f"{column}_high"] = high


def capacities(outcomes: Sequence[Outcome], wanted: float) -> list[Row]:
    """Per machine, traffic, SLO and contender the load up to which ``wanted`` of the requests
    meet the objectives."""
    groups: dict[tuple[str, str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        cell = outcome.cell
        groups.setdefault((cell.machine, cell.traffic, cell.slo, name_of(outcome)), []).append(
            outcome
        )
    rows: list[Row] = []
    for (machine, traffic, slo, contender), members in groups.items():
        members = sorted(members, key=lambda outcome: outcome.cell.load)
        fractions = [values(outcome, "goodput_fraction") for outcome in members]
        if not all(fractions):
            continue
        found = capacity([outcome.cell.load for outcome in members], np.array(fractions).T, wanted)
        rows.append(
            {
                "machine": machine,
                "traffic": traffic,
                "slo": slo,
                "contender": contender,
                "wanted_fraction": wanted,
                "load": found.load,
                "bound": found.bound,
                "load_low": found.low,
                "load_high": found.high,
            }
        )
    return rows


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write ``rows`` with a line of column names.

    Raises:
        OSError: the file cannot be written.
    """
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def finite(value: Any) -> Any:
    """``value`` with None for numbers that JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def in_groups(outcomes: Iterable[Outcome]) -> dict[tuple[str, str, str], list[Outcome]]:
    """Outcomes by machine, traffic and SLO: what one figure shows."""
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        cell: Cell = outcome.cell
        groups.setdefault((cell.machine, cell.traffic, cell.slo), []).append(outcome)
    return groups
