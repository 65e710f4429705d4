"""``tune``: safe gains and clamps from a step trace."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from controllers.cli.common import emit, fail, new_parser, number, settings_of
from controllers.cli.identify import add_trace_arguments, identified
from controllers.identification import Identification
from controllers.models import LengthLaw
from controllers.settings import Settings, jsonable, one_line
from controllers.tuning import (
    TuningGoals,
    TuningRefused,
    TuningResult,
    evidence,
    tune,
    write_configuration,
)

TUNABLE = ("paper", "regulated")
"""Laws of :class:`TuningGoals`."""

_STATED = {"law", "queue_ref", "sigma_ref", "lengths", "delay_steps", "prompt_tokens"}


def add_parser(sub: Any) -> None:
    """Add the command to ``sub``."""
    parser = new_parser(sub, "tune", "Safe gain, filter weight, window and clamps from a trace.")
    add_trace_arguments(parser)
    add_goal_arguments(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the configuration (.toml or .json)"
    )
    parser.add_argument(
        "--date", help="date in the evidence, ISO 8601 (default today; state it to reproduce)"
    )


def add_goal_arguments(parser: argparse.ArgumentParser) -> None:
    """One argument for each goal that ``--set`` does not name."""
    fields = TuningGoals.model_fields
    for name, kind in (
        ("slo_ms", float),
        ("slo_sigma", float),
        ("disk_margin", float),
        ("batch_max", int),
        ("exceed_probability", float),
        ("window_jitter", float),
        ("models", int),
    ):
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=kind,
            help=(fields[name].description or "").replace("%", "%%"),
        )


def goals_of(args: argparse.Namespace, settings: Settings) -> TuningGoals:
    """Goals from the arguments, law and references from the settings."""
    if settings.law not in TUNABLE:
        fail(
            f"law = {settings.law!r}: only {' and '.join(TUNABLE)} have a gain to tune; for "
            "another law take the model from identify and try it with step, margins or report"
        )
    given = {
        name: getattr(args, name)
        for name in TuningGoals.model_fields
        if getattr(args, name, None) is not None
    }
    for name in ("queue_ref", "sigma_ref"):
        if getattr(settings, name) is not None:
            given[name] = getattr(settings, name)
    try:
        return TuningGoals(law=settings.law, **given)
    except ValidationError as error:
        fail(one_line(error))


def stated_of(settings: Settings) -> dict[str, Any]:
    """What the settings state and the trace need not tell."""
    stated: dict[str, Any] = {}
    if settings.lengths is not None:
        try:
            stated["lengths"] = LengthLaw.parse(settings.lengths)
        except ValueError as error:
            fail(str(error))
    if settings.delay_steps is not None:
        stated["delay_steps"] = settings.delay_steps
    if settings.prompt_tokens is not None:
        stated["prompt_tokens"] = settings.prompt_tokens
    return stated


def run(args: argparse.Namespace) -> int:
    """Print and write the configuration, or say which data would carry one."""
    settings = settings_of(args)
    given = {k for k, v in settings.model_dump().items() if v is not None}
    if ignored := sorted(given - _STATED):
        print(
            f"note: tune finds {', '.join(ignored)} itself and ignores what is set; it takes "
            f"{', '.join(sorted(_STATED))}",
            file=sys.stderr,
        )
    if args.out is not None and args.out.suffix not in (".toml", ".json"):
        fail(f"--out {args.out}: name a .toml or .json file")
    goals, stated = goals_of(args, settings), stated_of(settings)
    date = _date(args.date)
    found = identified(args)
    try:
        result = tune(found, goals, **stated)
    except TuningRefused as error:
        if args.json:
            refusals = [refusal.model_dump() for refusal in error.refusals]
            print(json.dumps({"configuration": None, "worst_case": None, "refusals": refusals}))
        fail(str(error))
    proof = evidence(found, result, date)
    if args.out is not None:
        try:
            write_configuration(args.out, result.configuration, proof)
        except OSError as error:
            fail(f"--out {args.out}: {error.strerror}")
    answer = {
        "configuration": result.configuration,
        "worst_case": result.worst_case.model_dump(),
        "evidence": jsonable(proof),
    }
    return emit(args, answer, lambda: _text(found, result, args.out))


def _date(text: str | None) -> str:
    if text is None:
        return datetime.date.today().isoformat()
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        fail(f"--date {text}: write it as ISO 8601, for example 2026-01-31")
    return text


def _text(found: Identification, result: TuningResult, out: Path | None) -> str:
    worst, problem = result.worst_case, result.problem
    lines = [f"{key:<13} {_shown(value)}" for key, value in result.configuration.items()]
    lines += [
        "",
        f"worst case over {worst.loops} plausible loops (models x lengths x delays):",
        f"disk margin   {worst.disk_margin_alpha:.3f} (goal {problem.goals.disk_margin:g}), gain "
        f"margin {number(worst.gain_margin, 3)}, phase margin "
        f"{number(worst.phase_margin_deg, 3)} deg",
        f"step at rest  {worst.step_ms:.1f} ms (limit {problem.slo_ms:.1f}), sigma "
        f"{worst.sigma:.3f}",
        f"batch         {worst.batch:.1f} at rest, P(B > {problem.batch_max}) = "
        f"{worst.batch_exceedance:.2g} (bound {problem.goals.exceed_probability:g})",
        f"bandwidth     {worst.tokens_per_second:.4g} tokens/s",
        f"window jitter {100 * (worst.window_jitter or 0):.2f} % from step noise of "
        f"{100 * problem.noise:.1f} %",
    ]
    lines += [f"note          {note}" for note in (*found.summary.notes, *result.notes)]
    if out is not None:
        lines.append(f"written to    {out}")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
