"""The command line of ``python -m analysis.confirm``."""

from __future__ import annotations

import argparse
from pathlib import Path

from analysis.comparing.arguments import count, not_negative, positive
from twp_sglang.one_line_parser import OneLineParser

_EPILOG = """\
example, about eight minutes:
  python -m analysis.confirm --machine paper-v100 --traffic paper-mixture --load 0.85 \\
      --slo ttft=2s,itl_p99=100ms --contender stock static-knee slo \\
      --contenders docs/results/slo-contenders.toml --requests 250 --out out/confirm-v100

Each contender is tuned in the simulator on the very requests that it then serves, so a static
one has the best setting there is. Servers run one after the other, in turned order from stretch to
stretch. The same command goes on where it was stopped.
"""


def build_parser() -> OneLineParser:
    """The parser; ``vars`` of its result are the names used by the command."""
    parser = OneLineParser(
        prog="python -m analysis.confirm",
        description="One cell of analysis.compare on the emulated engine: stock SGLang, real HTTP, "
        "real clients, step times of a model.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument_group("cell, as for analysis.compare").add_argument
    add("--machine", default="paper-v100", metavar="NAME[,KEY=VALUE]", help="[%(default)s]")
    add("--traffic", default="paper-mixture", metavar="NAME", help="[%(default)s]")
    add("--load", type=positive, default=0.85, metavar="U", help="[%(default)s]")
    add("--slo", default="ttft=2s,itl_p99=50ms", metavar="LIST", help="[%(default)s]")

    add = parser.add_argument_group("contenders").add_argument
    add(
        "--contender",
        nargs="+",
        default=["stock", "static", "slo"],
        metavar="NAME",
        help="as for analysis.compare [stock static slo]",
    )
    add("--contenders", type=Path, metavar="FILE", help="TOML with contenders of your own")

    add = parser.add_argument_group("effort").add_argument
    add("--requests", type=count, default=250, metavar="N", help="per stretch [%(default)s]")
    add("--seeds", type=count, default=2, metavar="N", help="stretches of traffic [%(default)s]")
    add(
        "--noise", type=not_negative, default=0.03, metavar="S",
        help="scatter of the simulated steps, for tuning and for the figures in brackets "
        "[%(default)s]",
    )  # fmt: skip

    add = parser.add_argument_group("result").add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="folder; made where missing")
    return parser
