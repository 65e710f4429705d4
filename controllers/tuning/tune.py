"""From an identified loop to a configuration with evidence, or to a refusal with reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from controllers.identification import PARAMETERS, Identification, Refusal
from controllers.models import LatencyModel, LengthLaw, UncertaintySet
from controllers.tuning.gains import choose_gains
from controllers.tuning.goals import TuningGoals
from controllers.tuning.operating_choice import Infeasible, choose_operating_point
from controllers.tuning.problem import TuningProblem, WorstCase

_SHRINK: Final = 0.9
_ATTEMPTS: Final = 12
_MIN_MODELS: Final = 8


class TuningRefused(ValueError):
    """The data cannot carry a tuning; ``refusals`` say why and which data would."""

    def __init__(self, refusals: tuple[Refusal, ...]) -> None:
        super().__init__("cannot tune: " + " ".join(r.sentence() for r in refusals))
        self.refusals = refusals


@dataclass(frozen=True)
class TuningResult:
    """A configuration and what stands behind it.

    Attributes:
        configuration: flat keys, as launch_server and ``--config`` take them.
        worst_case: worst over every plausible loop.
        problem: to assess other settings against the same goals.
        notes: what a reader should know before using it.
    """

    configuration: dict[str, Any]
    worst_case: WorstCase
    problem: TuningProblem
    notes: tuple[str, ...]


def tuning_problem(
    found: Identification,
    goals: TuningGoals,
    *,
    lengths: LengthLaw | None = None,
    delay_steps: int | None = None,
    prompt_tokens: float | None = None,
) -> TuningProblem:
    """The problem that an identified trace poses; stated values go before estimated ones.

    Raises:
        TuningRefused: the trace does not identify step time or lengths.
    """
    summary = found.summary
    refusals = tuple(
        r for r in summary.refusals if not (r.code == "no-lengths" and lengths is not None)
    )
    if refusals or found.latency is None or summary.delay is None:
        raise TuningRefused(refusals)
    if len(found.bootstrap_latencies) < _MIN_MODELS:
        raise TuningRefused(
            (
                Refusal(
                    code="models-degenerate",
                    reason="almost no bootstrap model has a slope above the knee",
                    wanted="Record longer, with larger swings of the batch",
                ),
            )
        )
    laws = (lengths,) if lengths is not None else (found.lengths, *found.outer_lengths)
    uncertainty = UncertaintySet(
        latencies=(found.latency, *found.bootstrap_latencies[: goals.models]),
        lengths=tuple(law for law in laws if law is not None),
        delays_steps=(delay_steps,) if delay_steps is not None else summary.delay.plausible_steps,
    )
    largest = summary.batch_range[1] if summary.batch_range else found.latency.b0
    if prompt_tokens is None:
        prompt_tokens = summary.lengths.mean_prompt_tokens if summary.lengths else 0.0
    return TuningProblem(
        uncertainty,
        goals,
        batch_max=goals.batch_max or int(largest),
        noise=(summary.noise_percent or 0.0) / 100,
        prompt_tokens=prompt_tokens,
    )


def tune(found: Identification, goals: TuningGoals | None = None, **stated: Any) -> TuningResult:
    """Fastest loop that keeps the goals in every plausible model of the trace.

    First the operating point and the clamps (bandwidth B/l at rest under the SLO), then
    gain and filter weight (closed-loop bandwidth under the margin), then an exact check.
    The same trace and goals give the same configuration.

    Args:
        found: the identified trace.
        goals: what must hold; defaults of :class:`TuningGoals`.
        stated: ``lengths``, ``delay_steps``, ``prompt_tokens`` known from elsewhere.

    Raises:
        TuningRefused: the data or the goals cannot carry a configuration.
    """
    goals = goals or TuningGoals()
    problem = tuning_problem(found, goals, **stated)
    try:
        choice = choose_operating_point(
            problem.uncertainty, goals, problem.batch_max, problem.prompt_tokens
        )
        static = choice.law_params
        gain, beta = choose_gains(problem, static)
        configuration, worst = _checked(problem, static, gain, beta)
    except Infeasible as error:
        raise TuningRefused(
            (Refusal(code="goals-infeasible", reason=error.reason, wanted=error.wanted),)
        ) from None
    latency = problem.uncertainty.latencies[0]
    configuration = {
        # The server runs another policy by default, which has no window law.
        "policy": "twp",
        "law": goals.law,
        **configuration,
        "l_min_ms": round(latency.l_min_ms, 4),
        # The server counts whole requests: the largest batch that is not above the knee.
        "b0": max(1, int(latency.b0 + 0.05)),
        "alpha_ms": round(latency.alpha_ms, 4),
        **_step_terms(found, latency),
    }
    return TuningResult(configuration, worst, problem, tuple(_remarks(problem, configuration)))


def _step_terms(found: Identification, latency: LatencyModel) -> dict[str, float]:
    """What the trace tells of the step beside the knee, for policies that plan with it."""
    terms = ("a_ms", "kappa_ms_per_token", "prefill_ms_per_token")
    return {
        name: float(f"{getattr(latency, name):.4g}")
        for name in terms
        if getattr(found.summary, name) is not None
    }


def _checked(
    problem: TuningProblem, static: Mapping[str, Any], gain: float, beta: float
) -> tuple[dict[str, Any], WorstCase]:
    """The configuration, its gain lowered until the exact margins keep the goals too."""
    broken: list[str] = []
    for _ in range(_ATTEMPTS):
        configuration = {**static, problem.gain_name: gain, "beta": beta}
        worst = problem.assess(configuration)
        broken = problem.violations(worst)
        if not broken:
            return configuration, worst
        gain = float(f"{gain * _SHRINK:.3g}")
    raise Infeasible("; ".join(broken), "Relax that goal, or record longer")


def _remarks(problem: TuningProblem, configuration: Mapping[str, Any]) -> list[str]:
    notes = []
    longest = problem.uncertainty.lengths[0].longest
    if configuration["h_max_tokens"] < longest:
        notes.append(
            f"H_max = {configuration['h_max_tokens']:.0f} tokens is below the longest output seen "
            f"({longest}): such a request waits for an idle engine or for forced admission"
        )
    low, high = configuration["h_min_tokens"], configuration["h_max_tokens"]
    if high < 1.1 * low:
        notes.append(
            f"The clamps {low:.0f} .. {high:.0f} tokens all but fix the window: P(B > "
            f"{problem.batch_max}) allows no more. Record a larger batch, or state batch_max"
        )
    nominal = problem.uncertainty.latencies[0]
    if nominal.x < 1:
        notes.append(
            f"x = alpha B0 / l_min = {nominal.x:.2f} is below 1: a larger batch always gives more "
            "tokens per second, so the window trades bandwidth for latency"
        )
    kv = nominal.kappa_ms_per_token * problem.prompt_tokens * nominal.b0
    if kv > 0.2 * nominal.l_min_ms:
        notes.append(
            f"KV of the requests at the knee costs {kv:.1f} ms a step, over a fifth of l_min: "
            "sigma also rises with context, and law predictive may serve this engine better"
        )
    return notes


def evidence(found: Identification, result: TuningResult, date: str) -> dict[str, Any]:
    """Table that says where a configuration comes from; ``date`` as ISO 8601, from outside."""
    summary, problem = found.summary, result.problem
    model = {
        name: estimate.model_dump()
        for name in PARAMETERS
        if (estimate := getattr(summary, name)) is not None
    }
    lengths = problem.uncertainty.lengths[0]
    return {
        "trace": summary.trace,
        "date": date,
        "engine": summary.engine,
        "served_model": summary.model,
        "emulated": summary.emulated,
        "steps_used": summary.steps_used,
        "fit_percent": summary.fit_percent,
        "noise_percent": summary.noise_percent,
        "delays_steps": list(problem.uncertainty.delays_steps),
        "mean_output_tokens": lengths.mean,
        "mean_remaining_tokens": lengths.residual_mean,
        "batch_max": problem.batch_max,
        "slo_ms": problem.slo_ms,
        "goals": problem.goals.model_dump(exclude_none=True),
        "worst_case": result.worst_case.model_dump(),
        "model": model,
        "notes": [*summary.notes, *result.notes],
    }
