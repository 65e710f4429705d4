"""``python -m twp_sglang.demo``: watch a real model answer a burst under TWP."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

from twp_sglang.config import POLICY_NAMES
from twp_sglang.demonstration.run import EXIT_INTERRUPTED, EXIT_USAGE, DemoError, run
from twp_sglang.demonstration.settings import DemoSettings
from twp_sglang.one_line_parser import OneLineParser

_PROG = "python -m twp_sglang.demo"

_EPILOG = """\
Everything after -- goes to launch_server:
  python -m twp_sglang.demo --policy twp -- --twp-gamma 0.3 --log-level debug
"""


def build_parser() -> OneLineParser:
    """The command line."""
    parser = OneLineParser(
        prog=_PROG,
        description="Serve SmolLM2-135M-Instruct with stock SGLang under Token Window Pacing, send "
        "it a burst of grade-school maths questions, and draw what happened. A terminal shows the "
        "window and some of the answers as they stream, a pipe one line of counts every three "
        "seconds; in the end there is a table, and --out holds the plot, the step trace, the "
        "results and the log. Uses a GPU where there is one, else the CPU.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--policy", default="twp", choices=POLICY_NAMES, help="who decides admissions [twp]")
    add("--requests", metavar="N", help="questions to send [36 on a CPU, 400 on a GPU]")
    add(
        "--rate",
        dest="rate_rps",
        metavar="R",
        help="requests per second outside the burst, which is twelve times that [0.5, 20]",
    )
    add("--max-tokens", metavar="T", help="longest answer in tokens [48]")
    add("--port", default="auto", help="port of the server, or auto for a free one [auto]")
    add(
        "--out", type=Path, metavar="DIR",
        help="folder for trace, results, plot and log [out/demo-DATE-TIME]",
    )  # fmt: skip
    add("--start-timeout", dest="start_timeout_s", metavar="S", help="seconds to wait [300]")
    return parser


def settings_from(argv: Sequence[str]) -> DemoSettings:
    """Read the command line.

    Raises:
        ValueError: naming the flag, its value and what it must be.
    """
    given = list(argv)
    engine_flags: list[str] = []
    if "--" in given:
        place = given.index("--")
        given, engine_flags = given[:place], given[place + 1 :]
    arguments = vars(build_parser().parse_args(given))
    values = {name: value for name, value in arguments.items() if value is not None}
    if values["port"] == "auto":
        del values["port"]
    values.setdefault("out", Path("out") / f"demo-{datetime.now():%Y%m%d-%H%M%S}")
    values["out"] = values["out"].absolute()
    values["engine_flags"] = tuple(engine_flags)
    try:
        return DemoSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        flag = "--" + name.removesuffix("_rps").removesuffix("_s").replace("_", "-")
        raise ValueError(f"{flag} {first['input']}: {first['msg']}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status (see ``demonstration.run``)."""
    given = sys.argv[1:] if argv is None else list(argv)
    console = Console()
    try:
        settings = settings_from(given)
    except ValueError as error:
        print(f"demo: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        return asyncio.run(run(settings, console, shlex.join([*_PROG.split(), *given])))
    except DemoError as error:
        if error.detail:
            print(error.detail, file=sys.stderr)
        print(f"demo: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
