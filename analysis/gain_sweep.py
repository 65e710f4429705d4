"""Gains over a grid: ``python -m analysis.gain_sweep --help``, docs/analysis.md."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from analysis.cells.machines import machine
from analysis.cells.progress import bar, page
from analysis.cells.store import ResultFile, code_fingerprint
from analysis.cells.traffic import check
from analysis.comparing.rows import write_csv
from analysis.sweeping.arguments import build_parser
from analysis.sweeping.backends import Backend, Simulated
from analysis.sweeping.figures import MOST_PANELS, draw
from analysis.sweeping.grid import AXES, Grid, make_grid, planes
from analysis.sweeping.served import Launched, Running
from analysis.sweeping.sweep import rows, sweep
from analysis.sweeping.table import show
from analysis.sweeping.theory import Engine, engine_of
from twp_sglang.benchmarking.slo_argument import parse_slos
from twp_sglang.config import TwpConfig
from twp_sglang.config_values import OptionsError
from twp_sglang.simulator.arguments import configuration

_SIMULATED_MACHINE, _SIMULATED_TRAFFIC = "paper-v100", "paper-mixture"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status (2 for bad input, 130 after Ctrl-C)."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    arguments = parser.parse_args(words)
    try:
        failed = gain_sweep(
            vars(arguments), shlex.join(["python", "-m", "analysis.gain_sweep", *words])
        )
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        print(f"{parser.short_name}: error: {place}: {first['msg']}", file=sys.stderr)
        return 2
    except (OptionsError, ValueError, OSError) as error:
        print(f"{parser.short_name}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser.short_name}: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 1 if failed else 0


def gain_sweep(a: dict[str, Any], command: str) -> bool:
    """Measure the grid, write and print it; whether every point failed.

    Raises:
        OptionsError, ValueError: an argument that cannot be used.
        OSError: a file that cannot be read or written.
    """
    if a["slo"]:
        parse_slos(a["slo"])
    engine, base = _engine_and_base(a)
    grid = make_grid({name: a[name] for name in AXES if a[name]}, base)
    shown = planes(grid, a["x"], a["y"])
    folder: Path = a["out"]
    folder.mkdir(parents=True, exist_ok=True)
    backend = _backend(a, grid, folder)
    console = Console(stderr=True)
    with (
        ResultFile(folder / "runs.jsonl") as store,
        bar(console, "sweeping", shown=not a["no_progress"]) as tell,
    ):
        found = sweep(grid, backend, store, a["jobs"], tell)
    table = rows(grid, found, engine)
    write_csv(table, folder / "sweep.csv")
    _write_json(table, grid, backend, command, folder / "sweep.json")
    show(page(), table, list(grid.axes), backend.caption)
    if not a["no_png"] and shown:
        if len(shown) > MOST_PANELS:
            console.print(f"note: the first {MOST_PANELS} of {len(shown)} heat maps are drawn")
        for path in draw(grid, shown, found, a["metric"], engine, backend.caption, folder):
            console.print(f"figure: {path}", highlight=False, soft_wrap=True)
    console.print(f"result: {folder / 'sweep.csv'}", highlight=False, soft_wrap=True)
    return all(row["error"] for row in table)


def _engine_and_base(a: dict[str, Any]) -> tuple[Engine | None, TwpConfig]:
    """The theory's engine, where there is one, and what the grid does not vary."""
    simulated = a["backend"] == "simulator"
    name = a["machine"] or (_SIMULATED_MACHINE if simulated else None)
    traffic = a["traffic"] or (_SIMULATED_TRAFFIC if simulated else None)
    a["machine"], a["traffic"] = name, traffic
    settings = [f"law={a['law']}", *a["set"]]
    engine = None
    if traffic is not None:
        check(traffic)
    if name is not None:
        step = machine(name).step
        if step is not None:
            # As a calibrated server would have them; --set still wins.
            known = [f"l_min_ms={step.l_min_ms}"]
            if step.b0 >= 1:
                known.append(f"b0={round(step.b0)}")
            settings = [*known, *settings]
            if traffic is not None:
                engine = engine_of(name, traffic)
    return engine, configuration("twp", None, settings)


def _backend(a: dict[str, Any], grid: Grid, folder: Path) -> Backend:
    if a["backend"] == "simulator":
        for flag in ("launch", "bench", "url"):
            if a[flag]:
                raise ValueError(f"--{flag}: is for --backend emulated and server")
        return Simulated(
            machine=a["machine"],
            traffic=a["traffic"],
            load=a["load"],
            requests=a["requests"],
            seeds=a["seeds"],
            noise=a["noise"],
            slo=a["slo"],
        )
    bench = shlex.split(a["bench"])
    if "--workload" not in {word.partition("=")[0] for word in bench}:
        raise ValueError(
            '--bench: say what to send, for example --bench "--workload gsm8k --requests 100 '
            '--rate 2"; python -m twp_sglang.bench run --help'
        )
    if a["slo"]:
        bench += ["--slo", a["slo"]]
    if a["url"]:
        if len(grid.points()) > 1:
            raise ValueError(
                f"--url: a running server keeps the gains of its start, the grid has "
                f"{len(grid.points())} points; use --launch, which starts one per point"
            )
        return Running(a["url"], bench)
    flags = shlex.split(a["launch"])
    if a["backend"] == "emulated":
        if a["machine"] is None:
            raise ValueError("--machine: name the step model that is emulated")
        if "," in a["machine"]:
            raise ValueError(
                f"--machine {a['machine']}: the emulated engine takes a name or a JSON file; write "
                "the changed terms into a file"
            )
        return Launched(flags, bench, folder, a["start_timeout"], emulated=a["machine"])
    if not flags:
        raise ValueError("--launch: give the flags of launch_server, or --url URL")
    return Launched(flags, bench, folder, a["start_timeout"])


def _write_json(
    table: list[dict[str, Any]], grid: Grid, backend: Backend, command: str, path: Path
) -> None:
    content = {
        "schema_version": "twp-gain-sweep/1",
        "what": backend.caption,
        "code": code_fingerprint(),
        "command": command,
        "axes": grid.axes,
        "base": grid.base.model_dump(mode="json"),
        "rows": table,
    }
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
