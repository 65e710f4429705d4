"""What a profiling run writes: the step model as JSON, and every timed step as a step trace.

``STEP.json`` is a step profile: the simulator (``--step-model``) and the emulated engine
(``--twp-emulate``) read it. ``STEP.jsonl`` beside it is a step trace:
``python -m controllers identify`` reads it, and so does the simulator, as a replay.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controllers.laws.base import FrozenModel
from controllers.step_trace import Header
from twp_sglang.atomic_write import write_text
from twp_sglang.line_file import LineFile
from twp_sglang.profiling.correctness import Agreement
from twp_sglang.profiling.fitting import StepFit, error_percent
from twp_sglang.profiling.machine import MachineRecord
from twp_sglang.profiling.measuring import Measured, Parts
from twp_sglang.profiling.model_shape import ModelShape
from twp_sglang.profiling.roofline import Rates, roofline
from twp_sglang.step_profiles import StepProfile
from twp_sglang.trace import StepRecord

GOAL_HELD_OUT_PERCENT = 5.0
GOAL_ROOFLINE = 1.5
"""What the step model and the kernels are hoped to reach; the result says whether they do."""


class Findings(FrozenModel):
    """Everything that a run knows; a later one replaces an earlier one on disk."""

    shape: ModelShape
    backend: str
    dtype: str
    element_bytes: int
    machine: MachineRecord
    agreement: Agreement | None
    rates: Rates
    kv_tokens: int
    command: str
    left_out: tuple[str, ...] = ()
    complete: bool = False
    ended: str = ""
    measured: tuple[Measured, ...] = ()
    held_out: tuple[str, ...] = ()
    fit: StepFit | None = None
    parts: Parts | None = None


class StepTraceFile(LineFile):
    """The step trace; every line is on its way to the disk when :meth:`add` returns."""

    def __init__(self, path: Path, header: Header) -> None:
        """Begin ``path`` anew.

        Raises:
            OSError: it cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, "w")
        self._write(header.model_dump_json(by_alias=True))
        self._file.flush()
        self._step, self._t_ms = 0, 0.0

    def add(self, measured: Measured) -> None:
        """One line per timed run of a point."""
        point = measured.point
        for duration in measured.steps_ms:
            record = StepRecord(
                step=self._step,
                t_ms=round(self._t_ms, 3),
                kind=point.kind,
                duration_ms=duration,
                batch=point.batch,
                prefill_tokens=point.chunk,
                kv_tokens=point.kv_tokens,
                queue=0,
                load_tokens=0,
                window_tokens=None,
                sigma=None,
                itl_ms=None,
                sample_step=None,
                admitted=0,
                forced=0,
                closed="",
            )
            self._write(record.line())
            self._step += 1
            self._t_ms += duration
        self._file.flush()


def header(shape: ModelShape, backend: str, machine: MachineRecord, kv_tokens: int) -> Header:
    """Header of the trace."""
    return Header(
        engine=f"twp_sglang.profile_step ({backend})",
        engine_version=f"torch {machine.torch}"
        + (f", flashinfer {machine.flashinfer}" if machine.flashinfer else ""),
        model=f"{shape.name}, random weights",
        kv_capacity_tokens=kv_tokens,
        page_size=1,
        created_unix_s=round(time.time(), 3),
        config={"device": machine.device_name, "host": machine.host},
    )


