"""Where the loop shall rest and between which clamps: the static half of tuning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from controllers.clamps import Population, batch_exceedance, largest_window, window_for_batch
from controllers.models import LatencyModel, LengthLaw, LoopModel, UncertaintySet
from controllers.operating_point import equilibrium
from controllers.tuning.goals import TuningGoals

_CANDIDATES: Final = 48
_AS_GOOD: Final = 0.999
# Bandwidth within a thousandth of the best is as good, and a smaller window safer.
_LOWEST_REFERENCE: Final = 1.05
# An integrator that holds less than a twentieth above the floor mistakes noise for load.


@dataclass(frozen=True)
class OperatingChoice:
    """Static part of a configuration and its worst case.

    Attributes:
        law_params: fields of the law's configuration, without its gain.
        step_ms: largest decode step at rest over the set, ms.
        sigma: largest slowdown at rest over the set.
        tokens_per_second: smallest decode bandwidth at rest over the set.
        batch: smallest and largest batch at rest.
        exceedance: largest P(B > batch_max) with the window at H_max.
        slo_ms: the limit that ``step_ms`` was held to.
    """

    law_params: dict[str, Any]
    step_ms: float
    sigma: float
    tokens_per_second: float
    batch: tuple[float, float]
    exceedance: float
    slo_ms: float


class Infeasible(Exception):
    """No setting meets the goals; ``reason`` and ``wanted`` say which goal and what would."""

    def __init__(self, reason: str, wanted: str) -> None:
        super().__init__(f"{reason}. {wanted}.")
        self.reason, self.wanted = reason, wanted


def choose_operating_point(
    uncertainty: UncertaintySet, goals: TuningGoals, batch_max: int, prompt_tokens: float
) -> OperatingChoice:
    """Largest worst-case bandwidth whose step keeps the SLO in every model of the set.

    Raises:
        Infeasible: even the smallest window breaks the SLO in some model.
    """
    nominal = uncertainty.latencies[0]
    slo_ms = goals.slo_ms if goals.slo_ms is not None else goals.slo_sigma * nominal.l_min_ms
    cap = min(
        largest_window(law, batch_max, goals.exceed_probability, population)
        for law in uncertainty.lengths
        for population in Population
    )
    # Fluid and over the shortest remaining lengths: at H_min no model is above its knee, so
    # going lower would give up bandwidth and gain nothing.
    floor = min(m.b0 for m in uncertainty.latencies) * min(
        law.residual_mean for law in uncertainty.lengths
    )
    queue_ref = goals.queue_ref or float(max(1, round(2 * nominal.b0)))
    engines = [(m, law) for m in uncertainty.latencies for law in uncertainty.lengths]
    best: OperatingChoice | None = None
    lightest = math.inf
    for params in _candidates(goals, uncertainty, floor, cap, queue_ref, slo_ms):
        rests = [
            equilibrium(
                configured_loop(
                    goals.law,
                    params,
                    model,
                    law,
                    baseline_ms=nominal.l_min_ms,
                    prompt_tokens=prompt_tokens,
                )
            )
            for model, law in engines
        ]
        step = max(r.step_ms for r in rests)
        lightest = min(lightest, step)
        if step > slo_ms:
            continue
        bandwidth = min(r.tokens_per_second for r in rests)
        if best is None or bandwidth * _AS_GOOD > best.tokens_per_second:
            best = OperatingChoice(
                law_params=params,
                step_ms=step,
                sigma=max(r.sigma for r in rests),
                tokens_per_second=bandwidth,
                batch=(min(r.batch for r in rests), max(r.batch for r in rests)),
                exceedance=max(
                    batch_exceedance(law, params["h_max_tokens"], batch_max, population)
                    for law in uncertainty.lengths
                    for population in Population
                ),
                slo_ms=slo_ms,
            )
    if best is None:
        raise Infeasible(
            f"no window keeps the decode step within {slo_ms:.1f} ms in every plausible model; the "
            f"lightest rests at {lightest:.1f} ms",
            "Relax the SLO, or record longer so that the models lie closer together",
        )
    return best


def _candidates(
    goals: TuningGoals,
    uncertainty: UncertaintySet,
    floor: float,
    cap: float,
    queue_ref: float,
    slo_ms: float,
) -> list[dict[str, Any]]:
    """Static settings from the most cautious to the most daring."""
    if goals.law == "paper":
        smallest = min(max(1.0, floor / 8), cap)
        found = []
        for h0 in np.geomspace(smallest, max(cap, smallest * 1.01), _CANDIDATES):
            h0 = float(math.floor(h0)) or 1.0
            high = float(math.floor(min(2 * h0, cap)))
            found.append(
                {
                    "h0_tokens": h0,
                    "h_min_tokens": max(1.0, float(math.floor(min(floor, h0, high)))),
                    "h_max_tokens": max(high, 1.0),
                    "queue_ref": queue_ref,
                }
            )
        return found
    start = min(
        window_for_batch(law, m.b0) for law in uncertainty.lengths for m in uncertainty.latencies
    )
    high = max(1.0, float(math.floor(cap)))
    limits = {
        "h0_tokens": max(1.0, float(math.floor(min(start, high)))),
        "h_min_tokens": max(1.0, float(math.floor(min(floor, high, start)))),
        "h_max_tokens": high,
    }
    if goals.sigma_ref is not None:
        return [limits | {"sigma_ref": goals.sigma_ref}]
    # sigma_ref refers to the configured l_min; the slowest plausible engine decides.
    top = slo_ms / uncertainty.latencies[0].l_min_ms
    if top < _LOWEST_REFERENCE:
        return []
    references = np.linspace(_LOWEST_REFERENCE, top, _CANDIDATES)
    return [limits | {"sigma_ref": round(float(s), 4)} for s in references if s > 1]


def configured_loop(
    law: str,
    params: Mapping[str, Any],
    latency: LatencyModel,
    lengths: LengthLaw,
    *,
    baseline_ms: float,
    **fields: Any,
) -> LoopModel:
    """The loop that a server with the configured baseline makes of one plausible engine.

    The server divides by its configured l_min, the engine has its own. That is the same as
    an exact baseline with H0 (paper) or sigma_ref (regulated) off by their ratio.
    """
    ratio = baseline_ms / latency.l_min_ms
    seen = dict(params)
    if law == "paper":
        seen["h0_tokens"] = seen["h0_tokens"] * ratio
        seen["h_min_tokens"] = min(seen["h_min_tokens"], seen["h_max_tokens"])
    elif "sigma_ref" in seen:
        seen["sigma_ref"] = max(seen["sigma_ref"] * ratio, 1 + 1e-6)
    return LoopModel(latency=latency, lengths=lengths, law=law, law_params=seen, **fields)
