"""The command line of the step profiler."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from twp_sglang.one_line_parser import OneLineParser
from twp_sglang.profiling.model_shape import shape_names
from twp_sglang.profiling.settings import Backend, Device, Dtype, Graphs, ProfileSettings

PROG = "python -m twp_sglang.profile_step"

_EPILOG = """\
examples:
  python -m twp_sglang.profile_step --model llama-3.2-3b --backend flashinfer --out step.json
  python -m controllers identify step.jsonl
  python -m twp_sglang.simulate ... --step-model step.json
  python -m twp_sglang.launch_server --twp-emulate step.json
exit status: 0 measured; 1 computed wrongly, or ended early; 2 something to change first (what
was measured by then is kept)
"""


def build_parser() -> OneLineParser:
    """The parser."""
    parser = OneLineParser(
        prog=PROG,
        description="Time decode, mixed and prefill steps of a decoder with random weights, and "
        "fit the step model that the simulator and the emulated engine take.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add(
        "--model",
        required=True,
        help=f"{_text('model')}; bundled: {', '.join(shape_names())}",
        metavar="SHAPE",
    )
    add("--backend", required=True, choices=get_args(Backend), help=_text("backend"))
    add("--out", required=True, type=Path, help=_text("out"), metavar="STEP.json")
    add("--device", choices=get_args(Device), help=_text("device"))
    add("--dtype", choices=get_args(Dtype), help=_text("dtype"))
    for name in ("batches", "contexts", "chunks"):
        add(f"--{name}", type=_counts, help=_text(name), metavar="1,2,...")
    add("--repeats", type=int, help=_text("repeats"), metavar="N")
    add("--budget-s", type=float, help=_text("budget_s"), metavar="S")
    add("--extend", choices=("ragged", "paged"), help=_text("extend"))
    add("--graphs", choices=get_args(Graphs), help=_text("graphs"))
    add("--allow-busy", action="store_true", help=_text("allow_busy"))
    add("--no-check", dest="check", action="store_false", help="do not " + _text("check"))
    add("--threads", type=int, help=_text("threads"), metavar="N")
    add("--seed", type=int, help=_text("seed"), metavar="N")
    return parser


def settings_from(argv: Sequence[str]) -> ProfileSettings:
    """Read the command line.

    Raises:
        ValueError: a value cannot be used; the message names it.
        SystemExit: argparse has printed help or one message.
    """
    values: dict[str, Any] = vars(build_parser().parse_args(list(argv)))
    try:
        return ProfileSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"--{name.replace('_', '-')} {first['input']}: {message}") from None


def _text(name: str) -> str:
    field = ProfileSettings.model_fields[name]
    text = (field.description or "").replace("%", "%%")
    if field.is_required() or field.default in (None, False, True):
        return text
    return f"{text} [{field.default}]"


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a list of whole numbers such as 1,2,4,8"
        ) from None
