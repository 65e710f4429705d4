"""One machine in one go: ``python -m analysis.flashinfer_run --help``, docs/gpu.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from rich.console import Console

from analysis.machine_run.engine_set_up import SetUpError
from analysis.machine_run.results_folder import FolderError
from analysis.machine_run.run import run_to_end
from analysis.machine_run.settings import Platform, RunSettings
from twp_sglang.benchmarking.slo_argument import parse_slos
from twp_sglang.one_line_parser import OneLineParser
from twp_sglang.profiling.model_shape import ShapeError, shape_names

PROG = "python -m analysis.flashinfer_run"

_EPILOG = """\
examples:
  python -m analysis.flashinfer_run --model dummy:llama-3.2-3b --minutes 10 --out out/run
  python -m analysis.flashinfer_run --model dummy:llama-3.2-3b --minutes 10 --out out/run --resume
  python -m analysis.flashinfer_run --model MODEL --minutes 30 --out out/run -- --tp-size 2
exit status: 0 done what fitted; 2 something to change first, or no engine could be measured (what
was measured is kept); 130 stopped
"""


def build_parser() -> OneLineParser:
    """The command line, without what stands after ``--``."""
    parser = OneLineParser(
        prog=PROG,
        description="Measure step times, calibrate, serve a burst under stock scheduling, static "
        "settings, the paper's law and a tuned loop, identify and tune between, and write one "
        "report. Stages are planned into the minutes given; a run that is killed goes on with "
        "--resume. On a machine without a GPU the engine runs on the CPU.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add(
        "--model",
        required=True,
        help=f"{_text('model')}: {', '.join(shape_names())}",
        metavar="PATH|dummy:SHAPE",
    )
    add("--out", required=True, type=Path, help=_text("out"), metavar="DIR")
    add("--minutes", type=float, help=_text("minutes"), metavar="M")
    add("--resume", action="store_true", help=_text("resume"))
    add("--platform", choices=get_args(Platform), help=_text("platform"))
    add("--attention-backend", help=_text("attention_backend"), metavar="NAME")
    add("--load", type=float, help=_text("load"), metavar="X")
    add("--burst-factor", type=float, help=_text("burst_factor"), metavar="X")
    add("--slo", help=_text("slo"), metavar="METRIC=LIMIT,...")
    add("--seed", type=int, help=_text("seed"), metavar="N")
    return parser


def settings_from(argv: Sequence[str]) -> RunSettings:
    """Read the command line.

    Raises:
        ValueError: a value cannot be used; the message names it.
        SystemExit: argparse has printed help or one message.
    """
    words = list(argv)
    engine: tuple[str, ...] = ()
    if "--" in words:
        place = words.index("--")
        words, engine = words[:place], tuple(words[place + 1 :])
    values: dict[str, Any] = vars(build_parser().parse_args(words))
    if values.get("slo"):
        parse_slos(values["slo"])
    try:
        return RunSettings.model_validate({**values, "engine_flags": engine})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).replace("_", "-")
        raise ValueError(f"--{name} {first['input']}: {first['msg']}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is told in ``--help``."""

    def say(line: str) -> None:
        print(f"flashinfer_run: {line}", file=sys.stderr, flush=True)

    try:
        settings = settings_from(sys.argv[1:] if argv is None else argv)
        status = run_to_end(settings, Console(stderr=True), say)
    except (SetUpError, FolderError, ShapeError, ValueError, OSError) as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say("stopped; go on with --resume")
        return 130
    print(f"report: {settings.out / 'report.md'}")
    return status


def _text(name: str) -> str:
    field = RunSettings.model_fields[name]
    text = (field.description or "").replace("%", "%%")
    if field.is_required() or field.default in (None, False, "", ()):
        return text
    return f"{text} [{field.default}]"


if __name__ == "__main__":
    sys.exit(main())
