"""A simulated cell on the emulated engine: ``python -m analysis.confirm --help``."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from analysis.cells.machines import machine
from analysis.cells.measure import Metrics
from analysis.cells.progress import page
from analysis.cells.store import ResultFile, code_fingerprint
from analysis.cells.traffic import cell_traffic, check, mean_output_tokens
from analysis.cells.workers import run_plans
from analysis.comparing.contenders import choose, read_contenders, setting
from analysis.comparing.contest import Cell, Effort, Outcome, contest
from analysis.confirming.arguments import build_parser
from analysis.confirming.launching import machine_flags, setting_flags
from analysis.confirming.measuring import ConfirmationError, measure, write_requests
from analysis.confirming.report import Confirmed, show, write
from twp_sglang.benchmarking.slo_argument import parse_slos


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status (2 for bad input, 1 where no run could be made, 130
    after Ctrl-C)."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    arguments = parser.parse_args(words)
    try:
        confirm(vars(arguments), shlex.join(["python", "-m", "analysis.confirm", *words]))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        print(f"{parser.short_name}: error: {place}: {first['msg']}", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"{parser.short_name}: error: {error}", file=sys.stderr)
        return 2
    except ConfirmationError as error:
        print(f"{parser.short_name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{parser.short_name}: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def confirm(a: dict[str, Any], command: str) -> list[Confirmed]:
    """Tune every contender in the simulator, run it on the engine, write and print both.

    Raises:
        ValueError: an argument that cannot be used.
        OSError: a file that cannot be read or written.
        ConfirmationError: a server or a client that does not run.
    """
    extra = read_contenders(a["contenders"]) if a["contenders"] else []
    contenders = choose(a["contender"], extra)
    where = machine(a["machine"])
    check(a["traffic"])
    parse_slos(a["slo"])
    cell = Cell(machine=a["machine"], traffic=a["traffic"], load=a["load"], slo=a["slo"])
    effort = Effort(
        requests=a["requests"], noise=a["noise"], seeds=a["seeds"], tune_seeds=a["seeds"]
    )
    folder: Path = a["out"]
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    with ResultFile(folder / "simulated.jsonl") as store:
        # One process: the other core is for nothing else, and a cell takes seconds.
        outcomes = run_plans(
            [contest(cell, one, effort, hindsight=True) for one in contenders], store, 1
        )
    flags = [_flags(outcome, where.name, folder) for outcome in outcomes]
    with ResultFile(folder / "engine.jsonl") as store:
        runs = _run_all(cell, effort, outcomes, flags, store, folder, console)
    found = [
        Confirmed(outcome, tuple(words), tuple(rounds))
        for outcome, words, rounds in zip(outcomes, flags, runs, strict=True)
    ]
    write(found, command, folder)
    show(page(), found)
    console.print(f"result: {folder / 'confirm.csv'}", highlight=False, soft_wrap=True)
    return found


def _flags(outcome: Outcome, machine_name: str, folder: Path) -> list[str]:
    where = machine(machine_name)
    cell = outcome.cell
    chosen = setting(
        outcome.contender,
        outcome.choice,
        where,
        mean_output_tokens(cell.traffic, "test"),
        cell.slo,
    )
    if "itl_delivery_ms" not in outcome.contender.config:
        # Real clients wait for delivery, which the simulator does not have: the server's default.
        chosen.config.pop("itl_delivery_ms", None)
    return [*machine_flags(where, folder), *setting_flags(chosen)]


def _run_all(
    cell: Cell,
    effort: Effort,
    outcomes: Sequence[Outcome],
    flags: Sequence[list[str]],
    store: ResultFile,
    folder: Path,
    console: Console,
) -> list[list[Metrics]]:
    """Runs by contender, one per stretch; the contenders in turn, each first at another time."""
    runs: list[list[Metrics]] = [[] for _ in outcomes]
    for seed in range(effort.seeds):
        traffic = cell_traffic(
            cell.traffic, machine(cell.machine), "test", cell.load, seed, effort.requests
        )
        trace = folder / f"requests-{seed}.csv"
        write_requests(traffic, trace)
        places = list(range(len(outcomes)))
        shift = seed % len(places)
        for place in places[shift:] + places[:shift]:
            name = outcomes[place].contender.name
            key = _key(flags[place], trace, cell.slo)
            if key not in store.known:
                console.print(f"stretch {seed + 1} of {effort.seeds}: {name}", highlight=False)
                metrics = asyncio.run(
                    measure(flags[place], trace, cell.slo, folder / f"{name}-{seed}")
                )
                store.add(key, {"contender": name, "seed": seed}, metrics)
            runs[place].append(store.known[key])
    return runs


def _key(flags: Sequence[str], trace: Path, slo: str) -> str:
    """A run's key: the same code, flags, requests and objectives are the same run."""
    digest = hashlib.sha256(repr((code_fingerprint(), list(flags), slo)).encode())
    digest.update(trace.read_bytes())
    return digest.hexdigest()[:24]


if __name__ == "__main__":
    sys.exit(main())
