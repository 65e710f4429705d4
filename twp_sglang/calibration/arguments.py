"""The command line of calibrate."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from pydantic import ValidationError

from controllers.models import LengthLaw
from twp_sglang.calibration.errors import usage
from twp_sglang.calibration.settings import CalibrationSettings, H0Rule, SourceChoice
from twp_sglang.one_line_parser import OneLineParser

PROG = "python -m twp_sglang.calibrate"

_EXAMPLES = """\
examples:
  start a server as it will be served, measure, stop it:
    python -m twp_sglang.calibrate --out profile.json --mean-output-tokens 180 \\
        --launch -- --model-path MODEL --tp 2
  a server that runs already (step times from its trace if it writes one here):
    python -m twp_sglang.calibrate --url http://127.0.0.1:30000 --out profile.json
  then:
    python -m twp_sglang.launch_server --model-path MODEL --tp 2 --twp-profile profile.json
exit status: 0 measured; 1 measured in part or not at all; 2 something to change first
"""


def build_parser() -> OneLineParser:
    """The parser of everything before ``--``."""
    parser = OneLineParser(
        prog=PROG,
        description="Measure the decode step time over the batch size and the cost of prefill, "
        "and write the profile that launch_server takes with --twp-profile.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add("--url", type=_url, help="running SGLang server, for example http://127.0.0.1:30000")
    add(
        "--launch",
        action="store_true",
        help="start python -m twp_sglang.launch_server with the flags after '--' "
        "(--twp-policy fcfs, a trace and a free port unless given) and stop it at the end",
    )
    add("--out", type=Path, help=_text("out"), metavar="FILE")
    add("--png", type=Path, help="the picture [FILE of --out with .png]", metavar="FILE")
    add("--no-png", action="store_true", help="draw nothing")
    add("--batches", type=_typed(_counts), help=_text("batches"), metavar="1,2,4,...")
    add("--max-batch", type=int, help=_text("max_batch"), metavar="N")
    add("--contexts", type=_typed(_counts), help=_text("contexts"), metavar="64,512")
    add(
        "--prefill",
        type=_typed(lambda text: () if text == "none" else _counts(text)),
        help=_text("prefill") + "; 'none' skips them",
        metavar="16,64,...",
    )
    add("--steps", type=int, help=_text("steps"), metavar="N")
    add("--settle-steps", type=int, help=_text("settle_steps"), metavar="N")
    add("--rounds", type=int, help=_text("rounds"), metavar="N")
    add("--budget-s", type=float, help=_text("budget_s"), metavar="S")
    add("--source", choices=get_args(SourceChoice), help=_text("source"))
    add("--mean-output-tokens", type=float, help=_text("mean_output_tokens"), metavar="X")
    add(
        "--output-lengths",
        type=_typed(LengthLaw.parse),
        help=_text("output_lengths") + ", for example geometric:180 or hist:FILE",
        metavar="LAW",
    )
    add("--h0-rule", choices=get_args(H0Rule), help=_text("h0_rule"))
    add("--min-scaling", type=float, help=_text("min_scaling"), metavar="X")
    add("--allow-busy", action="store_true", help=_text("allow_busy"))
    add("--timeout-s", type=float, help=_text("timeout_s"), metavar="S")
    add("--start-timeout-s", type=float, help=_text("start_timeout_s"), metavar="S")
    add("--seed", type=int, help=_text("seed"), metavar="N")
    add("--api-key-env", help=_text("api_key_env"), metavar="NAME")
    return parser


def settings_from(argv: Sequence[str]) -> CalibrationSettings:
    """Read the command line.

    Raises:
        CalibrationError: a value cannot be used; the message names it.
        SystemExit: argparse has printed help or one message.
    """
    words = list(argv)
    engine: tuple[str, ...] | None = None
    if "--" in words:
        place = words.index("--")
        words, engine = words[:place], tuple(words[place + 1 :])
    values: dict[str, Any] = vars(build_parser().parse_args(words))
    launch = values.pop("launch", False)
    if engine is not None and not launch:
        raise usage("flags after '--' belong to --launch; add --launch, or leave them out")
    if launch:
        if engine is None:
            raise usage("--launch: give the server's flags after '--', at least --model-path")
        values["launch"] = engine
    no_png = values.pop("no_png", False)
    if no_png and "png" in values:
        raise usage("--png and --no-png: give one of the two")
    out = values.get("out", CalibrationSettings.model_fields["out"].default)
    if out.suffix != ".json":
        raise usage(f"--out {out}: must end in .json, by which launch_server tells the format")
    if not no_png:
        values.setdefault("png", out.with_suffix(".png"))
    try:
        return CalibrationSettings.model_validate(values)
    except ValidationError as error:
        raise usage("; ".join(_problem(item) for item in error.errors())) from None


def _problem(error: Any) -> str:
    message = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return str(message)
    name = str(error["loc"][0])
    return f"--{name.replace('_', '-')} {error['input']}: {message}; it is: {_text(name)}"


def _text(name: str) -> str:
    field = CalibrationSettings.model_fields[name]
    text = (field.description or "").replace("%", "%%")
    if field.default is None or field.default is False:
        return text
    shown = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
    return f"{text} [{shown}]"


def _typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        raise ValueError(f"'{text}' is not a list of whole numbers such as 1,2,4,8") from None


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not an address such as http://127.0.0.1:30000"
        )
    return text.rstrip("/")
