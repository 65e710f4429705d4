"""Where the loop comes to rest under a constant queue.

For the paper's law with f = 1 + min(1, q/Q) and a = alpha/l_min, x = a B0:

    f H0/rbar <= B0:   sigma* = 1, H* = f H0, the loop is idle
    otherwise          sigma*^2 + (x - 1) sigma* - f a H0/rbar = 0, H* = f H0/sigma*
    B* = H*/rbar       (fluid; a head-of-line gate holds B* - 1 + 1/rbar, see `gate_gap`)
"""

from __future__ import annotations

import math
from enum import StrEnum

from scipy.optimize import brentq

from controllers.laws.base import FrozenModel, LawSample
from controllers.laws.paper import PaperLaw
from controllers.laws.predictive import PredictiveLaw
from controllers.laws.regulated import RegulatedLaw
from controllers.models import LengthLaw, LoopModel
from controllers.models.loop import SATURATED

SWITCHING_LAWS = ("vegas", "aimd")
"""Laws that move by a fixed step: they rest nowhere, or anywhere in a band."""


class Regime(StrEnum):
    """What holds the window at rest."""

    IDLE = "idle"  # latency does not answer to the batch here: no feedback
    ACTIVE = "active"  # feedback holds it
    OPEN_LOOP = "open_loop"  # the law does not listen
    CLAMPED_MIN = "clamped_min"
    CLAMPED_MAX = "clamped_max"
    CYCLING = "cycling"  # no rest; the numbers are means over the cycle


class Equilibrium(FrozenModel):
    """A rest point."""

    sigma: float
    window_tokens: float
    batch: float
    regime: Regime
    mean_remaining_tokens: float
    step_ms: float
    """Decode step time, without prompt tokens."""
    kv_tokens: float
    loop_gain: float
    """g = d ln l / d ln B at rest; 0 below the knee of a flat engine."""

    @property
    def tokens_per_second(self) -> float:
        """Decode bandwidth B/l."""
        return 1000.0 * self.batch / self.step_ms


def gate_gap(lengths: LengthLaw) -> float:
    """Mean gap H - K that a head-of-line gate leaves, tokens.

    The head waits until its whole length fits. Seen over time that length is
    length-biased and the gap uniform on 0 .. L-1: (E[L^2]/E[L] - 1)/2 = rbar - 1. That is the
    limit for H well above the lengths; at H of eight requests and CV = 1 the gap is a fifth
    larger (docs/control.md).
    """
    return lengths.residual_mean - 1.0


def queue_factor(loop: LoopModel) -> float:
    """1 + min(1, q/Q) of equation (3) at the loop's queue; 2 when saturated."""
    if loop.queue == SATURATED:
        return 2.0
    reference = getattr(loop.make_law().config, "queue_ref", None)
    return 2.0 if reference is None else 1.0 + min(1.0, float(loop.queue) / reference)


def queue_depth(loop: LoopModel) -> float:
    """Depth to put into a law's sample; twice Q stands for a saturated queue."""
    if loop.queue == SATURATED:
        return 2.0 * float(getattr(loop.make_law().config, "queue_ref", 16.0))
    return float(loop.queue)


def batch_at(loop: LoopModel, window_tokens: float, gap_tokens: float = 0.0) -> float:
    """Steady batch under a window: B = (H - gap)/rbar, never negative."""
    return max(window_tokens - gap_tokens, 0.0) / loop.lengths.residual_mean


def steady_sample(
    loop: LoopModel, window: float, batch: float, itl_ms: float, queue: float
) -> LawSample:
    """Sample of a steady step under a full window; fractions stay, as in the fluid model."""
    return LawSample._make(
        (
            itl_ms / loop.latency.l_min_ms,
            itl_ms,
            loop.steady_step_ms(batch)
            + loop.latency.prefill_ms_per_token * batch / loop.lengths.mean * loop.prompt_tokens,
            queue,
            window,
            batch,
            batch * loop.kv_per_request,
            batch / loop.lengths.mean * loop.prompt_tokens,
        )
    )


def equilibrium(loop: LoopModel, *, gated: bool = False) -> Equilibrium:
    """Rest point of ``loop``; with ``gated`` for whole requests behind a head-of-line gate.

    Laws that switch (vegas, aimd) and gradient2 have no closed form: theirs is the mean of a
    run on the memoryless plant, and ``cycling`` where that run does not settle.
    """
    law = loop.make_law()
    gap = gate_gap(loop.lengths) if gated else 0.0
    if isinstance(law, PaperLaw):
        target = _crossing(loop, queue_factor(loop) * law.config.h0_tokens, gap)
        low, high = law.config.h_min, law.config.h_max
    elif isinstance(law, RegulatedLaw):
        target = _window_at_sigma(loop, law.config.sigma_ref, gap)
        low, high = law.config.h_min, law.config.h_max
    elif isinstance(law, PredictiveLaw):
        target = _predictive_window(loop, law, gap)
        low, high = law.config.h_min, law.config.h_max
    elif law.name == "fixed":
        return _at(loop, law.window(law.initial()), gap, Regime.OPEN_LOOP)
    else:
        return _run_to_rest(loop, gap)
    # At the clamp itself the law may rest by feedback: half an ulp must not decide.
    if target > high * (1 + 1e-12):
        return _at(loop, high, gap, Regime.CLAMPED_MAX)
    if target < low * (1 - 1e-12):
        return _at(loop, low, gap, Regime.CLAMPED_MIN)
    return _at(loop, target, gap, Regime.ACTIVE)


