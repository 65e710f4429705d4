"""Schedulers side by side: ``python -m analysis.compare --help``, docs/analysis.md."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from pydantic import ValidationError
from rich.console import Console

from analysis.cells.machines import machine
from analysis.cells.progress import bar, page
from analysis.cells.store import ResultFile
from analysis.cells.traffic import check
from analysis.cells.workers import run_plans
from analysis.comparing.arguments import build_parser
from analysis.comparing.contenders import choose, read_contenders
from analysis.comparing.contest import Cell, Effort, Outcome, contest
from analysis.comparing.figures import draw
from analysis.comparing.report import show, write
from twp_sglang.benchmarking.slo_argument import parse_slos


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status (2 for bad input, 130 after Ctrl-C)."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    arguments = parser.parse_args(words)
    try:
        outcomes = compare(arguments, shlex.join(["python", "-m", "analysis.compare", *words]))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        print(f"{parser.short_name}: error: {place}: {first['msg']}", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"{parser.short_name}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser.short_name}: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0 if outcomes else 1


def compare(arguments: object, command: str) -> list[Outcome]:
    """Run every contender in every cell, write and print the result.

    Raises:
        ValueError: an argument that cannot be used.
        OSError: a file that cannot be read or written.
    """
    a = vars(arguments)
    extra = read_contenders(a["contenders"]) if a["contenders"] else []
    contenders = choose(a["contender"], extra)
    for name in a["hindsight"]:
        choose([name], extra)
    for name in a["machine"]:
        machine(name)
    for name in a["traffic"]:
        check(name)
    for text in a["slo"]:
        parse_slos(text)
    effort = Effort(
        requests=a["requests"],
        noise=a["noise"],
        seeds=a["seeds"],
        tune_seeds=a["tune_seeds"],
    )
    cells = [
        Cell(machine=where, traffic=traffic, load=load, slo=slo)
        for where in dict.fromkeys(a["machine"])
        for traffic in dict.fromkeys(a["traffic"])
        for slo in dict.fromkeys(a["slo"])
        for load in sorted(set(a["load"]))
    ]
    plans = [
        contest(cell, contender, effort, hindsight=hindsight)
        for cell in cells
        for contender in contenders
        for hindsight in (False, True)
        if not hindsight or (contender.axes and contender.name in a["hindsight"])
    ]
    folder = a["out"]
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    with (
        ResultFile(folder / "runs.jsonl") as store,
        bar(console, "comparing", shown=not a["no_progress"]) as tell,
    ):
        outcomes = run_plans(plans, store, a["jobs"], tell)
    write(outcomes, effort, a["reference"], a["capacity"], command, folder)
    show(page(), outcomes, a["reference"], a["capacity"])
    if not a["no_png"]:
        for path in draw(outcomes, folder):
            console.print(f"figure: {path}", highlight=False, soft_wrap=True)
    console.print(f"result: {folder / 'compare.csv'}", highlight=False, soft_wrap=True)
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
