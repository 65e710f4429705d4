"""``report``: one page and pictures from a step trace or a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from controllers.cli.common import emit, fail, new_parser, settings_of
from controllers.cli.tune import add_goal_arguments, goals_of, stated_of
from controllers.report import Report, report_from_model, report_from_trace, write_report
from controllers.settings import SettingsError
from controllers.trace_reader import TraceError, read_step_trace


def add_parser(sub: Any) -> None:
    """Add the command to ``sub``."""
    parser = new_parser(
        sub,
        "report",
        "One HTML page and PNG pictures from a step trace or, without one, from the model that "
        "--config and --set state.",
    )
    parser.add_argument(
        "trace", type=Path, nargs="?", metavar="TRACE", help="step trace, plain or .gz"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the bootstrap (default 0)")
    add_goal_arguments(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/report"),
        metavar="DIR",
        help="folder to write to (default out/report)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the page and say where it lies."""
    if args.seed < 0:
        fail(f"--seed {args.seed}: must not be negative")
    report = _report(args)
    try:
        paths = write_report(report, args.out)
    except OSError as error:
        fail(f"--out {args.out}: {error.strerror}")
    answer = {
        "page": str(paths[0]),
        "figures": [str(path) for path in paths[1:]],
        "verdict": [{"level": f.level, "text": f.text} for f in report.findings],
    }

    def text() -> str:
        words = [f"{finding.level:<5} {finding.text}" for finding in report.findings]
        return "\n".join([*words, f"\n{paths[0]} and {len(paths) - 1} pictures beside it"])

    return emit(args, answer, text)


def _report(args: argparse.Namespace) -> Report:
    settings = settings_of(args)
    if args.trace is None:
        try:
            return report_from_model(settings.loop())
        except SettingsError as error:
            fail(str(error))
    try:
        trace = read_step_trace(args.trace)
    except TraceError as error:
        fail(str(error))
    return report_from_trace(trace, goals_of(args, settings), seed=args.seed, **stated_of(settings))
