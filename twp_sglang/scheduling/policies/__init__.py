"""Admission policies behind one interface, by the name that configuration uses."""

from __future__ import annotations

from collections.abc import Callable

from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.policies.base import Policy
from twp_sglang.scheduling.policies.dynamic_batch import DynamicBatch
from twp_sglang.scheduling.policies.fcfs import Fcfs
from twp_sglang.scheduling.policies.observe import Observe
from twp_sglang.scheduling.policies.priority import ShortestPromptFirst
from twp_sglang.scheduling.policies.slo import Slo
from twp_sglang.scheduling.policies.twp import Twp

_POLICIES: dict[str, Callable[[TwpConfig], Policy]] = {
    "fcfs": lambda config: Fcfs(),
    "priority": lambda config: ShortestPromptFirst(),
    "dynamic-batch": DynamicBatch,
    "twp": Twp,
    "observe": Observe,
    "slo": Slo,
}


def build_policy(config: TwpConfig) -> Policy:
    """The policy that ``config`` names.

    Raises:
        ValueError: for ``off``, which is the absence of a policy.
    """
    if config.policy not in _POLICIES:
        raise ValueError(f"policy = {config.policy!r} decides nothing and cannot be built")
    return _POLICIES[config.policy](config)


__all__ = ["Policy", "build_policy"]
