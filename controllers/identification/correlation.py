"""How much the residuals of successive steps repeat each other."""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.special import chdtrc

from controllers.trace_reader import FloatArray

_CLIP: Final = 4.0  # standard deviations: one outlier must not look like correlation
_NEGLIGIBLE: Final = 0.05


def autocorrelation(residual: FloatArray, lags: int) -> FloatArray:
    """Sample autocorrelation at lags 1 .. ``lags`` of standardised residuals (n,)."""
    x = np.clip(residual, -_CLIP, _CLIP)
    x = x - x.mean()
    total = float(np.dot(x, x))
    if total == 0:
        return np.zeros(lags)
    return np.array([float(np.dot(x[k:], x[:-k])) / total for k in range(1, lags + 1)])


def variance_inflation(residual: FloatArray) -> float:
    """Integrated autocorrelation time tau >= 1: n correlated rows are worth n / tau.

    tau = 1 + 2 sum rho_k, summed until the correlation has died away (Sokal's window).
    """
    lags = min(400, residual.size // 10)
    if lags < 1:
        return 1.0
    rho = autocorrelation(residual, lags)
    small = np.flatnonzero(rho < max(_NEGLIGIBLE, 2.0 / np.sqrt(residual.size)))
    stop = int(small[0]) if small.size else lags
    return float(1.0 + 2.0 * rho[:stop].sum())


def ljung_box(residual: FloatArray, lags: int = 20) -> tuple[float, float]:
    """Ljung-Box statistic and p-value for whiteness (Biometrika 65, 1978).

    A small p-value says that something the model leaves out moves the step time, for
    example thermal drift or another tenant.
    """
    n = residual.size
    lags = min(lags, max(n // 5, 1))
    rho = autocorrelation(residual, lags)
    statistic = n * (n + 2) * float(np.sum(rho**2 / (n - np.arange(1, lags + 1))))
    return statistic, float(chdtrc(lags, statistic))  # scipy.stats takes a second to load
