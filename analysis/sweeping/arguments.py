"""The command line of ``python -m analysis.gain_sweep``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from analysis.cells.traffic import NAMES
from analysis.comparing.arguments import count, not_negative, positive
from analysis.sweeping.backends import METRICS
from analysis.sweeping.grid import AXES
from twp_sglang.one_line_parser import OneLineParser

BACKENDS = ("simulator", "emulated", "server")

_EPILOG = """\
examples:
  the simulator, a minute:
    python -m analysis.gain_sweep --machine paper-v100,alpha_ms=10 --traffic paper-mixture \\
        --load 1.2 --gamma 0.05 0.15 0.5 1 --beta 0.05 0.25 1 --h0-tokens 400 --out out/sweep
  stock SGLang with emulated step times, a server per point:
    python -m analysis.gain_sweep --backend emulated --machine h100-llama31-8b \\
        --traffic azure-conv --gamma 0.05 0.5 --beta 0.1 1 --h0-tokens 8000 --out out/emulated \\
        --bench "--workload random --requests 300 --rate 30"
  SGLang on this machine's GPU:
    python -m analysis.gain_sweep --backend server --gamma 0.05 0.5 --beta 0.1 1 \\
        --h0-tokens 8000 --out out/gpu --bench "--workload gsm8k --requests 200 --rate 8" \\
        --launch "--model-path PATH --attention-backend flashinfer"

The same command goes on where it was stopped. How to read the figures: docs/analysis.md.
"""


def build_parser() -> OneLineParser:
    """The parser; ``vars`` of its result are the names used by the command."""
    parser = OneLineParser(
        prog="python -m analysis.gain_sweep",
        description="Gains, clamps and chunk of the token window over a grid, with the boundary "
        "of stability that control theory predicts.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument_group("grid (every combination)").add_argument
    for name, meaning in AXES.items():
        add(
            f"--{name.replace('_', '-')}",
            nargs="+",
            type=count if name == "chunk_tokens" else positive,
            metavar="V",
            help=meaning,
        )
    add("--law", choices=("paper", "regulated"), default="paper", help="window law [%(default)s]")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other field of the configuration; may be repeated",
    )

    add = parser.add_argument_group("backend").add_argument
    add("--backend", choices=BACKENDS, default="simulator", help="[%(default)s]")
    add(
        "--launch",
        default="",
        metavar="FLAGS",
        help="of launch_server, one string; under emulated added to --twp-emulate",
    )
    add("--url", metavar="URL", help="a running server instead: one point, as it is configured")
    add(
        "--bench",
        default="",
        metavar="ARGS",
        help="arguments of twp_sglang.bench run, one string; for emulated and server",
    )
    add(
        "--start-timeout",
        type=positive,
        default=600.0,
        metavar="S",
        help="seconds until a server must answer [%(default)s]",
    )

    add = parser.add_argument_group(
        "cell of the simulator; under the other backends it tells the theory the engine"
    ).add_argument
    add("--machine", metavar="NAME[,KEY=VALUE]", help="as for analysis.compare [paper-v100]")
    add(
        "--traffic",
        metavar="NAME",
        help=f"{', '.join(NAMES)}, or FILE:FORMAT [paper-mixture]",
    )
    add(
        "--load",
        type=positive,
        default=1.2,
        metavar="U",
        help="engine time needed over time; above 1 the queue never empties, which is what the "
        "theory speaks of [%(default)s]",
    )
    add("--requests", type=count, default=600, metavar="N", help="per simulation [%(default)s]")
    add("--seeds", type=count, default=2, metavar="N", help="per point [%(default)s]")
    add("--noise", type=not_negative, default=0.03, metavar="S", help="[%(default)s]")
    add("--slo", default="", metavar="LIST", help="objectives of goodput: ttft=2s,itl_p99=50ms")
    add("--jobs", type=count, default=os.cpu_count() or 1, metavar="N", help="processes [all CPUs]")

    add = parser.add_argument_group("result").add_argument
    add("--out", type=Path, required=True, metavar="DIR", help="folder; made where missing")
    add("--x", metavar="AXIS", help="horizontal axis of the heat maps [beta]")
    add("--y", metavar="AXIS", help="vertical axis [the first axis swept]")
    add(
        "--metric",
        nargs="+",
        choices=tuple(METRICS),
        default=["itl_ms_p99", "itl_cv", "window_cv", "tokens_per_s", "goodput_fraction"],
        metavar="NAME",
        help=f"heat maps: {', '.join(METRICS)} [%(default)s]",
    )
    add("--no-png", action="store_true", help="no figures")
    add("--no-progress", action="store_true", help="no progress bar, and no lines of progress")
    return parser
