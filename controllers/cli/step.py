"""``step``: simulate the loop from its start, and say how it settles."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from controllers.cli.common import emit, fail, loop_of, new_parser, number
from controllers.operating_point import equilibrium
from controllers.simulation.fluid import simulate_fluid
from controllers.simulation.request_level import simulate_requests
from controllers.simulation.run import Run

SETTLED = 0.02
"""Within 2 % of the final window counts as settled, the usual band of step responses."""


def add_parser(sub: Any) -> None:
    """Add the command to ``sub``."""
    parser = new_parser(
        sub, "step", "Simulate the loop on an empty engine with a full queue, step by step."
    )
    parser.add_argument("--steps", type=int, default=500, help="decode steps (default 500)")
    parser.add_argument(
        "--simulation",
        choices=("fluid", "requests"),
        default="fluid",
        help="divisible requests (the theory's model) or whole ones behind a gate",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the request-level simulation")
    parser.add_argument(
        "--window", type=float, metavar="TOKENS", help="window at the start (fluid only)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the response."""
    loop = loop_of(args)
    if not 2 <= args.steps <= 1_000_000:
        fail(f"--steps {args.steps}: must lie in 2 .. 1000000")
    if args.seed < 0:
        fail(f"--seed {args.seed}: must not be negative")
    if args.window is not None:
        if args.simulation != "fluid":
            fail("--window sets the start of the fluid simulation only: leave it out")
        if not (np.isfinite(args.window) and args.window > 0):
            fail(f"--window {args.window:g}: must be finite and above 0")
    if args.simulation == "fluid":
        result = simulate_fluid(loop, args.steps, initial_window_tokens=args.window)
    else:
        try:
            result = simulate_requests(loop, args.steps, seed=args.seed)
        except ValueError as error:
            fail(str(error))
    point = equilibrium(loop, gated=args.simulation == "requests")
    tail = result.after(args.steps - max(1, args.steps // 5))
    final = float(np.mean(tail.window_tokens))
    settling: int | None = None
    overshoot: float | None = None
    if args.simulation == "fluid":  # whole requests keep the window moving for ever
        overshoot = _overshoot(result, float(result.window_tokens[0]), final)
        outside = np.flatnonzero(np.abs(result.window_tokens - final) > SETTLED * final)
        settling = int(outside[-1]) + 1 if outside.size else 0
        settling = settling if settling < args.steps else None
    data: dict[str, Any] = {
        "simulation": args.simulation,
        "steps": args.steps,
        "settled": settling is not None,
        "settling_steps": settling,
        "overshoot_percent": overshoot,
        "final_window_tokens": final,
        "final_batch": float(np.mean(tail.batch)),
        "final_sigma": float(np.mean(tail.sigma)),
        "peak_sigma": float(np.max(result.sigma)),
        "predicted_window_tokens": point.window_tokens,
        "predicted_batch": point.batch,
        "predicted_sigma": point.sigma,
        "series": {name: getattr(result, name).tolist() for name in Run._fields},
    }
    return emit(args, data, lambda: _text(data))


def _overshoot(result: Run, start: float, final: float) -> float:
    """Largest excursion of the window beyond its final value, % of the way it went."""
    way = final - start
    if abs(way) < 1e-9 * final:
        return 0.0
    beyond = (result.window_tokens - final) * np.sign(way)
    return max(0.0, 100.0 * float(np.max(beyond)) / abs(way))


def _text(data: dict[str, Any]) -> str:
    verdict = "the window fluctuates with its requests"
    if data["simulation"] == "fluid":
        verdict = "the window has not settled"
        if data["settled"]:
            verdict = (
                f"the window settles within {SETTLED:.0%} after {data['settling_steps']} steps"
            )
        verdict += f", overshoot {data['overshoot_percent']:.3g} %"
    lines = [
        f"{data['simulation']} simulation, {data['steps']} steps: {verdict}",
        "            last fifth   predicted",
    ]
    for label, key in (("window", "window_tokens"), ("batch", "batch"), ("sigma", "sigma")):
        lines.append(
            f"{label:10} {number(data[f'final_{key}'], 5):>11} "
            f"{number(data[f'predicted_{key}'], 5):>11}"
        )
    lines.append(f"peak sigma {number(data['peak_sigma'], 5):>11}")
    return "\n".join(lines)
