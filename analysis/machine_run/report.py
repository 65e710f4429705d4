"""The report of a run: ``report.md``, ``comparison.csv`` and ``report.png``.

Written after every stage from what is on disk, so that a run that is cut has one.
"""

from __future__ import annotations

import csv
import datetime
import io
import platform
from pathlib import Path
from typing import Any

from analysis.machine_run.engine_set_up import EngineSetUp
from analysis.machine_run.report_model import Results, engine_lines, number, tuned_lines
from analysis.machine_run.settings import RunSettings
from analysis.machine_run.stages import PROFILE, STAGES, STATIC, STOCK, Planned
from twp_sglang.atomic_write import write_text

COLUMNS = {
    "ttft_ms_p50": "TTFT P50, ms",
    "ttft_ms_p99": "TTFT P99, ms",
    "itl_ms_p50": "ITL P50, ms",
    "itl_ms_p99": "ITL P99, ms",
    "decode_gap_ms_p99": "gap P99, ms",
    "tokens_per_s": "tokens/s",
    "goodput_fraction": "goodput",
    "window_cv": "window swing",
    "completed": "completed",
    "failed": "failed",
}
"""Metrics of a setting, with the words of the table."""


def write_report(
    root: Path, settings: RunSettings, set_up: EngineSetUp, results: Results, planned: Planned
) -> None:
    """Write the report of ``results``.

    Raises:
        OSError: the folder cannot be written.
    """
    rows = comparison(results)
    write_text(root / "comparison.csv", _csv(rows))
    drawn = _draw(root, rows)
    text = "\n".join(_lines(settings, set_up, results, planned, rows, drawn=drawn)) + "\n"
    write_text(root / "report.md", text)


def comparison(results: Results) -> list[dict[str, Any]]:
    """One row per setting that was served, stock first."""
    served = [
        (stage, results[stage.name])
        for stage in STAGES
        if stage.kind == "serve" and stage.name in results and results[stage.name].ok
    ]
    rows = [
        {"setting": stage.name, "what": stage.title}
        | {name: result.content["metrics"].get(name) for name in COLUMNS}
        for stage, result in served
    ]
    best = best_static(rows)
    for row in rows:
        row["best_static"] = row["setting"] == best
    return rows


def best_static(rows: list[dict[str, Any]]) -> str | None:
    """The static setting that serves best: goodput where objectives were given, else ITL P99."""
    static = [row for row in rows if row["setting"] in STATIC]

    def worth(row: dict[str, Any]) -> tuple[float, float]:
        return (row["goodput_fraction"] or 0.0, -(row["itl_ms_p99"] or float("inf")))

    return max(static, key=worth)["setting"] if static else None


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["setting", "best_static", *COLUMNS, "what"])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _draw(root: Path, rows: list[dict[str, Any]]) -> bool:
    if not rows:
        return False
    from twp_sglang.benchmarking.figures import draw  # matplotlib takes a second to load
    from twp_sglang.benchmarking.results import read_report

    names = [row["setting"] for row in rows]
    reports = [read_report(root / "stages" / name / "bench.json") for name in names]
    partial = root / ".report.partial.png"
    draw(reports, names, partial)
    partial.replace(root / "report.png")
    return True


def _lines(
    settings: RunSettings,
    set_up: EngineSetUp,
    results: Results,
    planned: Planned,
    rows: list[dict[str, Any]],
    *,
    drawn: bool,
) -> list[str]:
    lines = [f"# {settings.model} on {_where(set_up, results)}", ""]
    lines += _warnings(set_up, results)
    versions = ", ".join(f"{name} {version}" for name, version in set_up.versions.items())
    lines += [
        f"{datetime.date.today().isoformat()}, {platform.platform()}; {versions}.",
        f"Server flags: `{' '.join(set_up.flags)}`.",
        "",
    ]
    lines += ["## Comparison", ""]
    lines += _comparison(settings, results, rows)
    if drawn:
        lines += ["![Latencies and tokens over time](report.png)", ""]
    lines += ["## The engine", "", *engine_lines(results)]
    lines += ["## The tuned loop", "", *tuned_lines(results)]
    lines += ["## Not done", "", *_not_done(results, planned)]
    return lines


def _where(set_up: EngineSetUp, results: Results) -> str:
    profile = results.get(PROFILE.name)
    measured = (profile.content.get("profile") or {}).get("measured") if profile else None
    if measured:
        return str(measured["machine"]["device_name"])
    return "a GPU" if set_up.gpu else "a CPU"


def _warnings(set_up: EngineSetUp, results: Results) -> list[str]:
    lines = []
    if set_up.dummy:
        lines.append(
            "**Dummy weights**: times are those of this shape, the tokens mean nothing, and "
            "outputs have the lengths that were asked for."
        )
    if not set_up.gpu:
        lines.append(
            "**CPU reference platform**: it shows that the whole path works; its times say nothing "
            "of a GPU."
        )
    if any(result.content.get("emulated") for result in results.values()):
        lines.append("**EMULATED engine**: step times come from a model.")
    lines += [
        f"**{result.name}: TWP fell back to stock scheduling.** Its row is stock."
        for result in results.values()
        if result.content.get("fallbacks")
    ]
    return [*lines, ""] if lines else []


def _comparison(settings: RunSettings, results: Results, rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return ["Nothing was served.", ""]
    traffic = results[STOCK.name].content["traffic"]
    shown = {
        name: words for name, words in COLUMNS.items() if any(row[name] is not None for row in rows)
    }
    lines = [
        f"The same requests for every setting: {traffic['rate_rps']:g} requests/s for "
        f"{traffic['seconds']:g} s, {traffic['burst_factor']:g} times that in a burst of a quarter "
        f"of the time; prompts of {traffic['input_tokens']} and outputs of "
        f"{traffic['output_tokens']} tokens. Rate: {traffic['how']}. One run each: differences "
        "of a few percent are scatter.",
        "",
        "| setting | " + " | ".join(shown.values()) + " |",
        "|---|" + "---|" * len(shown),
    ]
    for row in rows:
        name = f"{row['setting']} (best static)" if row["best_static"] else row["setting"]
        lines.append(f"| {name} | " + " | ".join(number(row[key]) for key in shown) + " |")
    lines.append("")
    lines += [f"- {row['setting']}: {row['what']}" for row in rows] + [""]
    if settings.slo:
        lines += [f"Goodput: {settings.slo}.", ""]
    cautions = {
        caution: None
        for row in rows
        for caution in results[row["setting"]].content.get("cautions", [])
    }
    if cautions:
        lines += ["Cautions of the load generator:", "", *(f"- {c}" for c in cautions), ""]
    return lines


def _not_done(results: Results, planned: Planned) -> list[str]:
    lines = [f"- {name}: {why}" for name, why in planned.left_out.items()]
    lines += [f"- {name}: still to do" for name in planned.run]
    lines += [f"- {r.name} failed: {r.error}" for r in results.values() if not r.ok]
    if results.get(PROFILE.name) is None and PROFILE.name not in {*planned.left_out, *planned.run}:
        lines.append(f"- {PROFILE.name}: the model's shape is not known, or the engine is emulated")
    return lines or ["Everything was done."]
