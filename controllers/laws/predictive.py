"""Predictive law: the largest token load whose predicted step keeps the ITL objective.

budget = theta * objective - g_p p r           (r: prompt tokens per step to keep up with)
B_max  = largest B with g_d (c + a B + alpha (B - B0)+ + kappa h B) <= budget
H      = B_max * rho,   clamped                (h, rho: KV and remaining tokens per row)

theta = exp(-m s) between theta_min and theta_max, s = root mean square of the log residual:
the margin is learned from how wrong the model has been. Gains g_d, g_p come from
:mod:`controllers.laws.two_gain`, one step late: a window never rests on the sample that it was
computed with. Where alpha B0 > c, more than B0 rows lower B/l(B), so B_max stops at B0.

Unlike laws on sigma, it regulates the step itself and stays right where KV tokens, not rows,
make the step long.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pydantic import Field

from controllers.laws.base import LawSample
from controllers.laws.jacobian import LawJacobian
from controllers.laws.limits import WindowLimits
from controllers.laws.two_gain import TwoGainConfig, update_gains
from controllers.models.latency import LatencyModel


class PredictiveLawConfig(WindowLimits):
    """Objective, calibrated model, and the rates at which the law learns."""

    itl_objective_ms: float = Field(
        default=50.0, gt=0, description="step time to keep, ms: a seventh above the paper's 43"
    )
    latency: LatencyModel = Field(
        default_factory=LatencyModel, description="calibrated step model; see `identify`"
    )
    gains: TwoGainConfig = Field(
        default_factory=TwoGainConfig, description="correction of the model; defaults there"
    )
    margin_sigmas: float = Field(
        default=3.3, ge=0, description="m: 3.3 standard deviations leave out 1 step in 2,000"
    )
    residual_start: float = Field(
        default=0.05, gt=0, description="s before any sample: a calibration good to 5 %"
    )
    residual_weight: float = Field(
        default=0.005, gt=0, le=1, description="memory of s, 200 steps: steadier than the gains"
    )
    theta_max: float = Field(
        default=0.97,
        gt=0,
        le=1,
        description="theta too close to 1 is a cliff: half of all steps would then miss",
    )
    theta_min: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="pauses of the process, which no smaller batch prevents, would otherwise shut "
        "the window: with three in ten steps twice too long theta were 0.28",
    )
    row_weight: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="memory of h and rho, 20 steps: a faster one follows the rows better and "
        "makes the loop through rho swing (disk margin 0.5 at 0.1 for constant lengths)",
    )
    prefill_weight: float = Field(
        default=0.005, gt=0, le=1, description="memory of r, 200 steps, about 10 s of decoding"
    )
    prefill_share_max: float = Field(
        default=0.5, ge=0, lt=1, description="most of the budget that prompts may claim"
    )
    chunk_min_tokens: int = Field(
        default=32, ge=1, description="prompts must progress even when the budget is spent"
    )
    chunk_max_tokens: int = Field(
        default=8192, ge=1, description="the usual chunk of a stock engine"
    )


class PredictiveState(NamedTuple):
    """What the law remembers; per-row means are 0 until a first sample with rows."""

    window_tokens: float
    gain_decode: float
    gain_prefill: float
    residual_var: float
    """s^2, mean square of the log residual."""
    row_tokens: float
    """rho, remaining output tokens per row."""
    row_kv_tokens: float
    """h, KV tokens per row."""
    prefill_per_step: float
    """r, prompt tokens per step."""


class BatchBound(NamedTuple):
    """B_max and its derivatives by the step time allowed to the model and by h."""

    batch: float
    by_step_ms: float
    by_row_kv: float


def largest_batch(model: LatencyModel, step_ms: float, row_kv_tokens: float) -> BatchBound:
    """Largest B whose modelled decode step is at most ``step_ms``; may be infinite.

    Exact inverse of the two-piece affine model at ``row_kv_tokens`` KV tokens per row.
    """
    slope = model.a_ms + model.kappa_ms_per_token * row_kv_tokens
    constant = model.l_min_ms
    above_knee = step_ms > constant + slope * model.b0
    if above_knee:
        if model.alpha_ms * model.b0 > constant:
            return BatchBound(model.b0, 0.0, 0.0)
        slope += model.alpha_ms
        constant -= model.alpha_ms * model.b0
    if step_ms <= constant:
        return BatchBound(0.0, 0.0, 0.0)
    if slope == 0:
        return BatchBound(math.inf, 0.0, 0.0)
    batch = (step_ms - constant) / slope
    return BatchBound(batch, 1.0 / slope, -model.kappa_ms_per_token * batch / slope)


class PredictiveLaw:
    """Window and prefill chunk from a corrected model of the step, see the module."""

    name = "predictive"

    def __init__(self, config: PredictiveLawConfig) -> None:
        self.config = config
        m = config.latency
        # Plain floats for the scheduler's hot path, as in the paper's law.
        self._model = (m.l_min_ms, m.a_ms, m.alpha_ms, m.b0, m.kappa_ms_per_token)
        self._prefill_ms = m.prefill_ms_per_token
        # Above the knee, at KV held, one more row lowers B/l(B) when alpha B0 > c + kappa KV.
        self._knee_excess_ms = m.alpha_ms * m.b0 - m.l_min_ms
        self._objective = config.itl_objective_ms
        self.residual_clip = (
            -math.log(1 - config.gains.drop_above) if config.gains.drop_above < 1 else 50.0
        )

    def initial(self) -> PredictiveState:
        """H0 inside the clamps, the calibration as it is."""
        start = self.config.clamp(self.config.h0_tokens)
        return PredictiveState(start, 1.0, 1.0, self.config.residual_start**2, 0.0, 0.0, 0.0)

    def window(self, state: PredictiveState) -> float:
        """H of ``state``, tokens."""
        return state.window_tokens

    def decode_ms(self, batch: float, kv_tokens: float) -> float:
        """Modelled decode part of a step before correction, ms."""
        c, a, alpha, b0, kappa = self._model
        return c + a * batch + alpha * max(batch - b0, 0.0) + kappa * kv_tokens

    def theta(self, residual_var: float) -> float:
        """Part of the objective to plan for."""
        margin = math.exp(-self.config.margin_sigmas * residual_var**0.5)
        return max(self.config.theta_min, min(self.config.theta_max, margin))

    def chunk_tokens(
        self,
        state: PredictiveState,
        batch: int,
        kv_tokens: int,
        prefix_tokens: int = 0,
        extra_ms: float = 0.0,
        objective_ms: float | None = None,
    ) -> int:
        """Prompt tokens for the next step, beside ``batch`` decoding rows.

        The chunk reads ``prefix_tokens`` of its own request's KV as well; ``extra_ms`` is what
        the step takes longer than the model knows; ``objective_ms`` stands in for the configured
        objective.
        """
        low, high = self.config.chunk_min_tokens, self.config.chunk_max_tokens
        if batch <= 0:
            return high
        objective = self._objective if objective_ms is None else objective_ms
        budget = self.theta(state.residual_var) * objective - extra_ms
        budget -= state.gain_decode * self.decode_ms(batch, kv_tokens + prefix_tokens)
        per_token = state.gain_prefill * self._prefill_ms
        if per_token * high <= budget:
            return high
        if budget <= 0 or per_token == 0:
            return low
        return min(max(int(budget / per_token), low), high)

    def residual(self, step_ms: float, predicted_ms: float) -> float:
        """Log residual, clipped where the gains stop learning: an outlier widens the margin
        but cannot close the window."""
        if step_ms <= 0 or predicted_ms <= 0:
            return 0.0
        return min(
            max(math.log(step_ms) - math.log(predicted_ms), -self.residual_clip), self.residual_clip
        )

    def budget_ms(self, state: PredictiveState, objective_ms: float | None = None) -> float:
        """Step time left to decoding once the prompts that must be served have their part;
        ``objective_ms`` stands in for the configured objective."""
        return self._budget(state, state.gain_prefill, objective_ms)

    def _budget(
        self, state: PredictiveState, gain_prefill: float, objective_ms: float | None = None
    ) -> float:
        objective = self._objective if objective_ms is None else objective_ms
        goal = self.theta(state.residual_var) * objective
        prompts = gain_prefill * self._prefill_ms * state.prefill_per_step
        return goal - min(prompts, self.config.prefill_share_max * goal)

    def admits(
        self,
        state: PredictiveState,
        batch: int,
        kv_tokens: int,
        extra_ms: float = 0.0,
        objective_ms: float | None = None,
        past_knee: bool = False,
    ) -> bool:
        """Whether one more row keeps the predicted decode step within the budget, and the tokens
        per second: (B+1)/l(B+1) >= B/l(B). With ``past_knee`` only the former is asked.

        The same bound as the window's, but on the rows there are now: a window in tokens
        fixes the batch only on average, so a gate that must hold the objective step by step
        asks this as well. The newcomer's own KV is left out (it grows only as it decodes).
        """
        if batch >= 1 and not past_knee and self.beyond_knee(batch + 1, kv_tokens):
            return False
        predicted = state.gain_decode * self.decode_ms(batch + 1, kv_tokens) + extra_ms
        return predicted <= self.budget_ms(state, objective_ms)

    def beyond_knee(self, rows: int, kv_tokens: float) -> bool:
        """Whether the last of ``rows`` rows lowers the tokens per second."""
        _, _, _, b0, kappa = self._model
        return rows > b0 and kappa * kv_tokens < self._knee_excess_ms

    def bound(self, state: PredictiveState, gains: tuple[float, float]) -> float:
        """Unclamped window of the means in ``state`` under ``gains``, tokens."""
        step_ms = self._budget(state, gains[1]) / gains[0]
        bound = largest_batch(self.config.latency, step_ms, state.row_kv_tokens)
        return bound.batch * state.row_tokens

    def step(self, sample: LawSample, state: PredictiveState) -> tuple[float, PredictiveState]:
        """Learn from the sample, then plan with the gains from before it."""
        gains = (state.gain_decode, state.gain_prefill)
        decode = self.decode_ms(sample.batch, sample.kv_tokens)
        prefill = self._prefill_ms * sample.prefill_tokens
        residual_var = state.residual_var
        learned = gains
        if sample.step_ms > 0:
            residual = self.residual(sample.step_ms, gains[0] * decode + gains[1] * prefill)
            residual_var += self.config.residual_weight * (residual**2 - residual_var)
            learned = update_gains(self.config.gains, gains, sample.step_ms, decode, prefill)
        row_tokens, row_kv = state.row_tokens, state.row_kv_tokens
        if sample.batch > 0:
            weight = self.config.row_weight if row_tokens > 0 else 1.0
            row_tokens += weight * (sample.load_tokens / sample.batch - row_tokens)
            row_kv += weight * (sample.kv_tokens / sample.batch - row_kv)
        rate = state.prefill_per_step
        rate += self.config.prefill_weight * (sample.prefill_tokens - rate)
        after = PredictiveState(
            state.window_tokens, *learned, residual_var, row_tokens, row_kv, rate
        )
        if row_tokens > 0:  # before any row was seen, tokens per row are unknown: keep H
            window = self.config.clamp(self.bound(after, gains))
            after = after._replace(window_tokens=window)
        return after.window_tokens, after

    def jacobian(self, sample: LawSample, state: PredictiveState) -> LawJacobian:
        """Rows in the order of :class:`PredictiveState`."""
        from controllers.laws.predictive_jacobian import jacobian  # analysis only, not serving

        return jacobian(self, sample, state)
