"""Which configuration fields a policy never reads, so that nobody turns a knob in vain."""

from __future__ import annotations

from collections.abc import Iterable

from twp_sglang.config import PolicyName

WINDOW_FIELDS = frozenset(
    {
        "law",
        "gamma",
        "beta",
        "h0_tokens",
        "h_min_tokens",
        "h_max_tokens",
        "queue_ref",
        "sigma_ref",
        "k",
        "t_max_steps",
        "forced_burst_tokens",
        "forced_per_step",
        "forced_tokens_per_step",
        "kv_headroom_min",
        "kv_headroom_max",
        "kv_horizon_steps",
        "kv_relax",
        "w_starvation",
        "w_balance",
        "w_fairness",
    }
)
"""The paper's window, gate and ranking: read by twp and by observe, which shadows it."""

OBJECTIVE_FIELDS = frozenset(
    {
        "itl_slo_ms",
        "itl_auto_multiple",
        "itl_delivery_ms",
        "client_fairness",
        "kv_margin",
        "kv_quantile",
        "late_after_ms",
        "late_share",
    }
)
"""How policy slo holds its objectives."""


def unread(policy: PolicyName, given: Iterable[str]) -> list[str]:
    """Those of ``given`` that ``policy`` does not read, in alphabetical order."""
    fields = frozenset(given)
    if policy == "slo":
        return sorted(fields & WINDOW_FIELDS)
    if policy in ("twp", "observe"):
        return sorted(fields & OBJECTIVE_FIELDS)
    return sorted(fields & (WINDOW_FIELDS | OBJECTIVE_FIELDS))
