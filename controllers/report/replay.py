"""The window law run again over the recorded slowdown and queue.

If the law, its settings and the trace belong together, the replay meets the recorded
window; where it does not, one of the three is not what it is thought to be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError

from controllers.identification.validation import fit_percent
from controllers.laws.base import LawSample
from controllers.laws.registry import LAWS, make_law
from controllers.settings import one_line
from controllers.trace_reader import FloatArray, StepTrace


@dataclass(frozen=True)
class WindowReplay:
    """A replay: ``predicted_tokens`` (n,) with NaN before the first recorded window."""

    law: str
    predicted_tokens: FloatArray
    fit_percent: float


def law_settings(config: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Law and its fields from the configuration in a trace's header, None without a law."""
    law = config.get("law", "paper")
    if not isinstance(law, str) or law not in LAWS or config.get("h0_tokens") is None:
        return None
    taken = LAWS[law].config.model_fields
    return law, {k: v for k, v in config.items() if k in taken and v is not None}


def replay_window(trace: StepTrace) -> tuple[WindowReplay | None, str]:
    """The replay, and why there is none where there is none.

    H of a step comes from that step's recorded slowdown and the queue that the step before
    left; steps whose filter did not move brought no sample, and the law held.
    """
    recorded = trace["window_tokens"]
    usable = np.isfinite(recorded)
    if usable.sum() < 2:
        return None, "The trace records no window, so the law cannot be replayed."
    if not np.isfinite(trace["sigma"]).any():
        return None, "The trace records no sigma, so the law cannot be replayed."
    named = law_settings(trace.header.config)
    if named is None:
        return None, (
            "The trace's header does not say which law ran with which h0_tokens, so the window "
            "is shown without a replay. Start the server with h0_tokens set to get one."
        )
    name, params = named
    try:
        law = make_law(name, params)
    except ValidationError as error:
        return None, f"The header's law settings cannot be used: {one_line(error)}."
    start = int(np.flatnonzero(usable)[0])
    window = float(recorded[start])
    try:
        state = law.initial()._replace(window_tokens=window)
    except (AttributeError, ValueError):
        return None, f"Law {name} keeps more state than a trace records; it is not replayed."
    predicted = np.full(len(trace), np.nan)
    predicted[start] = window
    sigma, queue = trace["sigma"], np.nan_to_num(trace["queue"])
    itl, load, batch = trace["itl_ms"], trace["load_tokens"], trace["batch"]
    duration, kv, prefill = trace["duration_ms"], trace["kv_tokens"], trace["prefill_tokens"]
    for t in range(start + 1, len(trace)):
        if np.isfinite(sigma[t]) and sigma[t] != sigma[t - 1]:
            sample = LawSample(
                sigma=float(sigma[t]),
                itl_ms=float(itl[t]),
                step_ms=float(duration[t - 1]),
                queue=int(queue[t - 1]),
                load_tokens=int(np.nan_to_num(load[t - 1])),
                batch=int(batch[t - 1]),
                kv_tokens=int(kv[t - 1]),
                prefill_tokens=int(prefill[t - 1]),
            )
            window, state = law.step(sample, state)
        predicted[t] = window
    both = usable & np.isfinite(predicted)
    return WindowReplay(name, predicted, fit_percent(recorded[both], predicted[both])), ""