def _at(loop: LoopModel, window: float, gap: float, regime: Regime) -> Equilibrium:
    batch = batch_at(loop, window, gap)
    step = loop.steady_step_ms(batch)
    slope = loop.slope_per_request_ms
    # With a tolerance: a window computed to rest exactly on the knee is idle.
    if batch > loop.latency.b0 * (1 + 1e-9):
        slope += loop.latency.alpha_ms
    if slope == 0.0 and regime is Regime.ACTIVE:
        regime = Regime.IDLE
    return Equilibrium(
        sigma=step / loop.latency.l_min_ms,
        window_tokens=window,
        batch=batch,
        regime=regime,
        mean_remaining_tokens=loop.lengths.residual_mean,
        step_ms=step,
        kv_tokens=batch * loop.kv_per_request,
        loop_gain=slope * batch / step,
    )


def _crossing(loop: LoopModel, goal_tokens: float, gap: float) -> float:
    """H with H sigma(H) = goal: each affine piece of sigma gives a quadratic.

    The floor max(0.5, sigma) of equation (3) is left out: sigma >= 1 in this model.
    """
    model, rbar = loop.latency, loop.lengths.residual_mean
    offset = gap / rbar

    def solve(constant: float, slope: float) -> float:
        # sigma = constant + slope (H/rbar - offset), both relative to l_min.
        linear = constant - slope * offset
        if slope == 0.0:
            return goal_tokens / linear
        root = math.sqrt(linear**2 + 4.0 * slope / rbar * goal_tokens)
        # The stable form of the positive root where linear > 0, else the plain one.
        return 2.0 * goal_tokens / (linear + root)

    if goal_tokens <= gap:  # the gate never opens to a whole request: sigma = 1
        return goal_tokens
    slope = loop.slope_per_request_ms / model.l_min_ms
    knee = (model.b0 + offset) * rbar
    window = solve(1.0, slope)
    if window > knee:
        window = solve(1.0 - model.x, slope + model.alpha_ms / model.l_min_ms)
    return window


def _window_at_sigma(loop: LoopModel, sigma: float, gap: float) -> float:
    """Largest H whose steady slowdown is at most ``sigma``; infinite on a flat engine."""
    model, rbar = loop.latency, loop.lengths.residual_mean
    slope = loop.slope_per_request_ms
    excess = (sigma - 1.0) * model.l_min_ms
    if excess > slope * model.b0:
        steeper = slope + model.alpha_ms
        batch = math.inf
        if steeper > 0:
            batch = (excess + model.alpha_ms * model.b0) / steeper
    else:
        batch = excess / slope if slope > 0 else model.b0
    return batch * rbar + gap


def _predictive_window(loop: LoopModel, law: PredictiveLaw, gap: float) -> float:
    """Fixed point of the predictive law once its margin and gains have settled.

    Noise-free and with the law's own model as the truth, s -> 0 and both gains stay 1.
    Where the loop's engine is another than the law's model, the decode gain is taken as the
    ratio of the two at rest (up to the leak's bias).
    """
    rbar = loop.lengths.residual_mean
    clamp_high = law.config.h_max

    def answer(window: float) -> float:
        batch = batch_at(loop, window, gap)
        kv = batch * loop.kv_per_request
        gain = loop.latency.step_ms(batch, kv) / law.decode_ms(batch, kv)
        gain = min(max(gain, law.config.gains.decode_min), law.config.gains.decode_max)
        state = law.initial()._replace(
            residual_var=0.0,
            row_tokens=(window - gap) / batch if batch > 0 else rbar,
            row_kv_tokens=loop.kv_per_request,
            prefill_per_step=batch / loop.lengths.mean * loop.prompt_tokens,
        )
        return law.bound(state, (gain, 1.0))

    if answer(clamp_high) >= clamp_high:
        return math.inf
    low = 1e-9 * clamp_high
    if answer(low) <= low:
        return low
    return float(brentq(lambda h: answer(h) - h, low, clamp_high, xtol=1e-10, rtol=1e-13))


_RUN_STEPS = 6_000
"""Ten memories of gradient2's long average."""


def _run_to_rest(loop: LoopModel, gap: float) -> Equilibrium:
    law, queue = loop.make_law(), queue_depth(loop)
    state = law.initial()
    window = law.window(state)
    itl: float | None = None
    kept: list[float] = []
    for step in range(_RUN_STEPS):
        batch = batch_at(loop, window, gap)
        now = loop.steady_step_ms(batch)
        itl = now if itl is None else itl + loop.beta * (now - itl)
        sample = steady_sample(loop, window, batch, itl, queue)
        window, state = law.step(sample, state)
        if step >= _RUN_STEPS // 2:
            kept.append(window)
    mean = math.fsum(kept) / len(kept)
    moving = max(kept) - min(kept) > 1e-3 * mean
    regime = Regime.CYCLING if moving else Regime.ACTIVE
    if not moving:
        if mean >= law.config.h_max * (1 - 1e-9):
            regime = Regime.CLAMPED_MAX
        elif mean <= law.config.h_min * (1 + 1e-9):
            regime = Regime.CLAMPED_MIN
    return _at(loop, mean, gap, regime)
