"""``margins``: how far the loop is from instability."""

from __future__ import annotations

import argparse
from typing import Any

from controllers.cli.common import emit, fail, loop_of, new_parser, number
from controllers.margins import DISK_MARGIN_GOAL, Margins, disk_to_gain_phase, margins


def add_parser(sub: Any) -> None:
    """Add the command to ``sub``."""
    new_parser(sub, "margins", "Stability and margins of the loop at its operating point.")


def run(args: argparse.Namespace) -> int:
    """Print the margins."""
    loop = loop_of(args)
    try:
        result = margins(loop)
    except ValueError as error:
        fail(str(error))
    return emit(args, result.model_dump(mode="json"), lambda: _text(result))


def _phase(degrees: float | None) -> str:
    if degrees is None:
        return "infinite: the loop gain never reaches 1"
    return f"{number(degrees)} degrees"


def _text(result: Margins) -> str:
    if not result.stable:
        verdict = (
            "UNSTABLE: the window will swing. Bring the loop gain from "
            f"{number(result.loop_gain)} below {number(result.critical_loop_gain)}: lower gamma "
            "(or k), or lower the slope the loop rests on"
        )
    elif result.disk_margin_alpha < DISK_MARGIN_GOAL:
        verdict = f"stable, but with less than the {DISK_MARGIN_GOAL} disk margin to aim at"
    else:
        verdict = f"stable, with at least the {DISK_MARGIN_GOAL} disk margin to aim at"
    gain, phase = disk_to_gain_phase(result.disk_margin_alpha)
    return "\n".join(
        [
            verdict,
            f"regime         {result.regime}",
            f"loop gain      {number(result.loop_gain)}  "
            f"(critical {number(result.critical_loop_gain)})",
            f"gain margin    {number(result.gain_margin)} times",
            f"phase margin   {_phase(result.phase_margin_deg)}",
            f"disk margin    {number(result.disk_margin_alpha)}  "
            f"(bears {gain:.3g} times or {phase:.3g} degrees, and mixtures)",
        ]
    )
