"""The paper, claim by claim: ``python -m analysis.paper [--quick]``, docs/results/paper.md."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from analysis.cells.store import ResultFile
from analysis.claims.figures import NAMES, draw
from analysis.claims.printed import printed_rows
from analysis.claims.published import Published
from analysis.claims.report import markdown, show, write_csv
from analysis.claims.runs import Results, run_all, tasks
from analysis.claims.statements import Judged, judged
from analysis.claims.verdict import Row

QUICK_RUNS, QUICK_REQUESTS = 2, 40
"""Seconds; shows that everything works, and settles nothing."""


class Outcome(NamedTuple):
    """A finished check."""

    results: Results
    judged: list[Judged]
    printed: list[Row]
    pictures: list[Path]


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.paper",
        description="Each figure, table and claim of the paper beside the simulator: value, "
        "interval, verdict. About a minute on two cores; a stopped run goes on from where it was.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="2 runs of 40 requests: seconds, settles nothing")
    add("--out", type=Path, default=Path("out/paper"), metavar="DIR", help="[out/paper]")
    add(
        "--report",
        type=Path,
        metavar="FILE.md",
        help="write the report here as well, with the picture of the claims beside it",
    )
    add("--jobs", type=_positive, metavar="N", help="processes [one a core]")
    add("--no-progress", action="store_true", help="no progress bar")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status (2 for bad input, 130 after Ctrl-C)."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    arguments = parser.parse_args(words)
    command = shlex.join(["python", "-m", "analysis.paper", *words])
    try:
        outcome = check(
            arguments.out,
            quick=arguments.quick,
            jobs=arguments.jobs,
            console=Console(stderr=True),
            shown=not arguments.no_progress,
            command=command,
            report=arguments.report,
        )
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser.prog}: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    show(Console(), outcome.judged, outcome.printed, Published())
    print(f"written to {arguments.out}: paper.md, paper.csv, {', '.join(NAMES)}")
    return 0


def check(
    folder: Path,
    *,
    quick: bool = False,
    jobs: int | None = None,
    console: Console | None = None,
    shown: bool = True,
    command: str = "python -m analysis.paper",
    report: Path | None = None,
) -> Outcome:
    """Simulate, judge, and write report, CSV and pictures into ``folder``.

    Args:
        folder: made where it is missing; ``runs.jsonl`` in it keeps the simulations.
        quick: see :data:`QUICK_RUNS`.
        jobs: processes; None takes one a core.
        console: takes the progress bar, if it is a terminal.
        shown: whether there is a bar at all.
        command: for the report.
        report: a further place for the report.

    Raises:
        ValueError: ``runs.jsonl`` is no file of this command.
        OSError: a folder or file cannot be written.
    """
    paper = Published()
    runs, requests = (QUICK_RUNS, QUICK_REQUESTS) if quick else (paper.runs, paper.requests)
    if report is not None and not report.absolute().parent.is_dir():
        raise ValueError(f"--report {report}: its folder does not exist; make it first")
    folder.mkdir(parents=True, exist_ok=True)
    console = console or Console(stderr=True)
    with (
        Progress(
            TextColumn("simulating"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not (shown and console.is_terminal),
        ) as bar,
        ResultFile(folder / "runs.jsonl") as store,
    ):
        task = bar.add_task("simulations", total=None)
        results = run_all(
            tasks(runs, requests),
            store,
            jobs or os.cpu_count() or 1,
            lambda done, total: bar.update(task, completed=done, total=total),
        )
    statements, printed = judged(results, paper), printed_rows(results, paper)
    pictures = draw(results, statements, paper, requests, folder)
    write_csv(statements, printed, folder / "paper.csv")
    told = (statements, printed, paper, command, runs, requests)
    (folder / "paper.md").write_text(markdown(*told, picture=NAMES[-1]), encoding="utf-8")
    if report is not None:
        beside = report.with_name(f"{report.stem}_{NAMES[-1]}")
        shutil.copyfile(folder / NAMES[-1], beside)
        report.write_text(markdown(*told, picture=beside.name), encoding="utf-8")
    return Outcome(results, statements, printed, pictures)


def _positive(text: str) -> int:
    value = int(text) if text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number of at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
