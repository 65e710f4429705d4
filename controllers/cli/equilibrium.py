"""``equilibrium``: where the loop comes to rest."""

from __future__ import annotations

import argparse
from typing import Any

from controllers.cli.common import emit, loop_of, new_parser
from controllers.operating_point import Regime, equilibrium

MEANING = {
    Regime.IDLE: "the batch is below the knee: the law feels nothing and only H0 limits",
    Regime.ACTIVE: "feedback holds the window",
    Regime.OPEN_LOOP: "the law does not listen to the engine",
    Regime.CLAMPED_MIN: "the window rests on H_min",
    Regime.CLAMPED_MAX: "the window rests on H_max",
    Regime.CYCLING: "the law never rests; these are means over its cycle",
}


def add_parser(sub: Any) -> None:
    """Add the command to ``sub``."""
    new_parser(sub, "equilibrium", "Where the loop comes to rest under a constant queue.")


def run(args: argparse.Namespace) -> int:
    """Print the operating point."""
    loop = loop_of(args)
    point = equilibrium(loop)
    gated = equilibrium(loop, gated=True)
    data = point.model_dump(mode="json") | {
        "tokens_per_second": point.tokens_per_second,
        "batch_gated": gated.batch,
        "sigma_gated": gated.sigma,
        "window_tokens_gated": gated.window_tokens,
    }

    def text() -> str:
        return "\n".join(
            [
                f"regime       {point.regime}: {MEANING[point.regime]}",
                f"sigma        {point.sigma:.4g}  ({point.step_ms:.4g} ms a step)",
                f"window       {point.window_tokens:.5g} tokens",
                f"batch        {point.batch:.4g} requests "
                f"({gated.batch:.4g} behind a head-of-line gate)",
                f"bandwidth    {point.tokens_per_second:.5g} tokens/s",
                f"mean rest    {point.mean_remaining_tokens:.5g} tokens per running request",
            ]
        )

    return emit(args, data, text)
