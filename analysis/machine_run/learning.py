"""Identify the engine from the stock stage's trace, tune, and judge other settings by it."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.judging.calibration import part
from controllers.identification import Identification, identify
from controllers.settings import jsonable
from controllers.trace_reader import TraceError, read_step_trace
from controllers.tuning import (
    TuningGoals,
    TuningRefused,
    evidence,
    tune,
    write_configuration,
)
from controllers.tuning.problem import TuningProblem

GRID_STEP = 2.0
"""Ratio of neighbouring gains on a grid of octaves."""


def learn(stock: Path, passes: tuple[int, int], folder: Path) -> dict[str, Any]:
    """What the trace tells, and the tuned configuration where it carries one.

    Args:
        stock: folder of the stock stage.
        passes: scheduling passes before and after its traffic: the calibration before it
            moves the batch, the traffic alone has output lengths that mean something.
        folder: receives ``tuned.toml`` and ``neighbour.toml``.

    Returns:
        ``identified``, and ``tuned``, ``neighbour`` with their margins or ``refusals``.

    Raises:
        TraceError: the trace cannot be read.
    """
    trace = read_step_trace(stock / "steps")
    found = identify(trace)
    served = part(trace, (trace["step"] > passes[0]) & (trace["step"] <= passes[1]))
    under_traffic = identify(served)
    found = _with_lengths(found, under_traffic)
    answer: dict[str, Any] = {"identified": jsonable(found.summary.answer())}
    try:
        result = tune(found, TuningGoals())
    except TuningRefused as error:
        answer["refusals"] = [refusal.sentence() for refusal in error.refusals]
        return answer
    today = datetime.date.today().isoformat()
    proof = evidence(found, result, today)
    write_configuration(folder / "tuned.toml", result.configuration, proof)
    gain = result.problem.gain_name
    beside = {**result.configuration, gain: _next_gain(result.configuration[gain])}
    write_configuration(
        folder / "neighbour.toml", beside, {**proof, "notes": [f"{gain} one octave beside tuned"]}
    )
    answer["tuned"] = {
        "configuration": result.configuration,
        "margins": jsonable(result.worst_case.model_dump()),
        "notes": list(result.notes),
    }
    answer["neighbour"] = {
        "configuration": beside,
        "margins": _margins(result.problem, beside),
    }
    return answer


def _margins(problem: TuningProblem, configuration: dict[str, Any]) -> dict[str, Any]:
    worst = problem.assess(configuration)
    margins: dict[str, Any] = jsonable(worst.model_dump())
    margins["broken_goals"] = problem.violations(worst)
    return margins


def _next_gain(gain: float) -> float:
    """One octave up; down where a gain ends at 1."""
    up = gain * GRID_STEP
    return float(f"{up if up <= 1.0 else gain / GRID_STEP:.4g}")


def _with_lengths(found: Identification, served: Identification) -> Identification:
    """``found`` with the output lengths of the traffic, not those of the calibration."""
    if served.lengths is None or served.summary.lengths is None:
        return found
    refusals = tuple(r for r in found.summary.refusals if r.code != "no-lengths")
    summary = found.summary.model_copy(
        update={"lengths": served.summary.lengths, "refusals": refusals}
    )
    return replace(
        found, summary=summary, lengths=served.lengths, outer_lengths=served.outer_lengths
    )


__all__ = ["GRID_STEP", "TraceError", "learn"]
