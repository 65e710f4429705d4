"""The result of a run as JSON and as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from twp_sglang.config import TwpConfig
from twp_sglang.latency_metrics import Distribution, Slo
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.simulate import SimulationResult
from twp_sglang.workloads.workload import Workload, WorkloadSummary

SCHEMA = "twp-simulation/1"

_GROUPS = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "decode_gap_ms")


def as_json(
    result: SimulationResult,
    workload: Workload,
    summary: WorkloadSummary,
    config: TwpConfig,
    settings: EngineSettings,
    run: dict[str, Any],
    slos: Sequence[Slo],
) -> dict[str, Any]:
    """Everything about a run; all but ``wall_s`` is the same for equal runs.

    ``run`` holds what else was asked: step model, seed, replicas, router.
    """
    latency = result.latency
    return {
        "schema_version": SCHEMA,
        "simulated": True,
        "twp_version": metadata.version("twp-sglang"),
        "policy": config.policy,
        **run,
        "slos": [slo.model_dump() for slo in slos],
        "requests": latency.requests,
        "completed": latency.completed,
        "refused": result.refused,
        "failed": result.failed,
        "duration_s": latency.duration_s,
        "output_tokens": latency.output_tokens,
        "output_tokens_per_s": latency.output_tokens_per_s,
        "requests_per_s": latency.requests_per_s,
        **{name: getattr(latency, name).model_dump() for name in _GROUPS},
        "itl_cv": latency.itl_cv,
        "goodput_rps": latency.goodput_rps,
        "goodput_fraction": latency.goodput_fraction,
        "retractions": result.retractions,
        "preemptions": result.preemptions,
        "forced": result.forced,
        "prefix_hit_tokens": result.prefix_hit_tokens,
        "window_tokens": result.window_tokens.model_dump(),
        "steps": result.steps,
        "workload": {
            "name": workload.name,
            "notes": list(workload.notes),
            **summary.model_dump(mode="json"),
        },
        "engine": settings.model_dump(mode="json"),
        "config": config.model_dump(mode="json"),
        "wall_s": round(result.wall_s, 3),
    }


def write_json(value: dict[str, Any], path: Path) -> None:
    """Write ``value``, whole or not at all.

    Raises:
        OSError: the folder cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)


def print_table(console: Console, title: str, result: SimulationResult) -> None:
    """The figures a person looks for."""
    latency = result.latency
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for head in ("P50", "P95", "P99", "max"):
        table.add_column(head, justify="right")
    for name in _GROUPS:
        _row(table, name.replace("_ms", " (ms)").replace("_", " "), getattr(latency, name))
    if result.window_tokens.count:
        _row(table, "window (tokens)", result.window_tokens)
    console.print(table)
    rate = latency.output_tokens_per_s
    console.print(
        f"{latency.completed} of {latency.requests} completed in {latency.duration_s:,.1f} "
        f"simulated s, {'-' if rate is None else f'{rate:,.0f}'} output tokens/s, ITL CV "
        f"{'-' if latency.itl_cv is None else f'{latency.itl_cv:.4f}'}"
    )
    if latency.goodput_fraction is not None:
        console.print(
            f"goodput {latency.goodput_rps or 0.0:.3g} requests/s, "
            f"{latency.goodput_fraction:.1%} of all"
        )
    console.print(
        f"{result.retractions} retractions, {result.forced} forced, {result.preemptions} "
        f"preempted, {result.prefix_hit_tokens:,} prompt tokens from the prefix cache; "
        f"{result.steps:,} steps in {result.wall_s:.1f} s"
    )
    for kind, reasons in (("refused", result.refused), ("failed", result.failed)):
        for reason, count in reasons.items():
            console.print(f"[yellow]{count} {kind}: {reason}[/yellow]")


def _row(table: Table, name: str, values: Distribution) -> None:
    cells = (values.p50, values.p95, values.p99, values.max)
    table.add_row(name, *("-" if value is None else f"{value:,.4g}" for value in cells))
