"""From the configuration to a window law of ``controllers``."""

from __future__ import annotations

from typing import Any

from controllers.laws.base import Law
from controllers.laws.registry import law_entry
from twp_sglang.config import TwpConfig

_PARAMETERS = ("gamma", "queue_ref", "sigma_ref", "k")


def build_law(config: TwpConfig, h0_tokens: float) -> Law:
    """The configured law with nominal window ``h0_tokens``.

    A clamp that is given stays. Where an automatic H0 has left it behind, the other clamp,
    which follows H0, gives way: the window always lies between the two.

    Raises:
        ValueError: the law refuses a parameter.
    """
    entry = law_entry(config.law)
    low, high = config.h_min_tokens, config.h_max_tokens
    usual_low, usual_high = _clamps(entry.config.model_validate({"h0_tokens": h0_tokens}))
    if low is not None and high is None:
        high = max(low, usual_high)
    elif high is not None and low is None:
        low = min(high, usual_low)
    values = {
        "h0_tokens": h0_tokens,
        "h_min_tokens": low,
        "h_max_tokens": high,
        **{name: getattr(config, name) for name in _PARAMETERS},
    }
    taken = entry.config.model_fields
    return entry.build(
        entry.config.model_validate({key: value for key, value in values.items() if key in taken})
    )


def clamps_of(law: Law) -> tuple[float, float]:
    """(H_min, H_max) in force in a law made by :func:`build_law`, tokens."""
    return _clamps(law.config)  # type: ignore[attr-defined]  # every registered law keeps it


def _clamps(law_config: Any) -> tuple[float, float]:
    return law_config.h_min, law_config.h_max
