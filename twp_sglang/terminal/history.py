"""What was seen of one server, replica by replica."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from twp_sglang.terminal.client import Look

KEPT_LOOKS = 240
"""More than a wide terminal has columns."""

State = dict[str, Any]


class History:
    """The newest looks, and values of them over time."""

    def __init__(self) -> None:
        self.model = ""
        self._states: dict[int, deque[State]] = {}

    def add(self, seen: Look) -> None:
        """Take one look."""
        self.model = seen.model
        for state in seen.replicas:
            kept = self._states.setdefault(state["replica"], deque(maxlen=KEPT_LOOKS))
            kept.append(state)

    @property
    def replicas(self) -> list[int]:
        """Numbers of the replicas seen."""
        return sorted(self._states)

    def newest(self, replica: int) -> State:
        """The last state of a replica."""
        return self._states[replica][-1]

    def values(self, replica: int, value: Callable[[State], float | None]) -> list[float | None]:
        """``value`` of every state of a replica, oldest first."""
        return [value(state) for state in self._states[replica]]


def step_ms(state: State) -> float | None:
    """Time of a step now, ms; after a fallback nobody measures, and the last one is history."""
    steps = state.get("steps") or {}
    value: float | None = steps.get("step_ms")
    if state.get("fallback_reason"):
        return None
    return state.get("itl_ms") if value is None else value


def limit_ms(state: State) -> float | None:
    """Objective or target of the inter-token latency, ms; None where none is stated."""
    objective: float | None = state.get("itl_slo_ms")
    return state.get("itl_target_ms") if objective is None else objective


def out_of_reach(state: State) -> str:
    """What to add to policy slo's ITL objective where no step can keep it; empty elsewhere."""
    return "" if state.get("itl_slo_reachable", True) else ", out of reach"


def window_tokens(state: State) -> float | None:
    """The window that admissions are held to; None where the policy has none. Policy slo
    reports one and asks its model instead."""
    value: float | None = state.get("window_tokens")
    return None if state.get("policy") == "slo" else value


def kv_used(state: State) -> float | None:
    """Share of the KV cache in use."""
    free: float | None = state.get("kv_free")
    return None if free is None else 1.0 - free


def mode(state: State) -> str:
    """Who decides, in a few words."""
    if state.get("fallback_reason"):
        return "FELL BACK to stock scheduling"
    if state.get("deciding"):
        return f"{state['policy']} decides"
    return f"{state['policy']}: SGLang decides"
