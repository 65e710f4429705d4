"""From the configuration to a window law of ``controllers``."""

from __future__ import annotations

from controllers.laws.base import Law
from controllers.laws.registry import law_entry
from twp_sglang.config import TwpConfig

_PARAMETERS = ("gamma", "queue_ref", "sigma_ref", "k")


def build_law(config: TwpConfig, h0_tokens: float) -> Law:
    """The configured law with nominal window ``h0_tokens``.

    A clamp that is given and that an automatic H0 has left behind gives way to H0's own
    side: the window always lies between the clamps.

    Raises:
        ValueError: the law refuses a parameter.
    """
    low = config.h_min_tokens
    high = config.h_max_tokens
    if low is not None and high is None and low > 2 * h0_tokens:
        high = low
    if high is not None and low is None and high < h0_tokens / 4:
        low = high
    entry = law_entry(config.law)
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
