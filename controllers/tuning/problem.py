"""One tuning problem: what could be true, what must hold, and how a setting fares."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from pydantic import Field

from controllers.clamps import Population, batch_exceedance
from controllers.laws.base import FrozenModel
from controllers.margins import margins_of
from controllers.models import LoopModel, LoopTiming, UncertaintySet
from controllers.operating_point import equilibrium
from controllers.stability_map import GAIN_FIELD
from controllers.tuning.goals import TuningGoals
from controllers.tuning.loop_set import GainVerdict, LoopSet, operating_points
from controllers.tuning.operating_choice import configured_loop

_STATIC = ("h0_tokens", "h_min_tokens", "h_max_tokens", "queue_ref", "sigma_ref")


class WorstCase(FrozenModel):
    """The worst over every plausible loop; None stands for infinite."""

    stable: bool
    disk_margin_alpha: float
    gain_margin: float | None
    phase_margin_deg: float | None
    bandwidth_rad_per_step: float = Field(description="closed-loop bandwidth, radians per step")
    window_jitter: float | None = Field(
        description="standard deviation of H over H from step noise; None when unstable"
    )
    sigma: float = Field(description="largest slowdown at rest")
    step_ms: float = Field(description="longest decode step at rest, ms")
    batch: float = Field(description="largest batch at rest")
    batch_exceedance: float = Field(description="largest P(B > batch_max) at H_max")
    tokens_per_second: float = Field(description="smallest decode bandwidth at rest")
    loops: int = Field(description="models x length laws x delays looked at")


class TuningProblem:
    """Uncertainty, goals and the numbers of the trace that assessing a setting needs.

    Args:
        uncertainty: what could be true; the first latency and length law are the estimate.
        goals: what must hold.
        batch_max: batch not to be exceeded.
        noise: standard deviation of a step's time over the step's time.
        prompt_tokens: mean prompt length.
    """

    def __init__(
        self,
        uncertainty: UncertaintySet,
        goals: TuningGoals,
        *,
        batch_max: int,
        noise: float,
        prompt_tokens: float,
    ) -> None:
        self.uncertainty = uncertainty
        self.goals = goals
        self.batch_max = batch_max
        self.noise = noise
        self.prompt_tokens = prompt_tokens
        self.baseline_ms = uncertainty.latencies[0].l_min_ms
        self.gain_name = GAIN_FIELD[goals.law]
        self.slo_ms = goals.slo_ms or goals.slo_sigma * self.baseline_ms
        self._loop_set = lru_cache(maxsize=8)(self._build_loop_set)

    def loops(self, configuration: Mapping[str, Any]) -> Iterator[LoopModel]:
        """Every plausible loop around ``configuration`` (flat keys)."""
        params = {key: configuration[key] for key in _STATIC if key in configuration}
        params[self.gain_name] = configuration[self.gain_name]
        unsure = self.uncertainty
        for latency, lengths, delay in itertools.product(
            unsure.latencies, unsure.lengths, unsure.delays_steps
        ):
            yield configured_loop(
                self.goals.law,
                params,
                latency,
                lengths,
                baseline_ms=self.baseline_ms,
                timing=LoopTiming(delay_steps=delay),
                beta=configuration["beta"],
                prompt_tokens=self.prompt_tokens,
            )

    def _build_loop_set(self, static: tuple[tuple[str, float], ...]) -> LoopSet:
        # The responses are divided by the law's factor at once: any gains will do.
        reference = dict(static) | {self.gain_name: 0.1, "beta": 0.3}
        return LoopSet(list(self.loops(reference)))

    def verdict(self, configuration: Mapping[str, Any], goal: float = 0.0) -> GainVerdict:
        """Worst case of the linear loops on coarse grids; milliseconds once built."""
        static = tuple((key, configuration[key]) for key in _STATIC if key in configuration)
        return self._loop_set(static).verdict(
            configuration[self.gain_name], configuration["beta"], goal
        )

    def assess(self, configuration: Mapping[str, Any], exact: int = 12) -> WorstCase:
        """Worst case of ``configuration``, the ``exact`` most critical loops without shortcuts."""
        found = self.verdict(configuration)
        loops = list(self.loops(configuration))
        rests = [equilibrium(loop) for loop in loops]
        linears = [linear for loop in loops for linear in operating_points(loop)]
        linears.sort(key=lambda linear: -linear.point.loop_gain)
        # The steepest loops, and every combination of lengths and delay at the estimate.
        chosen = linears[:exact]
        chosen += [
            linear
            for linear in linears[exact:]
            if linear.loop.latency == self.uncertainty.latencies[0]
        ]
        exactly = [margins_of(linear) for linear in chosen]
        gains = [m.gain_margin for m in exactly if m.gain_margin is not None]
        phases = [m.phase_margin_deg for m in exactly if m.phase_margin_deg is not None]
        return WorstCase(
            stable=found.stable and all(m.stable for m in exactly),
            disk_margin_alpha=min(found.disk_margin, *(m.disk_margin_alpha for m in exactly)),
            gain_margin=min(gains) if gains else None,
            phase_margin_deg=min(phases) if phases else None,
            bandwidth_rad_per_step=found.bandwidth,
            window_jitter=found.jitter * self.noise if found.stable else None,
            sigma=max(rest.sigma for rest in rests),
            step_ms=max(rest.step_ms for rest in rests),
            batch=max(rest.batch for rest in rests),
            batch_exceedance=max(
                batch_exceedance(law, configuration["h_max_tokens"], self.batch_max, population)
                for law in self.uncertainty.lengths
                for population in Population
            ),
            tokens_per_second=min(rest.tokens_per_second for rest in rests),
            loops=len(loops),
        )

    def violations(self, worst: WorstCase) -> list[str]:
        """Goals that ``worst`` breaks, in words; empty when it keeps them all."""
        goals = self.goals
        broken = []
        if not worst.stable:
            broken.append("unstable in a plausible model")
        elif worst.disk_margin_alpha < goals.disk_margin:
            broken.append(f"disk margin {worst.disk_margin_alpha:.3f} < {goals.disk_margin:g}")
        if worst.step_ms > self.slo_ms * (1 + 1e-9):
            broken.append(f"step at rest {worst.step_ms:.1f} ms > {self.slo_ms:.1f} ms")
        if worst.batch_exceedance > goals.exceed_probability:
            broken.append(
                f"P(B > {self.batch_max}) = {worst.batch_exceedance:.3g} > "
                f"{goals.exceed_probability:g}"
            )
        if worst.window_jitter is None or worst.window_jitter > goals.window_jitter * (1 + 1e-9):
            shown = "unbounded" if worst.window_jitter is None else f"{worst.window_jitter:.3g}"
            broken.append(f"window jitter {shown} > {goals.window_jitter:g}")
        return broken
