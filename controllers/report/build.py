"""Puts a report together from a trace or from a stated model, and writes it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from pydantic import ValidationError

from controllers.identification import PARAMETERS, Identification, identify
from controllers.linearisation import LinearLoop
from controllers.margins import margins
from controllers.models import LoopModel, UncertaintySet
from controllers.operating_point import SWITCHING_LAWS, equilibrium
from controllers.report import verdict
from controllers.report.loop_figures import (
    bode_figure,
    burst_figure,
    closed_loop_lines,
    map_figure,
    monte_carlo_figure,
    nyquist_figure,
)
from controllers.report.page import Report, Section, Table, render
from controllers.report.replay import law_settings, replay_window
from controllers.report.style import DPI, house_style
from controllers.report.trace_figures import fit_figure, prediction_figure
from controllers.report.verdict import Finding
from controllers.settings import LAW_KEYS, Settings
from controllers.stability_map import GAIN_FIELD
from controllers.trace_reader import StepTrace
from controllers.tuning import (
    TuningGoals,
    TuningProblem,
    TuningRefused,
    TuningResult,
    tune,
    tuning_problem,
)
from controllers.tuning.loop_set import LoopSet, operating_points

_LINES: Final = 40

UNITS: Final = {
    "l_min_ms": "ms",
    "b0": "requests",
    "alpha_ms": "ms per request above B0",
    "kappa_ms_per_token": "ms per KV token",
    "prefill_ms_per_token": "ms per prompt token",
    "a_ms": "ms per request",
}

CAPTIONS: Final = {
    "fit": "Grey: measured steps with the other terms of the model taken out. The band is where "
    "95 % of the plausible models lie. A sharp valley on the right means the knee is well known.",
    "prediction": "The liveliest stretch of the trace. Above, the model's step time from the "
    "recorded batch, KV and prefill; below, the recorded window and, where the header says which "
    "law ran, the law run again over the recorded slowdown and queue.",
    "bode": "Each loop where its gain is largest, and where it rests. Below 0 dB an error is not "
    "amplified. Without delay such a loop first becomes unstable at the right end, omega = pi, as "
    "a window that swings from step to step; each step of delay moves that to the left.",
    "nyquist": "The further the curve keeps from -1, the more error in gain and phase the loop "
    "bears. It must not enter the shaded disk.",
    "map": "Each point is a pair of gains; the colour is the margin of the worst plausible loop. "
    "A gain or a filter weight near 0 is slow and safe; fast is where both are large.",
    "monte_carlo": "One entry for each combination of bootstrap model, length law and delay, at "
    "rest and where its loop gain is largest.",
    "burst": "Simulated request by request with the estimated engine. Admitted requests cannot be "
    "taken back: after a burst the batch falls only as fast as requests finish.",
}
HEADINGS: Final = {
    "fit": "Step time: fit over batch and KV",
    "prediction": "Predicted against recorded",
    "bode": "Bode plot",
    "nyquist": "Nyquist plot with the disk",
    "map": "Stability map",
    "monte_carlo": "Margins over everything plausible",
    "burst": "Drain after a burst",
}


def report_from_trace(
    trace: StepTrace,
    goals: TuningGoals | None = None,
    *,
    seed: int = 0,
    **stated: Any,
) -> Report:
    """Identify, tune and draw; what the data do not carry is said instead of drawn."""
    goals = goals or TuningGoals()
    found = identify(trace, seed=seed)
    findings = verdict.of_identification(found.summary, lengths_stated="lengths" in stated)
    tables = [_model_table(found)]
    sections: list[Section] = []
    replay, why_not = replay_window(trace)
    if found.fit is not None:
        fitted = found
        _draw(sections, "fit", lambda: fit_figure(fitted))
        _draw(sections, "prediction", lambda: prediction_figure(trace, fitted, replay))
    findings += verdict.of_replay(replay, why_not)
    try:
        result = tune(found, goals, **stated)
    except TuningRefused as error:
        said = {f"Not known: {r.sentence()}" for r in found.summary.refusals}
        findings = [
            Finding("bad", "Do not tune on this trace."),
            *findings,
            *(
                Finding("bad", r.sentence())
                for r in error.refusals
                if f"Not known: {r.sentence()}" not in said
            ),
        ]
    else:
        recorded = _recorded(trace, found, goals, stated)
        advice = verdict.of_tuning(result)
        if recorded is not None:
            problem, configuration = recorded
            advice += verdict.of_recorded(problem.assess(configuration), problem, configuration)
        findings = advice + findings
        tables.insert(0, _setting_table(result))
        ran = None
        if recorded is not None and recorded[0].goals.law == goals.law:
            ran = (recorded[1][recorded[0].gain_name], recorded[1]["beta"])
        _loop_sections(sections, result.problem, result.configuration, ran)
    summary = found.summary
    return Report(
        title="Token window: what the trace says" + (" (EMULATED)" if summary.emulated else ""),
        source=_source(trace, found),
        findings=tuple(findings),
        tables=tuple(tables),
        sections=tuple(sections),
    )


def report_from_model(loop: LoopModel) -> Report:
    """Draw a stated model; margins where the law has any."""
    linear = loop.law not in SWITCHING_LAWS
    point = equilibrium(loop)
    found = margins(loop) if linear else None
    sections: list[Section] = []
    gain_name = GAIN_FIELD.get(loop.law)
    if linear and gain_name is not None:
        single = UncertaintySet(
            latencies=(loop.latency,),
            lengths=(loop.lengths,),
            delays_steps=(loop.timing.delay_steps,),
        )
        config = loop.make_law().config
        taken = ("h0_tokens", "queue_ref", "sigma_ref", gain_name)
        configuration = {key: getattr(config, key) for key in taken if hasattr(config, key)}
        configuration |= {"h_min_tokens": config.h_min, "h_max_tokens": config.h_max}
        problem = TuningProblem(
            single,
            TuningGoals(law="paper" if loop.law == "paper" else "regulated"),
            batch_max=max(1, round(2 * loop.latency.b0)),
            noise=0.0,
            prompt_tokens=loop.prompt_tokens,
        )
        _loop_sections(sections, problem, configuration | {"beta": loop.beta}, None)
    elif linear:
        nominal = operating_points(loop)[0]
        _draw(sections, "bode", lambda: bode_figure(nominal, []))
        _draw(sections, "nyquist", lambda: nyquist_figure(nominal, []))
        _draw(sections, "burst", lambda: burst_figure(loop)[0])
    else:
        _draw(sections, "burst", lambda: burst_figure(loop)[0])
    latency = loop.latency
    return Report(
        title="Token window: what the model says",
        source=f"law {loop.law}, lengths {loop.lengths.name}, delay {loop.timing.delay_steps}, "
        f"l_min {latency.l_min_ms:g} ms, B0 {latency.b0:g}, alpha {latency.alpha_ms:g} ms",
        findings=tuple(verdict.of_model(loop, point, found)),
        tables=(_stated_table(loop),),
        sections=tuple(sections),
    )


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write ``report.html`` and one PNG per picture into ``folder``; the paths, page first.

    Raises:
        OSError: the folder cannot be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "report.html"
    page.write_text(render(report), encoding="utf-8")
    paths = [page]
    for section in report.sections:
        path = folder / f"{section.name}.png"
        path.write_bytes(section.png)
        paths.append(path)
    return paths


def _draw(sections: list[Section], name: str, make: Callable[[], Figure]) -> None:
    buffer = io.BytesIO()
    with house_style():
        # No software and date in the file: the same input gives the same bytes.
        make().savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    sections.append(Section(name, HEADINGS[name], CAPTIONS[name], buffer.getvalue()))


def _loop_sections(
    sections: list[Section],
    problem: TuningProblem,
    configuration: Mapping[str, Any],
    recorded: tuple[float, float] | None,
) -> None:
    loops = list(problem.loops(configuration))
    linears: list[LinearLoop] = [linear for loop in loops for linear in operating_points(loop)]
    nominal = linears[0]
    lines = closed_loop_lines(linears[1:], _LINES)
    chosen = (configuration[problem.gain_name], configuration["beta"])
    _draw(sections, "bode", lambda: bode_figure(nominal, lines))
    _draw(sections, "nyquist", lambda: nyquist_figure(nominal, lines))
    some = LoopSet(loops[:: max(1, len(loops) // 24)])
    _draw(sections, "map", lambda: map_figure(some, problem.gain_name, chosen, recorded))
    if len(loops) > 1:
        _draw(sections, "monte_carlo", lambda: monte_carlo_figure(linears))
    _draw(sections, "burst", lambda: burst_figure(loops[0])[0])


def _recorded(
    trace: StepTrace, found: Identification, goals: TuningGoals, stated: Mapping[str, Any]
) -> tuple[TuningProblem, dict[str, Any]] | None:
    """The configuration that ran, with the problem that judges it, if the header tells it."""
    named = law_settings(trace.header.config)
    if named is None or named[0] not in GAIN_FIELD:
        return None
    law, params = named
    beta = trace.header.config.get("beta")
    beta = found.summary.delay.beta if beta is None and found.summary.delay else beta
    if not isinstance(beta, int | float) or not 0 < beta <= 1 or GAIN_FIELD[law] not in params:
        return None
    try:
        config = LoopModel(law=law, law_params=params).make_law().config
    except ValidationError:  # the replay's finding names the field
        return None
    configuration = {
        **params,
        "h_min_tokens": config.h_min,
        "h_max_tokens": config.h_max,
        "beta": float(beta),
    }
    same = goals.model_copy(update={"law": law})
    return tuning_problem(found, same, **stated), configuration


def _setting_table(result: TuningResult) -> Table:
    why = {
        "law": "window law",
        "h0_tokens": "nominal window: most bandwidth at rest within the limit",
        "h_min_tokens": "below it no plausible engine would get faster",
        "h_max_tokens": "bounds the batch that a burst can put on the engine",
        "gamma": "window gain: fastest that keeps the margin",
        "k": "integral gain: fastest that keeps the margin",
        "beta": "weight of the newest step: fastest that keeps margin and calm",
        "queue_ref": "queue that counts as saturated: two batches at the knee",
        "sigma_ref": "slowdown to hold: most bandwidth within the limit",
        "l_min_ms": "identified baseline, ms",
        "b0": "identified knee, whole requests",
        "alpha_ms": "identified slope above the knee, ms per request",
    }
    rows = tuple(
        (key, value if isinstance(value, str) else f"{value:.6g}", why.get(key, ""))
        for key, value in result.configuration.items()
    )
    return Table("What to set", ("key", "value", "why"), rows)


def _stated_table(loop: LoopModel) -> Table:
    """Every number the page rests on, defaults included: a page is read without its command."""
    config = loop.make_law().config
    rows: list[tuple[str, str, str]] = [("law", loop.law, "window law")]
    stated: dict[str, Any] = {
        key: getattr(config, key) for key in LAW_KEYS if getattr(config, key, None) is not None
    }
    if loop.law == "predictive":
        stated["itl_objective_ms"] = getattr(config, "itl_objective_ms", None)
    stated |= loop.latency.model_dump()
    stated |= {
        "beta": loop.beta,
        "delay_steps": loop.timing.delay_steps,
        "lengths": loop.lengths.name,
        "prompt_tokens": loop.prompt_tokens,
        "queue": loop.queue,
    }
    meaning = {key: field.description or "" for key, field in Settings.model_fields.items()}
    meaning["itl_objective_ms"] = "step time to hold, ms"
    for key, value in stated.items():
        if value is not None:
            shown = f"{value:.6g}" if isinstance(value, int | float) else str(value)
            rows.append((key, shown, meaning.get(key, "")))
    return Table("What was stated", ("key", "value", "meaning"), tuple(rows))


def _model_table(found: Identification) -> Table:
    rows = []
    for name in PARAMETERS:
        estimate = getattr(found.summary, name)
        shown = (
            ("not determined", "", "")
            if estimate is None
            else (f"{estimate.value:.5g}", f"{estimate.lo:.5g}", f"{estimate.hi:.5g}")
        )
        rows.append((f"{name} ({UNITS[name]})", *shown))
    if (lengths := found.summary.lengths) is not None:
        rows.append(
            (
                "mean remaining output, tokens",
                f"{lengths.mean_remaining_tokens:.1f}",
                f"{lengths.mean_remaining_lo:.1f}",
                f"{lengths.mean_remaining_hi:.1f}",
            )
        )
    if (delay := found.summary.delay) is not None:
        plausible = delay.plausible_steps
        rows.append(
            ("delay, steps", f"{delay.delay_steps}", f"{min(plausible)}", f"{max(plausible)}")
        )
    return Table(
        "What the trace identifies", ("parameter", "value", "95 % from", "to"), tuple(rows)
    )


def _source(trace: StepTrace, found: Identification) -> str:
    parts = [f"{trace.path.name}: {found.summary.steps_used} timed decode steps of {len(trace)}"]
    if trace.header.engine:
        parts.append(f"{trace.header.engine} {trace.header.engine_version}".strip())
    if trace.header.model:
        parts.append(f"model {trace.header.model}")
    return ", ".join(parts)
