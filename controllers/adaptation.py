"""The predictive law's online correction, analysed: stability, bias, lost excitation.

With phi = (d, p) the modelled decode and prefill parts of a step and G the true gains, the
mean of the correction (:mod:`controllers.laws.two_gain`) obeys

    g+ - 1 = (I - mu Q - leak I)(g - 1) + mu Q (G - 1),      Q = E[phi phi' / |phi|^2]

- stable for 0 < mu < 2 - leak, because Q has eigenvalues in [0, 1] that sum to 1, and with
  any delay: the error is formed from a delayed step's own phi and today's gains;
- rest point g - 1 = (mu Q + leak I)^-1 mu Q (G - 1): in a direction of excitation q the
  share leak/(mu q + leak) of the model's error stays uncorrected;
- a controller that holds l constant keeps phi constant: Q then has rank one, only
  g_d d + g_p p is learned, and the other direction returns to the calibration within
  1/leak steps. Without a leak it would keep whatever it was last.

Recursive least squares has no such floor. With forgetting its covariance grows without bound
along the unexcited direction (wind-up) until noise or a load change throws the gains; without
forgetting its step size falls as 1/t and it stops following the engine. :func:`run_closed_loop`
shows both.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from controllers.laws.base import FrozenModel
from controllers.laws.two_gain import TwoGainConfig, update_gains

Matrix = NDArray[np.float64]


def excitation_matrix(regressors: ArrayLike) -> Matrix:
    """Q = mean of phi phi'/|phi|^2 over rows of modelled (decode, prefill) ms, shape (2, 2).

    Raises:
        ValueError: not of shape (n, 2), or a row without any modelled time.
    """
    phi = np.asarray(regressors, dtype=np.float64)
    if phi.ndim != 2 or phi.shape[1] != 2 or phi.shape[0] == 0:
        raise ValueError(f"regressors: shape {phi.shape}, expected (n, 2) with n >= 1")
    norms = np.sum(phi**2, axis=1)
    if not np.all(norms > 0):
        raise ValueError("regressors: every row needs a modelled time above 0")
    unit = phi / np.sqrt(norms)[:, None]
    matrix: Matrix = unit.T @ unit / phi.shape[0]
    return matrix


def largest_step_size(leak: float) -> float:
    """Upper end of the range 0 < mu < 2 - leak in which the mean correction is stable."""
    return 2.0 - leak


class AdaptationAnalysis(FrozenModel):
    """How the correction behaves under a given excitation.

    Attributes:
        stable: the mean of the gains converges.
        excitation: eigenvalues of Q, ascending; they sum to 1.
        memory_steps: 1/(mu q + leak) for each, in the same order.
        uncorrected: share of the model's error left at rest, leak/(mu q + leak), same order.
        identifiable: the weaker direction is corrected to better than half.
    """

    stable: bool
    excitation: tuple[float, float]
    memory_steps: tuple[float, float]
    uncorrected: tuple[float, float]
    identifiable: bool


def analyse_adaptation(config: TwoGainConfig, regressors: ArrayLike) -> AdaptationAnalysis:
    """Stability, memory and bias of the correction for the steps that an engine ran.

    Raises:
        ValueError: see :func:`excitation_matrix`.
    """
    weak, strong = (
        float(v) for v in np.clip(np.linalg.eigvalsh(excitation_matrix(regressors)), 0, 1)
    )
    pace = tuple(config.step_size * q + config.leak for q in (weak, strong))
    left = tuple(config.leak / v if v > 0 else 1.0 for v in pace)
    memory = tuple(1.0 / v if v > 0 else float(1 << 53) for v in pace)
    return AdaptationAnalysis(
        stable=0 < config.step_size < largest_step_size(config.leak),
        excitation=(weak, strong),
        memory_steps=(memory[0], memory[1]),
        uncorrected=(left[0], left[1]),
        identifiable=left[0] < 0.5,
    )


def gains_at_rest(
    config: TwoGainConfig, regressors: ArrayLike, true_gains: tuple[float, float]
) -> tuple[float, float]:
    """Mean gains after a long time, clamps aside; the calibration where nothing is excited.

    Raises:
        ValueError: see :func:`excitation_matrix`.
    """
    q = config.step_size * excitation_matrix(regressors)
    wanted = q @ (np.asarray(true_gains, dtype=np.float64) - 1.0)
    # lstsq: with leak = 0 and one direction unexcited the start value stays, here the calibration.
    error = np.linalg.lstsq(q + config.leak * np.eye(2), wanted, rcond=None)[0]
    return 1.0 + float(error[0]), 1.0 + float(error[1])


class Estimator(StrEnum):
    """Which correction runs in the loop."""

    NLMS = "nlms"
    RLS = "rls"  # no forgetting
    RLS_FORGETTING = "rls_forgetting"


class _Rls:
    """Plain recursive least squares on two gains (Ljung, System Identification, 11.2)."""

    def __init__(self, forgetting: float) -> None:
        self._forgetting = forgetting
        self.gains = np.ones(2)
        # An exact prior, trusted as a calibration is: 10 % standard deviation per gain.
        self.covariance = 0.01 * np.eye(2)

    def update(self, step_ms: float, phi: Matrix) -> None:
        gain = self.covariance @ phi / (self._forgetting + phi @ self.covariance @ phi)
        self.gains = self.gains + gain * (step_ms - self.gains @ phi)
        self.covariance = (self.covariance - np.outer(gain, phi @ self.covariance)) / (
            self._forgetting
        )


class ClosedLoopRun(NamedTuple):
    """A chunk controller on a corrected model; one value per step.

    Attributes:
        step_ms: measured step time, shape (steps,).
        gains: corrected (g_d, g_p) after each step, shape (steps, 2).
        chunk_tokens: prompt tokens taken along, shape (steps,).
        covariance_trace: of recursive least squares, 0 for NLMS, shape (steps,).
    """

    step_ms: NDArray[np.float64]
    gains: NDArray[np.float64]
    chunk_tokens: NDArray[np.float64]
    covariance_trace: NDArray[np.float64]


FORGETTING = 0.99
"""The same memory as mu = 0.02 gives an excited direction to within a factor of two."""


def run_closed_loop(
    estimator: Estimator,
    decode_ms: ArrayLike,
    true_gains: ArrayLike,
    *,
    objective_ms: float,
    seed: int,
    noise: float = 0.02,
    prefill_ms_per_token: float = 0.02,
    config: TwoGainConfig | None = None,
) -> ClosedLoopRun:
    """Let a chunk controller hold each step at ``objective_ms`` on its corrected model.

    The chunk is n = clip((objective - g_d d)/(g_p p), 32, 8192); the step then takes
    G_d d + G_p p n with log-normal noise. Prompts never run out, so the loop succeeds in
    holding l constant, and thereby removes its own excitation.

    Args:
        estimator: correction to run.
        decode_ms: modelled decode part of each step, ms, shape (steps,).
        true_gains: engine's true (G_d, G_p) at each step, shape (steps, 2).
        objective_ms: step time to hold.
        seed: of the noise.
        noise: standard deviation of the log of a step's duration.
        prefill_ms_per_token: model's prefill cost.
        config: of the NLMS correction; its clamps bound the gains that RLS may use as well.
    """
    settings = TwoGainConfig() if config is None else config
    decode = np.asarray(decode_ms, dtype=np.float64)
    truth = np.asarray(true_gains, dtype=np.float64)
    steps = decode.size
    if truth.shape != (steps, 2):
        raise ValueError(f"true_gains: shape {truth.shape}, expected ({steps}, 2)")
    factors = np.exp(noise * np.random.default_rng(seed).standard_normal(steps))
    rls = _Rls(FORGETTING if estimator is Estimator.RLS_FORGETTING else 1.0)
    run = ClosedLoopRun(np.zeros(steps), np.zeros((steps, 2)), np.zeros(steps), np.zeros(steps))
    gains = (1.0, 1.0)
    for t in range(steps):
        usable = (
            min(max(gains[0], settings.decode_min), settings.decode_max),
            min(max(gains[1], settings.prefill_min), settings.prefill_max),
        )
        budget = objective_ms - usable[0] * decode[t]
        chunk = min(max(budget / (usable[1] * prefill_ms_per_token), 32.0), 8192.0)
        phi = np.array([decode[t], prefill_ms_per_token * chunk])
        step = float(truth[t] @ phi) * float(factors[t])
        if estimator is Estimator.NLMS:
            gains = update_gains(settings, gains, step, float(phi[0]), float(phi[1]))
        else:
            rls.update(step, phi)
            gains = (float(rls.gains[0]), float(rls.gains[1]))
            run.covariance_trace[t] = float(np.trace(rls.covariance))
        run.step_ms[t], run.gains[t], run.chunk_tokens[t] = step, gains, chunk
    return run
