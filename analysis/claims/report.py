"""The report: on the screen, as CSV and as Markdown."""

from __future__ import annotations

import csv
import datetime
import platform
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table

from analysis.cells.store import code_fingerprint
from analysis.claims.contradictions import contradictions
from analysis.claims.experiment import SETUPS, UTILISATION, WORKLOADS, plant, rate_rps
from analysis.claims.grids import (
    LEGEND,
    MARKS,
    Grid,
    figure_grid,
    number,
    statement_grid,
    table_grid,
)
from analysis.claims.published import Published
from analysis.claims.statements import Judged
from analysis.claims.verdict import VERDICTS, Row

CHOICES = (
    "The paper gives no rates for its four workloads: utilisation lambda Lbar alpha "
    f"{', '.join(f'{load} {value:g}' for load, value in UTILISATION.items())} with a burst of 4 "
    "times the rate for a tenth of the run.",
    "Outputs of the Poisson workload are not stated: uniform 20 to 80, mean 50 = H0/B0.",
    "TWP to the letter: H0 = 400, gamma = 0.15, C = 64, unlimited forced admission after T_max = "
    "200 steps (not stated), Q = 16, clamps H0/4 and 2 H0 (not stated). Baselines take whole "
    "prompts; DynamicBatch's target is 100 ms (not stated).",
    "Every scheduler knows the output lengths, which flatters those that use them.",
)


def counts(rows: Sequence[Row]) -> str:
    """How many rows got which verdict."""
    found = Counter(row.verdict for row in rows)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS)


def show(
    console: Console, judged: Sequence[Judged], printed: Sequence[Row], paper: Published
) -> None:
    """The report on ``console``."""
    for grid in (statement_grid(judged), figure_grid(printed), table_grid(printed)):
        table = Table(title=grid.title, title_justify="left")
        for head in grid.header:
            table.add_column(head, overflow="fold")
        for line in grid.rows:
            table.add_row(*line)
        console.print(table)
    console.print(LEGEND, highlight=False)
    console.print("\n[bold]Contradictions within the paper[/bold] (arithmetic, no simulation)")
    for found in contradictions(paper):
        console.print(f"- {found.name}: {found.text}", highlight=False)
    console.print(f"\nclaims: {counts([j.row for j in judged])}", highlight=False)
    console.print(f"printed numbers: {counts(printed)}", highlight=False)


def write_csv(judged: Sequence[Judged], printed: Sequence[Row], path: Path) -> None:
    """Every claim and printed number, one a line.

    Raises:
        OSError: it cannot be written.
    """
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(
            ("setup", "place", "claim", "paper", "ours", "low", "high", "unit", "verdict", "why")
        )
        for row, _, elsewhere in judged:
            own = _line(row)
            writer.writerow(("paper", *own))
            for setup, (value, verdict) in elsewhere.items():
                other = row._replace(ours=value, verdict=verdict, why="")
                writer.writerow((setup, *_line(other)))
        for row in printed:
            writer.writerow(("paper", *_line(row)))


def _line(row: Row) -> tuple[str, ...]:
    ours = ("", "", "") if row.ours is None else tuple(f"{value:.6g}" for value in row.ours)
    return (row.place, row.claim, row.paper, *ours, row.unit, row.verdict, row.why)


def markdown(
    judged: Sequence[Judged],
    printed: Sequence[Row],
    paper: Published,
    command: str,
    runs: int,
    requests: int,
    picture: str | None = None,
) -> str:
    """The report as Markdown, with command, date and versions."""
    rates = ", ".join(f"{name} {rate_rps(name, paper):.2f}" for name in WORKLOADS)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("twp-sglang", "numpy"))
    lines = [
        "# The paper, claim by claim",
        "",
        "SIMULATED. Token Window Pacing as published (arXiv 2610.17689) against its own numbers, "
        "in "
        "the request-level simulator that drives the same policy objects as the server. Nothing "
        "here was fitted to the paper's results.",
        "",
        f"`{command}`, {datetime.date.today().isoformat()}, {versions}, Python "
        f"{platform.python_version()}, code {code_fingerprint()}; {runs} runs of {requests} "
        "requests "
        "per scheduler, workload and set-up; intervals are 95 % bootstrap over runs, ratios are "
        "paired by run.",
        "",
        f"Claims: {counts([j.row for j in judged])}. Printed numbers: {counts(printed)}.",
        "",
    ]
    for verdict in VERDICTS:
        places = [j.row.place for j in judged if j.row.verdict == verdict]
        lines += [f"- {verdict}: {', '.join(places) or 'none'}"]
    lines += [
        "",
        "Verdicts that hang on the set-up, by ours alone (= reproduced, x not):",
        "",
        *_hanging(judged),
        "",
    ]
    if picture is not None:
        lines += [f"![Claims as ratios]({picture})", ""]
    lines += ["## What was chosen where the paper is silent", ""]
    lines += [f"- {choice}" for choice in (_plant_choice(paper), *CHOICES)]
    lines += [f"- Rates, requests per second: {rates}.", "", "Set-ups:", ""]
    lines += [f"- **{name}**: {text}." for name, text in SETUPS.items()]
    lines += ["", "## Contradictions within the paper", "", "Arithmetic on printed numbers.", ""]
    lines += [f"- **{found.name}**: {found.text}" for found in contradictions(paper)]
    lines += [
        "",
        "## Claims in words",
        "",
        "Ratios are TWP over the best of the others unless the claim names one. A claim is "
        "judged in "
        "set-up *paper*; the last column tells whether the verdict hangs on what is left open.",
        "",
        *_table(statement_grid(judged)),
        "",
        "## Printed numbers",
        "",
        f"{LEGEND}. A level counts as reproduced inside our interval or within 10 %.",
        "",
        *_table(figure_grid(printed)),
        "",
        *_table(table_grid(printed)),
        "",
        "Figures 1 and 3 are drawings. Fig. 2 is a contradiction above.",
        "",
    ]
    return "\n".join(lines)


def _plant_choice(paper: Published) -> str:
    step = plant("paper")
    slope = step.alpha_ms * step.b0 / step.l_min_ms
    return (
        f"Step time is equation (2) with l_min = {step.l_min_ms:g} ms and B0 = {step.b0:g} "
        "(profile "
        "`paper-v100`), so ITLs near that are an input. The paper gives no alpha. Here alpha B0 / "
        f"l_min = {slope:g}: tokens per second rise with the batch. Above 1 they fall (set-up "
        "steep: "
        f"2). Fig. 2, if its curve fills its axes, would give {paper.fig2_slope:g}."
    )


def _hanging(judged: Sequence[Judged]) -> list[str]:
    """Claims whose verdict by ours differs from one set-up to another."""
    lines = []
    for row, own, elsewhere in judged:
        assert row.ours is not None
        other = [
            f"{setup} {number(value.mean)} {MARKS[verdict]}"
            for setup, (value, verdict) in elsewhere.items()
            if verdict != own
        ]
        if other:
            lines.append(
                f"- {row.place}: {number(row.ours.mean)} {MARKS[own]}, but {', '.join(other)}"
            )
    return lines or ["- none"]


def _table(grid: Grid) -> list[str]:
    return [
        f"| {' | '.join(grid.header)} |",
        "|" + "---|" * len(grid.header),
        *(f"| {' | '.join(line)} |" for line in grid.rows),
    ]
