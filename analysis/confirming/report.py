"""The written and printed result: each contender on the engine beside its simulation."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from analysis.cells.measure import Metrics
from analysis.cells.store import code_fingerprint
from analysis.comparing.contest import Outcome
from analysis.comparing.rows import write_csv

SCHEMA = "twp-confirm/1"

_LATENCIES = tuple(
    f"{name}_{one}" for name in ("ttft_ms", "itl_ms") for one in ("p50", "p99", "max")
)
_COLUMNS = ("tokens_per_s", *_LATENCIES)


class Confirmed(NamedTuple):
    """A contender of a cell.

    Attributes:
        outcome: how it was tuned, and its simulated runs, one per stretch of traffic.
        flags: of launch_server.
        engine: its runs on the emulated engine, on the same stretches.
    """

    outcome: Outcome
    flags: tuple[str, ...]
    engine: tuple[Metrics, ...]


def rows(found: Sequence[Confirmed]) -> list[dict[str, Any]]:
    """One row a contender: means over the stretches, and the goodput of each."""
    table = []
    for one in found:
        cell = one.outcome.cell
        shares = [run["goodput"][cell.slo]["fraction"] for run in one.engine]
        simulated = [run["goodput"][cell.slo]["fraction"] for run in one.outcome.runs]
        row: dict[str, Any] = {
            "machine": cell.machine,
            "traffic": cell.traffic,
            "load": cell.load,
            "slo": cell.slo,
            "contender": one.outcome.contender.name,
            "choice": " ".join(f"{key}={value}" for key, value in one.outcome.choice.items()),
            "requests": sum(run["requests"] for run in one.engine),
            "completed": sum(run["completed"] for run in one.engine),
            "goodput_fraction": fmean(shares),
            "goodput_runs": " ".join(f"{share:.3f}" for share in shares),
            "goodput_simulated": fmean(simulated),
            "goodput_long_prompts": fmean(
                run["goodput"][cell.slo]["long_fraction"] for run in one.engine
            ),
        }
        for name in _COLUMNS:
            row[name] = _mean([run.get(name) for run in one.engine])
            row[f"{name}_simulated"] = _mean([run.get(name) for run in one.outcome.runs])
        for name in ("client_lag_ms_p99", "starved_share"):
            row[name] = _mean([run.get(name) for run in one.engine])
        row["flags"] = " ".join(one.flags)
        table.append(row)
    return table


def write(found: Sequence[Confirmed], command: str, folder: Path) -> None:
    """Write ``confirm.csv`` and ``confirm.json``.

    Raises:
        OSError: a file cannot be written.
    """
    table = rows(found)
    write_csv(table, folder / "confirm.csv")
    content = {
        "schema_version": SCHEMA,
        "what": "EMULATED: stock SGLang, real clients, step times of a model",
        "sglang": metadata.version("sglang"),
        "twp_version": metadata.version("twp-sglang"),
        "code": code_fingerprint(),
        "python": platform.python_version(),
        "command": command,
        "rows": table,
        "runs": [
            {"contender": one.outcome.contender.name, "engine": list(one.engine)} for one in found
        ],
    }
    part = folder / ".confirm.json.part"
    part.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(folder / "confirm.json")


def show(console: Console, found: Sequence[Confirmed]) -> None:
    """Print the table."""
    table = rows(found)
    first = table[0]
    result = Table(
        title=f"EMULATED: {first['traffic']} on {first['machine']}, load {first['load']:g}, "
        f"{first['slo']}; stock SGLang, real clients (simulated figures in brackets)",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    result.add_column("", no_wrap=True)
    for head in ("goodput", "each run", "longest 10 %", "tokens/s", "TTFT P50/P99/max, s",
                 "ITL P99, ms", "starved", "lag P99, ms"):  # fmt: skip
        result.add_column(head, justify="right", no_wrap=True)
    result.add_column("tuned to")
    for row in table:
        result.add_row(
            row["contender"],
            f"{row['goodput_fraction']:.3f} ({row['goodput_simulated']:.3f})",
            row["goodput_runs"],
            f"{row['goodput_long_prompts']:.2f}",
            f"{_cell(row['tokens_per_s'], ',.0f')}"
            f" ({_cell(row['tokens_per_s_simulated'], ',.0f')})",
            "/".join(_seconds(row[f"ttft_ms_{one}"]) for one in ("p50", "p99", "max")),
            f"{_cell(row['itl_ms_p99'], '.4g')} ({_cell(row['itl_ms_p99_simulated'], '.4g')})",
            _cell(row["starved_share"], ".1%"),
            _cell(row["client_lag_ms_p99"], ".1f"),
            row["choice"],
        )
    console.print(result)


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _seconds(value_ms: float | None) -> str:
    return "-" if value_ms is None else f"{value_ms / 1e3:.2f}"
