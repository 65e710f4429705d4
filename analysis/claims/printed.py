"""Every number that the paper's figures and table print, beside ours (set-up ``paper``)."""

from __future__ import annotations

from analysis.claims.contradictions import contradictions
from analysis.claims.experiment import WorkloadName, plant
from analysis.claims.published import LOADS, SCHEDULERS, Published, Scheduler
from analysis.claims.runs import Results
from analysis.claims.verdict import Row, estimate, judge_level, with_contradictions

INPUT = "43 ms per step is an input of the plant, so agreement is no evidence"

TABLE_COLUMNS: dict[str, tuple[str, str, str]] = {
    "throughput": ("throughput_rps", "throughput_rps", "req/s"),
    "P99": ("p99_latency_ms", "e2e_ms_p99", "ms"),
    "TTFT": ("ttft_ms", "ttft_ms_mean", "ms"),
    "ITL": ("itl_ms", "itl_ms_mean", "ms"),
    "CV": ("itl_cv", "itl_cv", ""),
}
"""Column: its field in the paper's table, our metric, unit. The paper does not say whether
TTFT and ITL are means."""


def printed_rows(results: Results, paper: Published) -> list[Row]:
    """One row per printed number, judged."""
    found = contradictions(paper)
    l_min = plant("paper").l_min_ms

    def row(
        place: str,
        claim: str,
        value: float,
        workload: WorkloadName,
        scheduler: Scheduler,
        metric: str,
        unit: str,
    ) -> Row:
        ours = estimate(results.values("paper", workload, scheduler, metric))
        why = INPUT if unit == "ms" and "itl" in metric and abs(ours.mean - l_min) < 2 else ""
        judged = Row(place, claim, f"{value:,.10g}", ours, unit, judge_level(ours, value), why)
        return with_contradictions(judged, found)

    rows = [
        Row(
            "Fig. 2",
            "ITL up to B0, ms",
            f"{paper.fig2_axis_ms[0]:g} to {paper.fig2_axis_ms[1]:g} (axis)",
            estimate([l_min]),
            "ms",
            "not reproduced",
            INPUT,
        ),
        row(
            "Fig. 4 TWP",
            "largest TTFT",
            paper.fig4_twp_ms,
            "poisson",
            "TWP",
            "ttft_ms_max",
            "ms",
        ),
    ]
    rows[0] = with_contradictions(rows[0], found)
    for name, spike in paper.fig4_spike_ms.items():
        place = f"Fig. 4 {name}"
        rows.append(row(place, "largest TTFT", spike, "poisson", name, "ttft_ms_max", "ms"))
    for name in SCHEDULERS:
        for percentile in ("p50", "p95", "p99"):
            value = getattr(paper.fig5_ttft_ms[name], percentile)
            claim, metric = f"TTFT {percentile.upper()}", f"ttft_ms_{percentile}"
            rows.append(row(f"Fig. 5 {name}", claim, value, "poisson", name, metric, "ms"))
    for name in SCHEDULERS:
        value = paper.fig6_throughput_rps[name]
        place, metric = f"Fig. 6 {name}", "throughput_rps"
        rows.append(row(place, "throughput", value, "poisson", name, metric, "req/s"))
    middle = sum(paper.fig7_twp_ms) / 2
    rows.append(
        row("Fig. 7 TWP", "median ITL", middle, "poisson", "TWP", "itl_ms_p50", "ms"),
    )
    tail = sum(paper.fig7_tail_ms) / 2
    rows += [
        row(f"Fig. 7 {name}", "largest ITL", tail, "poisson", name, "itl_ms_max", "ms")
        for name in SCHEDULERS[:-1]
    ]
    for name in SCHEDULERS:
        value = paper.fig8_itl_cv[name]
        rows.append(row(f"Fig. 8 {name}", "ITL CV", value, "poisson", name, "itl_cv", ""))
    for column, (field, metric, unit) in TABLE_COLUMNS.items():
        for load in LOADS:
            for name in SCHEDULERS:
                value = getattr(paper.table[load][name], field)
                place = f"Table {column} {load} {name}"
                rows.append(row(place, column, value, load, name, metric, unit))
    return rows
