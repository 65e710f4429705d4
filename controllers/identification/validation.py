"""How well a model predicts steps that it was not fitted to."""

from __future__ import annotations

from typing import Final

import numpy as np

from controllers.identification.knee_moments import Terms
from controllers.identification.samples import DecodeSamples
from controllers.identification.segmented import BISQUARE, fit_segmented
from controllers.models import LatencyModel
from controllers.trace_reader import FloatArray

_FOLDS: Final = 5
_BLOCKS: Final = 50


def held_out_fit(samples: DecodeSamples, terms: Terms) -> tuple[float, float]:
    """Fit in % and mean absolute error in % on every fifth block, fitted to the others.

    Fit is 100 (1 - |l - lhat| / |l - mean l|) in Euclidean norm, system identification's
    usual measure (Ljung, System Identification, 1999, section 16.4): 100 is perfect, 0 no
    better than the mean. Blocks of successive steps are held out, not single ones, whose
    neighbours would give them away. Gross outliers, whose robust weight is zero, are not
    scored: no model of B and KV can foresee a pause.
    """
    block = np.arange(len(samples)) * _BLOCKS // len(samples)
    test = block % _FOLDS == _FOLDS - 1
    fit = fit_segmented(samples.take(~test), terms)
    held = samples.take(test)
    c, a, alpha, kappa, prefill = fit.coefficients
    knee = 0.0 if np.isnan(fit.b0) else np.maximum(held.batch - fit.b0, 0.0)
    predicted = (
        c + a * held.batch + alpha * knee + kappa * held.kv_tokens + prefill * held.prefill_tokens
    )
    error = held.step_ms - predicted
    scatter = float(np.median(fit.scatter_ms / fit.fitted_ms)) * predicted
    scored = np.abs(error) < BISQUARE * np.maximum(scatter, 1e-9)
    if not scored.any():
        return 0.0, float("nan")
    return fit_percent(held.step_ms[scored], predicted[scored]), float(
        100 * np.mean(np.abs(error[scored]) / held.step_ms[scored])
    )


def fit_percent(measured: FloatArray, predicted: FloatArray) -> float:
    """100 (1 - |measured - predicted| / |measured - mean|), norms over the samples."""
    spread = float(np.linalg.norm(measured - measured.mean()))
    if spread == 0:
        return 100.0 if np.allclose(measured, predicted) else 0.0
    return 100.0 * (1.0 - float(np.linalg.norm(measured - predicted)) / spread)


def predicted_step_ms(model: LatencyModel, samples: DecodeSamples) -> FloatArray:
    """Step times (n,) that ``model`` expects for ``samples``, ms."""
    return model.step_ms(samples.batch, samples.kv_tokens, samples.prefill_tokens)
