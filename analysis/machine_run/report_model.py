"""What a report says of the engine's model and of the tuned loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.machine_run.results_folder import StageResult
from analysis.machine_run.stages import LEARN, PROFILE, STOCK

Results = Mapping[str, StageResult]

_PARAMETERS = ("l_min_ms", "b0", "alpha_ms", "a_ms", "kappa_ms_per_token", "prefill_ms_per_token")

_MARGINS = {
    "disk_margin_alpha": "disk margin",
    "gain_margin": "gain margin",
    "phase_margin_deg": "phase margin, deg",
    "step_ms": "step at rest, ms",
    "batch": "batch at rest",
    "tokens_per_second": "tokens/s at rest",
}


def engine_lines(results: Results) -> list[str]:
    """The identified, the calibrated and the profiled step time, as Markdown."""
    lines = []
    learnt = results.get(LEARN.name)
    identified = (learnt.content.get("identified") if learnt else None) or {}
    if identified.get("formula"):
        lines += [
            f"Identified from {identified['steps_used']} steps of the stock run "
            f"(`{identified['formula']}`):",
            "",
            "| | value | 95 % |",
            "|---|---|---|",
        ]
        for name in _PARAMETERS:
            value = identified.get(name)
            if value and (value["value"] or value["hi"]):
                lines.append(
                    f"| {name} | {value['value']:.5g} | {value['lo']:.5g} to {value['hi']:.5g} |"
                )
        fit = identified.get("fit_percent")
        if fit is not None:
            lines += [
                "",
                f"Held-out fit {fit:.1f} %, error {identified['held_out_error_percent']:.2f} %, "
                f"scatter {identified['noise_percent']:.2f} %.",
            ]
        lines.append("")
    stock = results.get(STOCK.name)
    calibration = stock.content.get("calibration") if stock else None
    if calibration:
        values = ", ".join(
            f"{name} {value:.4g}"
            for name in ("l_min_ms", "b0", "alpha_ms", "prefill_ms_per_token")
            if (value := calibration.get(name)) is not None
        )
        lines += [
            f"Calibrated over held batches: {values or 'no fit'} ({calibration['shape']}).",
            "",
        ]
        lines += [f"- {warning}" for warning in calibration["warnings"]]
        lines += [""] if calibration["warnings"] else []
    profile = results.get(PROFILE.name)
    content = (profile.content.get("profile") if profile else None) or {}
    if content:
        step, measured = content["step"], content["measured"]
        lines.append(
            f"Without an engine (profile_step): l_min {step['l_min_ms']:.4g} ms, "
            f"{step['a_ms']:.4g} ms per request, kappa {step['kappa_ms_per_token']:.4g} and "
            f"prefill {step['prefill_ms_per_token']:.4g} ms per token; " + _held_out(measured)
        )
        head = measured.get("headline")
        if head:
            lines.append(
                f"{head['point']}: {head['step_ms']} ms, {head['over_roofline']} times its "
                f"roofline ({head['reason']})."
            )
        lines.append("")
    return lines or ["Nothing is known of it yet.", ""]


def _held_out(measured: Mapping[str, Any]) -> str:
    held = (measured.get("fit") or {}).get("held_out_error_percent", {}).get("all")
    agreement = measured.get("agreement") or {}
    said = "results were not checked"
    if agreement:
        said = "results agree" if agreement["good"] else "RESULTS DO NOT AGREE"
        said += " with float64"
    return f"{'-' if held is None else f'{held:.1f} %'} error on held-out steps, {said}."


def tuned_lines(results: Results) -> list[str]:
    """The tuned setting and its neighbour with their margins, or why there is none."""
    learnt = results.get(LEARN.name)
    if learnt is None:
        return ["Not tuned.", ""]
    tuned = learnt.content.get("tuned")
    if tuned is None:
        reasons = learnt.content.get("refusals") or [learnt.error]
        return ["Not tuned:", "", *(f"- {reason}" for reason in reasons), ""]
    names = ("tuned", "neighbour")
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for key in tuned["configuration"]:
        cells = [number(learnt.content[name]["configuration"][key]) for name in names]
        lines.append(f"| {key} | " + " | ".join(cells) + " |")
    for key, words in _MARGINS.items():
        cells = [number(learnt.content[name]["margins"].get(key)) for name in names]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Worst case over {tuned['margins']['loops']} plausible loops. The file that serves with "
        "it: `stages/learn/tuned.toml` (`--twp-config`).",
        "",
        *(f"- {note}" for note in tuned["notes"]),
    ]
    broken = learnt.content["neighbour"]["margins"].get("broken_goals")
    if broken:
        lines.append(f"- the neighbour breaks these goals: {'; '.join(broken)}")
    return [*lines, ""]


def number(value: Any) -> str:
    """A cell of a table: three digits, or whole; a dash for what is not known."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"
