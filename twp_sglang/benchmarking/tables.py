"""Terminal tables: one run, or several beside the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from twp_sglang import latency_metrics as metrics
from twp_sglang.benchmarking.results import RunReport, Summary
from twp_sglang.latency_metrics import Distribution, FloatArray

Interval = tuple[float, float] | None

_BOOTSTRAP_SAMPLES = 20_000_000
"""Samples drawn in all for one interval: some seconds of numpy at most."""


class Row(NamedTuple):
    """One line of a table: what it is called, where it comes from, which way is better."""

    name: str
    value: Callable[[Summary], float | None]
    unit: str
    better: Literal["lower", "higher"]
    group: str = ""
    percentile: float | None = None


def _distribution_rows(title: str, group: str, statistics: Sequence[str]) -> list[Row]:
    def of(statistic: str) -> Callable[[Summary], float | None]:
        def read(summary: Summary) -> float | None:
            value: Distribution = getattr(summary.latency, group)
            found: float | None = getattr(value, statistic)
            return found

        return read

    return [
        Row(
            name=f"{title} {statistic.upper() if statistic != 'max' else 'max'}",
            value=of(statistic),
            unit="ms",
            better="lower",
            group=group,
            percentile=float(statistic[1:]) if statistic != "max" else None,
        )
        for statistic in statistics
    ]


_STATISTICS = ("p50", "p95", "p99", "max")

ROWS: tuple[Row, ...] = (
    *_distribution_rows("TTFT", "ttft_ms", _STATISTICS),
    *_distribution_rows("ITL", "itl_ms", _STATISTICS),
    *_distribution_rows("TPOT", "tpot_ms", _STATISTICS),
    *_distribution_rows("E2E", "e2e_ms", _STATISTICS),
    *_distribution_rows("Decode gap", "decode_gap_ms", ("p50", "p95", "p99")),
    Row("ITL CV", lambda s: s.latency.itl_cv, "", "lower"),
    Row("Output tokens/s", lambda s: s.latency.output_tokens_per_s, "", "higher"),
    Row("Completed requests/s", lambda s: s.latency.requests_per_s, "", "higher"),
    Row("Goodput requests/s", lambda s: s.latency.goodput_rps, "", "higher"),
    Row("SLOs met by", lambda s: _percent(s.latency.goodput_fraction), "%", "higher"),
    Row("Failed requests", lambda s: float(sum(s.failed.values())), "", "lower"),
)


def format_value(value: float | None, unit: str) -> str:
    """Three significant digits; milliseconds become seconds above ten thousand."""
    if value is None:
        return "–"
    if unit == "ms" and abs(value) >= 10_000:
        return f"{value / 1000:.1f} s"
    if value == int(value) and abs(value) < 1e6 and unit != "ms":
        text = f"{value:.0f}"
    elif abs(value) >= 100:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.3g}"
    return f"{text} {unit}".strip()


def intervals(base: RunReport, other: RunReport) -> dict[tuple[str, float], Interval]:
    """Bootstrap intervals of ``other`` over ``base``, by (group, percentile)."""
    found: dict[tuple[str, float], Interval] = {}
    wanted: dict[str, list[float]] = {}
    for row in ROWS:
        if row.percentile is not None:
            wanted.setdefault(row.group, []).append(row.percentile)
    for group, percentiles in wanted.items():
        ours, theirs = _clusters(other, group), _clusters(base, group)
        size = sum(map(len, ours)) + sum(map(len, theirs))
        resamples = int(np.clip(_BOOTSTRAP_SAMPLES // max(size, 1), 50, 300))
        ratios = metrics.bootstrap_ratios(ours, theirs, percentiles, resamples=resamples)
        found |= {(group, p): ratio for p, ratio in zip(percentiles, ratios, strict=True)}
    return found


def summary_table(report: RunReport) -> Table:
    """Latency of one run: a line a metric, a column a statistic."""
    table = Table(title=Text(report.header.label), title_justify="left", header_style="bold")
    table.add_column("")
    for name in ("P50", "P95", "P99", "max", "mean"):
        table.add_column(name, justify="right")
    latency = report.summary.latency
    for name, values in (
        ("TTFT", latency.ttft_ms),
        ("ITL", latency.itl_ms),
        ("TPOT", latency.tpot_ms),
        ("E2E", latency.e2e_ms),
        ("Decode gap", latency.decode_gap_ms),
        ("Sent late by", report.summary.lateness_ms),
    ):
        cells = (values.p50, values.p95, values.p99, values.max, values.mean)
        table.add_row(name, *(format_value(cell, "ms") for cell in cells))
    return table


def print_run(console: Console, report: RunReport) -> None:
    """The outcome of one run."""
    summary, latency = report.summary, report.summary.latency
    if summary.completed:
        console.print(summary_table(report))
    facts = [
        f"{summary.completed} of {summary.planned} requests completed",
        f"{format_value(latency.output_tokens_per_s, '')} output tokens/s",
        f"ITL CV {format_value(latency.itl_cv, '')}",
        f"{latency.duration_s:.1f} s",
    ]
    if latency.goodput_rps is not None and latency.goodput_fraction is not None:
        slos = ", ".join(f"{slo.metric} ≤ {slo.limit_ms:g} ms" for slo in report.header.slos)
        facts.append(
            f"goodput {latency.goodput_rps:.3g} requests/s "
            f"({100 * latency.goodput_fraction:.0f} % met {slos})"
        )
    console.print(" · ".join(facts), highlight=False)
    if summary.failed:
        kinds = ", ".join(f"{kind} {count}" for kind, count in summary.failed.items())
        console.print(f"[red]Failed:[/red] {kinds}", highlight=False)
        for kind in summary.failed:
            example = next(r.error for r in report.requests if r.error and r.error.kind == kind)
            message = Text(f"  {kind}: {' '.join(example.message.split())[:160]}", style="dim")
            console.print(message)


def comparison_table(reports: Sequence[RunReport], names: Sequence[str]) -> Table:
    """Every run beside the first, with ratios and their 95 % intervals."""
    base, *others = reports
    table = Table(header_style="bold")
    table.add_column("")
    table.add_column(Text(names[0]), justify="right")
    for name in names[1:]:
        table.add_column(Text(name), justify="right")
        table.add_column("ratio [95 %]", justify="right")
    ranges = [intervals(base, other) for other in others]
    previous = ROWS[0].group
    for row in ROWS:
        if row.group != previous:
            table.add_section()
            previous = row.group
        first = row.value(base.summary)
        cells: list[str | Text] = [row.name, format_value(first, row.unit)]
        for other, found in zip(others, ranges, strict=True):
            value = row.value(other.summary)
            interval = found.get((row.group, row.percentile)) if row.percentile else None
            cells += [format_value(value, row.unit), _ratio(first, value, interval, row.better)]
        table.add_row(*cells)
    return table


def _ratio(
    first: float | None,
    value: float | None,
    interval: Interval,
    better: Literal["lower", "higher"],
) -> Text:
    if first is None or value is None or first == 0:
        return Text("–")
    ratio = value / first
    text = f"{ratio:.3g}×" if ratio >= 10 else f"{ratio:.2f}×"
    if interval is None:
        return Text(text)
    low, high = interval
    # Colour only what the requests of the two runs bear out.
    sure_lower, sure_higher = high < 1.0, low > 1.0
    style = "dim"
    if sure_lower or sure_higher:
        style = "green" if sure_lower == (better == "lower") else "red"
    digits = 0 if high >= 10 else 2
    return Text(f"{text} [{low:.{digits}f}, {high:.{digits}f}]", style=style)


def _clusters(report: RunReport, group: str) -> list[FloatArray]:
    """The samples of ``group``, one array per completed request."""
    read = {
        "ttft_ms": metrics.ttft_ms,
        "tpot_ms": metrics.tpot_ms,
        "e2e_ms": metrics.e2e_ms,
        "decode_gap_ms": metrics.decode_gap_ms,
    }
    clusters = []
    for record in report.requests:
        if record.error is not None:
            continue
        if group == "itl_ms":
            clusters.append(np.asarray(record.itl_ms, dtype=np.float64))
            continue
        value = read[group](record.token_times())
        if value is not None:
            clusters.append(np.array([value]))
    return clusters


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100.0 * fraction
