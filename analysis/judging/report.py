"""Results as tables, JSON, CSV and pictures."""

from __future__ import annotations

import csv
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from analysis.judging.decisions import DecisionFidelity
from analysis.judging.latency import AIM_ITL_P50_PERCENT, LatencyFidelity
from controllers.laws.base import FrozenModel

_DPI = 150
_SIZE = (10.0, 4.2)


class Heading(FrozenModel):
    """How a result was made."""

    command: str
    date: str
    machine: str


def heading(command: str) -> Heading:
    """The heading of a result made now by ``command``."""
    return Heading(
        command=command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    )


class DecisionFile(FrozenModel):
    """``decisions.json``."""

    heading: Heading
    results: tuple[DecisionFidelity, ...]


class LatencyFile(FrozenModel):
    """``latency.json``."""

    heading: Heading
    result: LatencyFidelity


def write_decisions(results: Sequence[DecisionFidelity], command: str, folder: Path) -> list[Path]:
    """JSON, CSV and PNG; the files."""
    stem = folder / "decisions"
    file = DecisionFile(heading=heading(command), results=tuple(results))
    stem.with_suffix(".json").write_text(file.model_dump_json(indent=1), encoding="utf-8")
    columns = ("place", "step", "reason", "load_before_tokens")
    rows: list[dict[str, Any]] = []
    for result in results:
        for item in result.admitted:
            row: dict[str, Any] = {
                "policy": result.policy,
                "profile": result.profile,
                "wave": item.wave,
                "request": item.request,
            }
            for name in columns:
                row[f"engine_{name}"], row[f"simulator_{name}"] = getattr(item, name)
            rows.append(row)
    _write_csv(stem.with_suffix(".csv"), rows)
    figure, axes = plt.subplots(1, len(results), figsize=_SIZE, squeeze=False, layout="constrained")
    for axis, result in zip(axes[0], results, strict=True):
        for wave in range(result.waves):
            items = [item for item in result.admitted if item.wave == wave]
            axis.plot(
                [item.step[1] for item in items],
                [item.step[0] for item in items],
                ".",
                label=f"wave {wave + 1}",
            )
        end = max((max(item.step) for item in result.admitted), default=1)
        axis.plot([0, end], [0, end], color="0.6", linewidth=0.8, zorder=0)
        order = "same order" if result.same_order else "ORDER DIFFERS"
        axis.set_title(
            f"{result.policy}: {order},\n{100 * result.same_step:.0f} % at the same step"
        )
        axis.set_xlabel("simulator: step in its wave")
        axis.set_ylabel("emulated engine")
        axis.legend()
    figure.suptitle(f"Decisions, EMULATED engine beside simulator ({results[0].profile})")
    figure.savefig(stem.with_suffix(".png"), dpi=_DPI)
    plt.close(figure)
    return [stem.with_suffix(suffix) for suffix in (".json", ".csv", ".png")]


def show_decisions(results: Sequence[DecisionFidelity], console: Console) -> None:
    """A table."""
    table = Table(title="Admissions: emulated engine beside simulator")
    for name in ("policy", "requests", "order", "reasons", "same step", "largest gap", "same load"):
        table.add_column(name)
    for result in results:
        table.add_row(
            result.policy,
            str(result.requests),
            "equal" if result.same_order else "DIFFERS",
            f"{100 * result.same_reasons:.1f} %",
            f"{100 * result.same_step:.1f} %",
            f"{result.step_difference_max} steps",
            f"{100 * result.same_load:.1f} %",
        )
    console.print(table)


def write_latency(result: LatencyFidelity, command: str, folder: Path) -> list[Path]:
    """JSON, CSV and PNG; the files."""
    stem = folder / "latency"
    file = LatencyFile(heading=heading(command), result=result)
    stem.with_suffix(".json").write_text(file.model_dump_json(indent=1), encoding="utf-8")
    rows: list[dict[str, Any]] = []
    for item in result.metrics:
        row: dict[str, Any] = {"metric": item.name, "simulated_ms": item.simulated}
        row |= {f"run_{index + 1}_ms": value for index, value in enumerate(item.runs)}
        row["error_percent"] = item.error_percent
        row["spread_percent"] = item.spread_percent
        rows.append(row)
    _write_csv(stem.with_suffix(".csv"), rows)
    figure, axis = plt.subplots(figsize=_SIZE, layout="constrained")
    for place, item in enumerate(result.metrics):
        mean = sum(item.runs) / len(item.runs)
        axis.plot(
            [place] * len(item.runs),
            [100 * (value / mean - 1) for value in item.runs],
            "o",
            color="tab:blue",
            label="runs of the engine" if not place else None,
        )
        axis.plot(
            place, item.error_percent, "D", color="tab:red", label="" if place else "simulator"
        )
    axis.axhline(0.0, color="0.6", linewidth=0.8)
    axis.set_xticks(range(len(result.metrics)), [item.name for item in result.metrics])
    axis.set_ylabel("against the mean of the runs, %")
    emulated = "EMULATED engine, " if result.emulated else ""
    axis.set_title(
        f"{emulated}policy {result.policy}: second half of the workload, "
        "step model from the first half"
    )
    axis.legend()
    figure.savefig(stem.with_suffix(".png"), dpi=_DPI)
    plt.close(figure)
    return [stem.with_suffix(suffix) for suffix in (".json", ".csv", ".png")]


def show_latency(result: LatencyFidelity, console: Console) -> None:
    """Two tables: step times, and what clients see."""
    steps = Table(title=f"Step times of the second half ({result.calibration})")
    for name in ("kind", "steps", "MAPE %", "median %", "bias %"):
        steps.add_column(name, justify="right")
    for errors in result.step_errors:
        values = (errors.mape_percent, errors.median_ape_percent, errors.bias_percent)
        steps.add_row(
            errors.kind, str(errors.steps), *("-" if v is None else f"{v:.1f}" for v in values)
        )
    console.print(steps)
    table = Table(
        title=f"{result.requests_judged} requests of the second half; HTTP and tokenizer add "
        f"{result.path_ms:.1f} ms"
    )
    count = len(result.metrics[0].runs)
    columns = (*(f"run {index + 1}" for index in range(count)), "simulator", "error %", "spread %")
    table.add_column("ms")
    for name in columns:
        table.add_column(name, justify="right")
    table.add_column("within")
    for item in result.metrics:
        table.add_row(
            item.name,
            *(f"{value:.1f}" for value in item.runs),
            f"{item.simulated:.1f}",
            f"{item.error_percent:+.1f}",
            f"{item.spread_percent:.1f}",
            "yes" if item.within_spread else "no",
        )
    console.print(table)
    if not result.steady:
        console.print(
            f"NO VERDICT: the engine's own runs differ by {result.metrics[0].spread_percent:.0f} % "
            "in ITL P50, so no prediction can be judged by them; use a quieter machine"
        )
        return
    reached = abs(result.itl_p50_error_percent) < AIM_ITL_P50_PERCENT
    console.print(
        f"ITL P50 error {result.itl_p50_error_percent:+.1f} %: the aim of under "
        f"{AIM_ITL_P50_PERCENT:g} % is {'reached' if reached else 'MISSED'}"
    )


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
