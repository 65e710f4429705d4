"""Changes of a configuration while serving: which fields may change, and from what to what.

A change is validated as a whole configuration is at launch, with the same messages. What a
field means may still depend on what was set up at start; such a field is refused with the
reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twp_sglang.config import TwpConfig
from twp_sglang.config_values import OptionsError, build, one_spelling
from twp_sglang.one_line import shown

SOURCE = "PATCH"
"""Where a changed value came from, in messages."""

FIXED: Mapping[str, str] = {
    "policy": "who decides is settled at start, with the engine's flags for it, the checks of "
    "other flags and the clock that a policy reads; start the server with --twp-policy",
    "warmup_steps": "it counts the first steps after the start, which are over",
    "length_source": "the load of running requests is counted by it from the start; start the "
    "server with --twp-length-source",
    "client_fairness": "who was served how much is counted from the start; start the server with "
    "--twp-client-fairness",
    "evidence": "it says where the values of a file come from and decides nothing",
}
"""Fields that cannot change while serving, each with the reason."""


def changed(config: TwpConfig, changes: Mapping[str, Any]) -> TwpConfig:
    """``config`` with ``changes``.

    Raises:
        OptionsError: no change was given, a field is unknown or fixed, or the outcome is not
            a usable configuration; one line per problem.
    """
    if not changes:
        raise OptionsError('no field given: send a JSON object such as {"gamma": 0.2}')
    present = config.model_dump()
    changes = one_spelling(changes, SOURCE)
    fixed = [
        f"{name} = {shown(changes[name])} ({SOURCE}): cannot change while serving; {FIXED[name]}"
        for name in changes
        if name in FIXED and changes[name] != present[name]
    ]
    if fixed:
        raise OptionsError("; ".join(fixed))
    return build({**present, **changes}, dict.fromkeys(changes, SOURCE))


def difference(old: TwpConfig, new: TwpConfig) -> dict[str, tuple[Any, Any]]:
    """Fields whose value differs, each with the value before and after."""
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    return {name: (before[name], after[name]) for name in after if before[name] != after[name]}
