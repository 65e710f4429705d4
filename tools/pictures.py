"""Draws the pictures of docs/how-it-works.md and writes its table, from the simulator.

``python -m tools.pictures`` serves one generated burst on a simulated H100 under stock
scheduling, TWP and policy slo, with the policy objects of the server. A few seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from controllers.trace_reader import FloatArray, StepTrace, read_step_trace
from tools.marked_section import renewed
from tools.structure import ROOT
from twp_sglang.simulator.command import main as simulate
from twp_sglang.step_profiles import named_profile

DOCUMENT = ROOT / "docs" / "how-it-works.md"
IMAGES = ROOT / "docs" / "images"
BEGIN = "<!-- burst: begin (python -m tools.pictures) -->"
END = "<!-- burst: end -->"
MACHINE = "h100-llama31-8b"
OBJECTIVES = "ttft=2s,itl_p99=50ms"

_PROMPTS, _ANSWERS = "200-800@.7,1200-3000@.3", "100@.5,250@.5"
_CALM_RPS, _BURST_RPS = 6, 70
_PHASES_S = ((8, _CALM_RPS), (4, _BURST_RPS), (14, _CALM_RPS))
_SEED = 1
# Okabe-Ito: told apart by colour-blind readers.
_COLOURS = {"off": "#D55E00", "twp": "#0072B2", "slo": "#009E73"}
_NAMES = {"off": "stock SGLang", "twp": "twp (the paper's law)", "slo": "slo"}


class Run(NamedTuple):
    """One policy's summary and its steps."""

    result: dict[str, Any]
    steps: StepTrace


def runs() -> dict[str, Run]:
    """The burst under each policy, by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workload = folder / "burst.json"
        workload.write_text(json.dumps(_workload()))
        return {policy: _run(policy, workload, folder) for policy in _NAMES}


def _workload() -> dict[str, Any]:
    return {
        "name": "burst",
        "phases": [
            {
                "duration_s": seconds,
                "streams": [
                    {
                        # Even at first, so that the first request comes at 0 s.
                        "arrivals": {
                            "kind": "poisson" if rate == _BURST_RPS else "even",
                            "rate_rps": rate,
                        },
                        "input_tokens": _PROMPTS,
                        "output_tokens": _ANSWERS,
                    }
                ],
            }
            for seconds, rate in _PHASES_S
        ],
    }


def _run(policy: str, workload: Path, folder: Path) -> Run:
    out, steps = folder / f"{policy}.json", folder / f"{policy}.jsonl"
    words = ["--trace", str(workload), "--format", "spec", "--policy", policy, "--no-progress"]
    words += ["--step-model", MACHINE, "--slo", OBJECTIVES, "--seed", str(_SEED)]
    words += ["--json", str(out), "--steps", str(steps)]
    if policy != "off":
        # As a calibrated server would know it.
        model = named_profile(MACHINE).step.model_dump(exclude={"kind", "b0", "alpha_ms"})
        for key, value in {**model, "b0": 48}.items():
            words += ["--set", f"{key}={value}"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = simulate(words)
    if code != 0:
        raise RuntimeError(f"the simulation under {policy} ended with {code}")
    return Run(json.loads(out.read_text()), read_step_trace(steps))


def table(found: dict[str, Run]) -> str:
    """The runs as a Markdown table."""
    lines = [
        "| | TTFT P50 | TTFT P99 | ITL P99 | longest gap | in both objectives | tokens/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for policy, (result, _) in found.items():
        ttft, itl = result["ttft_ms"], result["itl_ms"]
        cells = [
            _NAMES[policy],
            f"{ttft['p50'] / 1e3:.2f} s",
            f"{ttft['p99'] / 1e3:.2f} s",
            f"{itl['p99']:.0f} ms",
            f"{itl['max']:,.0f} ms",
            f"{100 * result['goodput_fraction']:.0f} %",
            f"{result['output_tokens_per_s']:,.0f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw_burst(found: dict[str, Run], path: Path) -> None:
    """Gap between tokens and waiting requests over time, one line a policy."""
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for policy, (_, steps) in found.items():
        time_s, gap_ms = _gaps(steps)
        # Each gap over the time that it lasted.
        above.plot(
            time_s,
            gap_ms,
            lw=1.1,
            color=_COLOURS[policy],
            label=_NAMES[policy],
            drawstyle="steps-pre",
        )
        below.plot(
            steps["t_ms"] / 1e3, steps["queue"], lw=1.1, color=_COLOURS[policy], drawstyle="steps"
        )
    above.axhline(50, color="0.4", lw=1, ls="--", label="objective, 50 ms")
    above.set(yscale="log", ylabel="gap between tokens, ms", ylim=(4, None))
    above.legend(fontsize=8, ncols=2, loc="upper right")
    below.set(ylabel="requests waiting", xlabel="time, s")
    _finish(figure, (above, below), path)


def draw_window(run: Run, path: Path) -> None:
    """Window, load and rows of the paper's law over time."""
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    steps = run.steps
    time_s = steps["t_ms"] / 1e3
    above.plot(time_s, steps["window_tokens"], color="#0072B2", lw=1.6, label="window H")
    above.fill_between(
        time_s, steps["load_tokens"], color="#E69F00", alpha=0.5, lw=0, label="load K"
    )
    above.set(ylabel="output tokens", ylim=(0, None))
    above.legend(fontsize=8, loc="upper right")
    below.plot(time_s, steps["batch"], color="#0072B2", lw=1.1, label="decoding")
    below.plot(time_s, steps["queue"], color="#CC79A7", lw=1.1, label="waiting")
    below.set(ylabel="requests", xlabel="time, s", ylim=(0, None))
    below.legend(fontsize=8, loc="upper right")
    _finish(figure, (above, below), path)


def _gaps(steps: StepTrace) -> tuple[FloatArray, FloatArray]:
    """When a step gave a token to the requests that decode, s, and how long after the last
    one, ms."""
    decoding = np.flatnonzero(steps["batch"] > 0)
    time_ms = steps["t_ms"][decoding]
    return time_ms[1:] / 1e3, np.diff(time_ms)


def _finish(figure: Figure, axes: tuple[Axes, ...], path: Path) -> None:
    start = _PHASES_S[0][0]
    for axis in axes:
        axis.axvspan(start, start + _PHASES_S[1][0], color="0.5", alpha=0.12, lw=0)
        axis.grid(alpha=0.25)
        axis.set_xlim(0, sum(seconds for seconds, _ in _PHASES_S))
    # No version and no date, so that equal pictures are equal bytes.
    figure.savefig(path, dpi=110, format="png", metadata={"Software": None})


def updated(document: str, found: dict[str, Run]) -> str:
    """``document`` with the table between its markers renewed.

    Raises:
        ValueError: the markers are missing.
    """
    return renewed(document, DOCUMENT, BEGIN, END, f"\n\n{table(found)}\n\n")


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m tools.pictures", description=__doc__)
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the pictures")
    arguments = parser.parse_args(argv)
    found = runs()
    arguments.out.mkdir(parents=True, exist_ok=True)
    draw_burst(found, arguments.out / "burst.png")
    draw_window(found["twp"], arguments.out / "window.png")
    if arguments.out == IMAGES:
        DOCUMENT.write_text(updated(DOCUMENT.read_text("utf-8"), found), "utf-8")
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