def write_step_file(path: Path, findings: Findings) -> None:
    """Put the step model at ``path``, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    if findings.fit is None:
        return
    device = findings.machine.device_name
    profile = StepProfile(
        name=path.stem,
        title=f"{findings.shape.name} ({findings.dtype}, random weights) on {device}, attention by "
        f"{findings.backend}, measured by twp_sglang.profile_step",
        step=findings.fit.step,
        kv_tokens=findings.kv_tokens,
        kv_tokens_reason="KV tokens that fit beside the weights in the memory that was free",
        sources=(f"{len(findings.measured)} steps measured on this machine: {findings.command}",),
        leaves_out="HTTP, tokenizer, scheduling and the host's planning of each step; sampling is "
        "greedy",
        measured=measured_record(findings),
    )
    text = json.dumps(profile.model_dump(mode="json"), indent=1, allow_nan=False)
    write_text(path, text + "\n")


def measured_record(findings: Findings) -> dict[str, Any]:
    """How the model was come by, as plain JSON."""
    fit = findings.fit
    agreement = findings.agreement
    return {
        "complete": findings.complete,
        "ended": findings.ended,
        "machine": findings.machine.model_dump(mode="json"),
        "agreement": None
        if agreement is None
        else {**agreement.model_dump(mode="json"), "good": agreement.good},
        "rates": findings.rates.model_dump(mode="json"),
        "fit": None
        if fit is None
        else {
            **fit.model_dump(mode="json", exclude={"step"}),
            "held_out_goal_percent": GOAL_HELD_OUT_PERCENT,
        },
        "headline": headline_record(findings),
        "points": point_rows(findings),
        "left_out": list(findings.left_out),
    }


def point_rows(findings: Findings) -> list[dict[str, Any]]:
    """One row per measured point: time, model, roofline."""
    rows = []
    for found in findings.measured:
        bounds = roofline(findings.shape, found.point, findings.rates, findings.element_bytes)
        row = {
            **found.point._asdict(),
            "ms": round(found.median_ms, 4),
            "spread_percent": round(found.spread_percent, 2),
            "roofline_ms": round(bounds.bound_ms, 4),
            "bound_by": bounds.bound_by,
            "over_roofline": round(found.median_ms / bounds.bound_ms, 3),
            "held_out": found.point.label() in findings.held_out,
            "graph": found.captured,
            "plan_ms": round(found.plan_ms, 4),
        }
        if findings.fit is not None:
            error = error_percent(findings.fit.step, found.point, found.median_ms)
            row["model_error_percent"] = round(error, 2)
        if found.note:
            row["note"] = found.note
        rows.append(row)
    return sorted(
        rows, key=lambda r: (r["kind"], r["batch"], r["context"], r["chunk"], r["prefix"])
    )


def headline_record(findings: Findings) -> dict[str, Any] | None:
    """The headline step against its roofline, and where the distance comes from."""
    parts = findings.parts
    if parts is None:
        return None
    bounds = roofline(findings.shape, parts.point, findings.rates, findings.element_bytes)
    ratio = parts.step_ms / bounds.bound_ms
    return {
        "point": parts.point.label(),
        "step_ms": round(parts.step_ms, 4),
        "roofline_ms": round(bounds.bound_ms, 4),
        "over_roofline": round(ratio, 3),
        "goal": GOAL_ROOFLINE,
        "attention_ms": round(parts.attention_ms, 4),
        "attention_roofline_ms": round(bounds.kv_ms, 4),
        "rest_ms": round(parts.without_attention_ms, 4),
        "rest_roofline_ms": round(bounds.weights_ms, 4),
        "reason": _reason(ratio, parts, bounds.kv_ms, bounds.weights_ms, bounds.bound_by),
    }


def _reason(ratio: float, parts: Parts, kv_ms: float, weights_ms: float, bound_by: str) -> str:
    if ratio <= GOAL_ROOFLINE:
        return f"within {GOAL_ROOFLINE} times its roofline"
    if bound_by == "compute":
        return "bound by compute, not by memory, at this batch"
    over_attention = parts.attention_ms - kv_ms
    over_rest = parts.without_attention_ms - weights_ms
    where = "attention" if over_attention > over_rest else "the rest (matrix products, norms)"
    return (
        f"most of the distance is in {where}: attention takes {parts.attention_ms:.3f} ms against "
        f"{kv_ms:.3f} ms for its KV bytes, everything else {parts.without_attention_ms:.3f} ms "
        f"against {weights_ms:.3f} ms for the weights"
    )


def summary_lines(findings: Findings) -> Sequence[str]:
    """The answer in words."""
    lines = []
    agreement = findings.agreement
    if agreement is not None:
        lines.append(
            f"agreement   {'yes' if agreement.good else 'NO'}: relative error "
            f"{agreement.worst:.2g} against {agreement.reference} (limit {agreement.limit:g})"
        )
    rates = findings.rates
    lines.append(
        f"machine     {findings.machine.device_name}: {rates.bytes_per_s / 1e9:,.0f} GB/s, "
        f"{rates.flops_per_s / 1e12:,.2f} TFLOP/s ({rates.how})"
    )
    fit = findings.fit
    if fit is not None:
        step = fit.step
        knee = f"B0 {step.b0:g}, alpha {step.alpha_ms:.4g} ms" if step.alpha_ms else "no knee"
        lines.append(
            f"model       l_min {step.l_min_ms:.4g} ms, a {step.a_ms:.4g} ms per request, {knee}, "
            f"kappa {step.kappa_ms_per_token:.4g} ms per KV token, prefill "
            f"{step.prefill_ms_per_token:.4g} ms per prompt token beyond "
            f"{step.prefill_free_tokens:g}"
        )
        held = fit.held_out_error_percent
        if held:
            verdict = "within" if held["all"] <= GOAL_HELD_OUT_PERCENT else "above"
            kinds = ", ".join(f"{k} {v:.1f} %" for k, v in held.items() if k != "all")
            lines.append(
                f"held out    {held['all']:.1f} % over {fit.held_out_points} points ({kinds}), "
                f"{verdict} the goal of {GOAL_HELD_OUT_PERCENT:g} %; worst {fit.worst_held_out}"
            )
    head = headline_record(findings)
    if head is not None:
        lines.append(
            f"roofline    {head['point']}: {head['step_ms']} ms, {head['over_roofline']} times its "
            f"roofline of {head['roofline_ms']} ms; {head['reason']}"
        )
    return lines
