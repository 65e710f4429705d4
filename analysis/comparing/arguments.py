"""The command line of ``python -m analysis.compare``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from analysis.cells.traffic import NAMES
from analysis.comparing.contenders import CATALOGUE, LEFT_OUT
from twp_sglang.one_line_parser import OneLineParser
from twp_sglang.step_profiles import profile_names

_EPILOG = """\
example, about two minutes:
  python -m analysis.compare --machine h100-llama31-8b --traffic azure-conv --load 0.6 0.85 \\
      --contender stock static static-spf twp --requests 1000 --seeds 3 --out out/compare

The same command goes on where it was stopped; added loads, contenders or seeds compute only what
is missing. Terms, choices and how to read the figures: docs/analysis.md.
"""


def build_parser() -> OneLineParser:
    """The parser; ``vars`` of its result are the names used by the command."""
    parser = OneLineParser(
        prog="python -m analysis.compare",
        description="Schedulers side by side in the simulator, each tuned on one half of the "
        "traffic and measured on the other.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument_group(
        "cells (every machine with every traffic and load)"
    ).add_argument
    add(
        "--machine",
        nargs="+",
        default=["h100-llama31-8b"],
        metavar="NAME[,KEY=VALUE]",
        help=f"step model and overrides, e.g. h100-llama31-8b,kv_tokens=60000 or "
        f"paper-v100,alpha_ms=8.6; names: {', '.join(profile_names())} [%(default)s]",
    )
    add(
        "--traffic",
        nargs="+",
        default=["azure-conv"],
        metavar="NAME",
        help=f"{', '.join(NAMES)}, or FILE:FORMAT as for twp_sglang.simulate [%(default)s]",
    )
    add(
        "--load",
        nargs="+",
        type=positive,
        default=[0.3, 0.6, 0.75, 0.85, 0.95],
        metavar="U",
        help="engine time needed over time [%(default)s]",
    )
    add(
        "--slo",
        nargs="+",
        default=["ttft=2s,itl_p99=50ms"],
        metavar="LIST",
        help="objectives of goodput; several lists are several cells [%(default)s]",
    )

    add = parser.add_argument_group("contenders").add_argument
    add(
        "--contender",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"[all of {', '.join(CATALOGUE)}]; the simulator cannot express: "
        f"{', '.join(LEFT_OUT)}",
    )
    add("--contenders", type=Path, metavar="FILE", help="TOML with contenders of your own")
    add(
        "--hindsight",
        nargs="*",
        default=["static", "static-spf"],
        metavar="NAME",
        help="also tuned on the half it is measured on, marked * [%(default)s]",
    )
    add(
        "--reference",
        default="static",
        metavar="NAME",
        help="differences of goodput are to this one [%(default)s]",
    )

    add = parser.add_argument_group("effort").add_argument
    add("--requests", type=count, default=2000, metavar="N", help="per simulation [%(default)s]")
    add("--seeds", type=count, default=5, metavar="N", help="measured on [%(default)s]")
    add("--tune-seeds", type=count, default=3, metavar="N", help="per candidate [%(default)s]")
    add(
        "--noise",
        type=not_negative,
        default=0.03,
        metavar="S",
        help="scatter of log step time [%(default)s]",
    )
    add("--jobs", type=count, default=os.cpu_count() or 1, metavar="N", help="processes [all CPUs]")

    add = parser.add_argument_group("result").add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="folder; made where missing")
    add(
        "--capacity",
        type=share,
        default=0.9,
        metavar="F",
        help="share of requests that defines the load carried [%(default)s]",
    )
    add("--no-png", action="store_true", help="no figures")
    add("--no-progress", action="store_true", help="no progress bar, and no lines of progress")
    return parser


def positive(text: str) -> float:
    """A finite number above 0."""
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: must be a finite number above 0")
    return value


def not_negative(text: str) -> float:
    """A finite number, 0 or more."""
    value = _number(text)
    if not 0 <= value < 10:
        raise argparse.ArgumentTypeError(f"{text}: must be a number from 0 to 10")
    return value


def share(text: str) -> float:
    """A number above 0, at most 1."""
    value = _number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text}: must lie above 0 and at most at 1")
    return value


def count(text: str) -> int:
    """A whole number above 0."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number") from None
