"""The verdict in plain words: what an on-call person reads before anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from controllers.identification import IdentificationSummary
from controllers.margins import DISK_MARGIN_GOAL, Margins, disk_to_gain_phase
from controllers.models import LoopModel
from controllers.operating_point import Equilibrium, Regime
from controllers.report.replay import WindowReplay
from controllers.tuning import TuningProblem, TuningResult, WorstCase

Level = Literal["good", "warn", "bad", "note"]

_GOOD_REPLAY: Final = 90.0


@dataclass(frozen=True)
class Finding:
    """One sentence and how much it should worry."""

    level: Level
    text: str


def of_identification(
    summary: IdentificationSummary, *, lengths_stated: bool = False
) -> list[Finding]:
    """What the trace says of the engine."""
    found = []
    if summary.emulated:
        found.append(Finding("warn", "EMULATED engine: step times are predicted, not measured."))
    if summary.identifiable and summary.b0 and summary.alpha_ms and summary.l_min_ms:
        found.append(
            Finding(
                "good",
                f"The engine is identified: a decode step takes {summary.l_min_ms.value:.1f} ms up "
                f"to a batch of {summary.b0.value:.1f}, and {summary.alpha_ms.value:.2f} ms more "
                f"for each request beyond. On steps it was not fitted to the model errs by "
                f"{summary.held_out_error_percent:.1f} % on average.",
            )
        )
    found += [
        Finding("bad", f"Not known: {r.sentence()}")
        for r in summary.refusals
        if not (lengths_stated and r.code == "no-lengths")
    ]
    found += [Finding("note", note + ".") for note in summary.notes]
    return found


def of_tuning(result: TuningResult) -> list[Finding]:
    """What to set, and why that is safe."""
    worst, problem = result.worst_case, result.problem
    setting = ", ".join(
        f"{key} = {value}" if isinstance(value, str) else f"{key} = {value:.6g}"
        for key, value in result.configuration.items()
        if key not in ("l_min_ms", "b0", "alpha_ms")
    )
    gain, phase = disk_to_gain_phase(worst.disk_margin_alpha)
    found = [
        Finding("good", f"Set: {setting}."),
        Finding(
            "good",
            f"In the worst of {worst.loops} plausible loops the disk margin is "
            f"{worst.disk_margin_alpha:.2f} (goal {problem.goals.disk_margin:g}): the loop gain "
            f"may be wrong by a factor {gain:.1f} either way, or the phase by {phase:.0f} degrees.",
        ),
        Finding(
            "good",
            f"Saturated, a decode step settles at {worst.step_ms:.1f} ms at most (limit "
            f"{problem.slo_ms:.1f} ms), and the batch exceeds {problem.batch_max} with probability "
            f"{worst.batch_exceedance:.2g} at most (bound {problem.goals.exceed_probability:g}).",
        ),
    ]
    return found + [Finding("note", note + ".") for note in result.notes]


def of_recorded(
    worst: WorstCase, problem: TuningProblem, configuration: Mapping[str, Any]
) -> list[Finding]:
    """How the configuration that ran during the recording fares."""
    broken = problem.violations(worst)
    shown = ", ".join(
        f"{key} = {configuration[key]:.4g}"
        for key in ("h0_tokens", problem.gain_name, "beta")
        if key in configuration
    )
    if not broken:
        return [Finding("good", f"What ran during the recording ({shown}) keeps all goals too.")]
    return [
        Finding(
            "warn" if worst.stable else "bad",
            f"What ran during the recording ({shown}) breaks: {'; '.join(broken)}.",
        )
    ]


def of_replay(replay: WindowReplay | None, why_not: str) -> list[Finding]:
    """Whether the recorded window is the one that the law gives."""
    if replay is None:
        return [Finding("note", why_not)] if why_not else []
    if replay.fit_percent >= _GOOD_REPLAY:
        return [
            Finding(
                "good",
                f"The recorded window is the one that law {replay.law} gives for the recorded "
                f"slowdown and queue (fit {replay.fit_percent:.1f} %).",
            )
        ]
    return [
        Finding(
            "warn",
            f"The recorded window is not the one that law {replay.law} gives for the recorded "
            f"slowdown and queue (fit {replay.fit_percent:.1f} %): were settings changed while it "
            "ran, or H0 adapted?",
        )
    ]


_REGIMES: Final = {
    Regime.IDLE: "the batch stays below the knee, so the law feels nothing and only H0 limits",
    Regime.ACTIVE: "feedback holds the window",
    Regime.OPEN_LOOP: "the law does not listen to the engine",
    Regime.CLAMPED_MIN: "the window rests on H_min",
    Regime.CLAMPED_MAX: "the window rests on H_max",
    Regime.CYCLING: "the law never rests",
}


def of_model(loop: LoopModel, point: Equilibrium, found: Margins | None) -> list[Finding]:
    """What the analysis of a stated model says."""
    queue = loop.queue if isinstance(loop.queue, str) else f"{loop.queue:g}-deep"
    findings = [
        Finding(
            "note",
            f"Under a {queue} queue the loop rests at sigma = {point.sigma:.3f} "
            f"({point.step_ms:.1f} ms a step) with "
            f"H = {point.window_tokens:.0f} tokens and B = {point.batch:.1f}: "
            f"{_REGIMES[point.regime]}.",
        )
    ]
    if found is None:
        text = f"Law {loop.law} moves by fixed steps: it has no linear margins, see the burst."
        return [*findings, Finding("warn", text)]
    if not found.stable:
        return [Finding("bad", "The loop is UNSTABLE: it will oscillate."), *findings]
    enough = found.disk_margin_alpha >= DISK_MARGIN_GOAL
    gain, phase = disk_to_gain_phase(found.disk_margin_alpha)
    bears = "any gain error" if gain > 1e3 else f"a gain error of a factor {gain:.1f} either way"
    verdict = Finding(
        "good" if enough else "warn",
        f"The loop is stable with disk margin {found.disk_margin_alpha:.2f} "
        f"({'at least' if enough else 'below'} the goal of {DISK_MARGIN_GOAL:g}): it bears "
        f"{bears}, or {phase:.0f} degrees of phase.",
    )
    return [verdict, *findings]
