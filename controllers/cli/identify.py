"""``identify``: models from a step trace, with confidence intervals."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from controllers.cli.common import emit, fail, new_parser, settings_of
from controllers.identification import (
    PARAMETERS,
    Identification,
    IdentificationSummary,
    identify,
)
from controllers.trace_reader import TraceError, read_step_trace

UNITS = {
    "l_min_ms": ("l_min", "ms"),
    "b0": ("B0", "requests"),
    "alpha_ms": ("alpha", "ms per request above B0"),
    "kappa_ms_per_token": ("kappa", "ms per KV token"),
    "prefill_ms_per_token": ("prefill", "ms per prompt token"),
    "a_ms": ("a", "ms per request below B0 too"),
}


def add_parser(sub: Any) -> None:
    """Add the command to ``sub``."""
    parser = new_parser(sub, "identify", "Step-time model, length law and delay from a step trace.")
    add_trace_arguments(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the JSON answer to a file as well"
    )


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of every command that identifies a trace."""
    parser.add_argument(
        "trace", type=Path, metavar="TRACE", help="step trace, JSON lines, plain or .gz"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default 0)")


def identified(args: argparse.Namespace) -> Identification:
    """The identified trace of ``args``; bad input ends the command with one line."""
    if args.seed < 0:
        fail(f"--seed {args.seed}: must not be negative")
    try:
        return identify(read_step_trace(args.trace), seed=args.seed)
    except TraceError as error:
        fail(str(error))


def run(args: argparse.Namespace) -> int:
    """Print the model, or what stands in its way."""
    settings_of(args)
    summary = identified(args).summary
    answer = summary.answer()
    if args.out is not None:
        write_json(args.out, answer)
    return emit(args, answer, lambda: table(summary))


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write ``data`` to ``path``; an unwritable file ends the command."""
    import json

    from controllers.settings import jsonable

    try:
        path.write_text(json.dumps(jsonable(data), indent=2, allow_nan=False) + "\n", "utf-8")
    except OSError as error:
        fail(f"--out {path}: {error.strerror}")


def table(summary: IdentificationSummary) -> str:
    """The summary for people."""
    lines = [
        f"trace        {summary.trace}: {summary.steps_used} timed decode steps of {summary.steps}"
        + (" (EMULATED engine)" if summary.emulated else "")
    ]
    if summary.formula:
        lines.append(f"model        {summary.formula}")
    for name in PARAMETERS:
        estimate = getattr(summary, name)
        if estimate is not None and (estimate.value or estimate.hi):
            label, unit = UNITS[name]
            lines.append(
                f"{label:<12} {estimate.value:.5g}  [{estimate.lo:.5g}, {estimate.hi:.5g}]  {unit}"
            )
    if summary.fit_percent is not None:
        lines.append(
            f"fit          {summary.fit_percent:.1f} % held out, error "
            f"{summary.held_out_error_percent:.2f} %, scatter {summary.noise_percent:.2f} %, "
            f"outliers {summary.outlier_percent:.2f} %"
        )
        lines.append(
            f"residuals    lag-one correlation {summary.residual_lag1:.3f}, whiteness p = "
            f"{summary.ljung_box_p:.3g}"
        )
    if summary.lengths is not None:
        law = summary.lengths
        lines.append(
            f"lengths      mean {law.mean_tokens:.1f}, CV {law.cv:.2f}, mean remaining "
            f"{law.mean_remaining_tokens:.1f} [{law.mean_remaining_lo:.1f}, "
            f"{law.mean_remaining_hi:.1f}] tokens, {law.finished} requests"
        )
    if summary.delay is not None:
        lines.append(
            f"delay        {summary.delay.delay_steps} steps (from {summary.delay.source})"
        )
    lines.append(
        "identifiable " + ("yes" if summary.identifiable else "NO: do not tune on this trace")
    )
    lines += [f"refused      {refusal.sentence()}" for refusal in summary.refusals]
    lines += [f"note         {note}" for note in summary.notes]
    if summary.identifiable:
        lines.append("Intervals hold jointly with 95 % probability.")
    return "\n".join(lines)
