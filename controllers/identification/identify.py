"""From a step trace to a model of the loop with intervals, or to a refusal with reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from controllers.identification.bootstrap import (
    Profile,
    Replicates,
    bootstrap,
    joint_interval,
    knee_profile,
)
from controllers.identification.correlation import autocorrelation, ljung_box
from controllers.identification.delay import estimate_delay
from controllers.identification.excitation import (
    DECISIVE,
    data_refusals,
    estimate_refusals,
    response_refusals,
)
from controllers.identification.knee_moments import COLUMNS, Terms
from controllers.identification.length_law import MIN_FINISHED, estimate_lengths
from controllers.identification.prefill_only import prefill_slope
from controllers.identification.result import (
    Estimate,
    Identification,
    IdentificationSummary,
    Refusal,
)
from controllers.identification.samples import DecodeSamples, decode_samples
from controllers.identification.segmented import SegmentedFit, fit_segmented, knee_bounds
from controllers.identification.selection import Selection, select_terms
from controllers.identification.validation import held_out_fit
from controllers.models import LatencyModel
from controllers.trace_reader import FloatArray, StepTrace

_WHITE: Final = 0.01
_POOR_FIT: Final = 50.0
_NAMES: Final = (*COLUMNS, "b0")


def identify(trace: StepTrace, seed: int = 0) -> Identification:
    """Identify step time, length law and delay from ``trace``.

    Deterministic for a given ``seed`` of the bootstrap. Never raises on a trace that was
    read: what it does not determine is None, and ``summary.refusals`` says why and which
    data would help.
    """
    rng = np.random.default_rng(seed)
    samples = decode_samples(trace)
    base: dict[str, Any] = {
        "trace": trace.path.name,
        "engine": trace.header.engine,
        "model": trace.header.model,
        "emulated": trace.header.emulated,
        "steps": len(trace),
        "steps_used": len(samples),
        "delay": estimate_delay(trace),
    }
    notes = list(trace.notes)
    lengths = estimate_lengths(trace, rng)
    refusals = []
    if lengths is None:
        refusals.append(
            Refusal(
                code="no-lengths",
                reason=f"only {len(trace.finished)} requests finished in the trace, "
                f"{MIN_FINISHED} are needed for the law of output lengths",
                wanted="Record longer, with the column 'finished', or state the key lengths",
            )
        )
    else:
        base["lengths"] = lengths[2]
    if len(samples):
        base["batch_range"] = (float(samples.batch.min()), float(samples.batch.max()))
    result = Identification(
        summary=IdentificationSummary(identifiable=False, **base),
        samples=samples,
        lengths=None if lengths is None else lengths[0],
        outer_lengths=() if lengths is None else lengths[1],
    )
    step_time = _StepTime(trace, samples, rng)
    result = step_time.into(result, base, notes)
    refusals = step_time.refusals + refusals
    # Lengths can be stated by hand; the step time cannot.
    identifiable = not step_time.refusals
    summary = IdentificationSummary(
        identifiable=identifiable, refusals=tuple(refusals), notes=tuple(notes), **base
    )
    return replace(result, summary=summary)


class _StepTime:
    """The step-time half: fits in the constructor, then reports."""

    def __init__(self, trace: StepTrace, samples: DecodeSamples, rng: np.random.Generator) -> None:
        self.samples = samples
        self.selection: Selection | None = None
        self.fit: SegmentedFit | None = None
        self.profile: Profile | None = None
        self.estimates: dict[str, Estimate] = {}
        self.models: list[LatencyModel] = []
        self.straight = False
        self.prefill_from_own_steps = False
        self.refusals = data_refusals(samples)
        if self.refusals:
            return
        self.selection = select_terms(samples)
        self.refusals = response_refusals(samples, self.selection)
        terms = self.selection.terms
        self.straight = not (terms.knee and self.selection.knee_gain >= DECISIVE)
        if self.straight:
            terms = terms._replace(knee=False, a=self.selection.response >= DECISIVE)
        self.fit = fit_segmented(samples, terms)
        self._intervals(rng)
        if not terms.prefill:
            self._prefill_steps(trace, rng)
        if not self.refusals:
            largest = None if self.straight else knee_bounds(self.fit.design)[1]
            self.refusals = estimate_refusals(samples, self.estimates, largest)

    def _intervals(self, rng: np.random.Generator) -> None:
        assert self.fit is not None
        assert self.selection is not None
        tau, fit = self.selection.tau, self.fit
        if fit.terms.knee:
            self.profile = knee_profile(fit, tau)
        chosen = self._named(bootstrap(fit, self.samples.step_ms, tau, rng))
        values = self._named(
            Replicates(coefficients=fit.coefficients[None, :], b0=np.array([fit.b0]))
        )[0]
        low, high = joint_interval(chosen)
        # A term left out may still be there, small: the intervals also cover the model
        # that keeps every term the data could carry.
        excited = self.selection.excited
        wide_terms = Terms(fit.terms.a, fit.terms.knee, excited.kv, excited.prefill)
        if wide_terms != fit.terms:
            wide = fit_segmented(self.samples, wide_terms)
            more = joint_interval(self._named(bootstrap(wide, self.samples.step_ms, tau, rng)))
            low, high = np.minimum(low, more[0]), np.maximum(high, more[1])
        if self.profile is not None:
            b0 = _NAMES.index("b0")
            bounds = self.profile.interval()
            low[b0], high[b0] = min(low[b0], bounds[0]), max(high[b0], bounds[1])
        low, high = np.maximum(np.minimum(low, values), 0.0), np.maximum(high, values)
        self.estimates = {
            name: Estimate(value=float(v), lo=float(a), hi=float(b))
            for name, v, a, b in zip(_NAMES, values, low, high, strict=True)
            if np.isfinite(v)
        }
        self.models = [_latency(dict(zip(_NAMES, row, strict=True))) for row in chosen]

    def _named(self, found: Replicates) -> FloatArray:
        """Rows of parameters in the order of ``_NAMES``.

        A line without a knee, seen from the smallest batch on, is a knee at that batch:
        then l_min is the step at the smallest batch and alpha the slope.
        """
        rows = np.column_stack([found.coefficients, found.b0])
        if self.straight:
            start = float(self.samples.batch.min())
            rows[:, 0] += rows[:, 1] * start
            rows[:, 2], rows[:, 1], rows[:, 5] = rows[:, 1], 0.0, start
        return rows

    def _prefill_steps(self, trace: StepTrace, rng: np.random.Generator) -> None:
        found = prefill_slope(trace, rng)
        if found is None:
            return
        self.prefill_from_own_steps = True
        value, low, high = found
        self.estimates["prefill_ms_per_token"] = Estimate(value=value, lo=low, hi=high)
        self.models = [m.model_copy(update={"prefill_ms_per_token": value}) for m in self.models]

    def into(
        self, result: Identification, base: dict[str, Any], notes: list[str]
    ) -> Identification:
        """Add the findings to ``base`` (summary fields), ``notes`` and ``result``."""
        if self.fit is None or self.selection is None:
            return result
        fit = self.fit
        standard = (self.samples.step_ms - fit.fitted_ms) / fit.scatter_ms
        fit_percent, error_percent = held_out_fit(self.samples, fit.terms)
        base["formula"] = fit.terms.describe()
        base["noise_percent"] = float(100 * np.median(fit.scatter_ms / fit.fitted_ms))
        base["fit_percent"] = fit_percent
        base["held_out_error_percent"] = error_percent
        base["outlier_percent"] = float(100 * np.mean(fit.robust == 0))
        base["residual_lag1"] = float(autocorrelation(standard, 1)[0])
        base["ljung_box_p"] = ljung_box(standard)[1]
        undetermined = {"b0", "alpha_ms"} if self.refusals else set()
        base.update({k: v for k, v in self.estimates.items() if k not in undetermined})
        self._remark(notes, base)
        if self.refusals:
            return replace(result, fit=fit, profile=self.profile)
        return replace(
            result,
            fit=fit,
            profile=self.profile,
            latency=_latency({name: e.value for name, e in self.estimates.items()}),
            bootstrap_latencies=tuple(m for m in self.models if m.alpha_ms > 0),
        )

    def _remark(self, notes: list[str], base: dict[str, Any]) -> None:
        assert self.selection is not None
        if self.straight and not self.refusals:
            notes.append(
                f"No knee up to B = {self.samples.batch.max():g}: the step time is a line from "
                "the smallest batch on, b0 is that batch, and nothing is known beyond the largest"
            )
        if not self.selection.excited.kv and np.ptp(self.samples.kv_tokens) > 0:
            notes.append(
                "KV tokens move with the batch only: what they cost is counted in the slope"
            )
        if self.prefill_from_own_steps:
            notes.append("No decode step carried a prompt; its cost is from prefill-only steps")
        if base["ljung_box_p"] < _WHITE and base["residual_lag1"] > 0.1:
            notes.append(
                f"Residuals repeat themselves (lag-one correlation {base['residual_lag1']:.2f}): "
                "something the model leaves out moves the step time; the intervals allow for it"
            )
        if base["fit_percent"] < _POOR_FIT:
            notes.append(
                f"The model explains only {base['fit_percent']:.0f} % of the movement of held-out "
                f"step times; the rest is scatter of {base['noise_percent']:.1f} %"
            )


def _latency(values: dict[str, float]) -> LatencyModel:
    """Model from named values; what sampling made negative is zero."""
    floor = {name: max(float(v), 0.0) for name, v in values.items() if np.isfinite(v)}
    floor["l_min_ms"] = max(floor["l_min_ms"], 1e-6)
    return LatencyModel(**floor)
