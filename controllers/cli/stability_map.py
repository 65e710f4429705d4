"""``stability-map``: stability over the law's gain and the filter's weight."""

from __future__ import annotations

import argparse
from typing import Any

from controllers.cli.common import emit, fail, loop_of, new_parser
from controllers.margins import DISK_MARGIN_GOAL
from controllers.stability_map import StabilityMap, stability_map


def add_parser(sub: Any) -> None:
    """Add the command to ``sub``."""
    parser = new_parser(
        sub, "stability-map", "Disk margin over window gain (gamma or k) and filter weight beta."
    )
    parser.add_argument("--gains", metavar="G,G,...", help="gains; default 12 from 0.01 to 1")
    parser.add_argument("--betas", metavar="B,B,...", help="weights; default 12 from 0.01 to 1")
    parser.add_argument("--png", metavar="FILE", help="draw the map as well")


def run(args: argparse.Namespace) -> int:
    """Print the map."""
    loop = loop_of(args)
    try:
        result = stability_map(
            loop, _numbers("--gains", args.gains), _numbers("--betas", args.betas)
        )
    except ValueError as error:
        fail(str(error))
    if args.png:
        from controllers.stability_figure import draw_stability_map

        try:
            draw_stability_map(result, loop, args.png)
        except (OSError, ValueError) as error:
            fail(f"--png {args.png}: {error}")
    data = {
        "gain_name": result.gain_name,
        "gains": result.gains.tolist(),
        "betas": result.betas.tolist(),
        "stable": result.stable.tolist(),
        "disk_margin_alpha": result.disk_margin.tolist(),
        "gain_margin": result.gain_margin.tolist(),
    }
    return emit(args, data, lambda: _text(result))


def _numbers(option: str, text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        fail(f"{option} {text}: write numbers separated by commas")


def _text(result: StabilityMap) -> str:
    header = f"{result.gain_name:>7} \\ beta " + " ".join(f"{b:6.3g}" for b in result.betas)
    rows = [
        f"{gain:14.3g} "
        + " ".join(
            f"{alpha:6.2f}" if stable else "     ."
            for alpha, stable in zip(result.disk_margin[i], result.stable[i], strict=True)
        )
        for i, gain in enumerate(result.gains)
    ]
    note = f"balanced disk margin; '.' is unstable, aim at {DISK_MARGIN_GOAL} or more"
    return "\n".join([header, *rows, note])
