"""What a policy answers: whom to admit in this pass, in order, and why nobody else."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from twp_sglang.scheduling.request import RequestInfo

GrantReason = Literal["window", "idle", "retracted", "forced", "policy"]
ClosedReason = Literal["", "window", "kv", "forced-limit", "target", "limit"]


class Grant(NamedTuple):
    """One admission with what the gate saw, so that it can be audited afterwards."""

    request: RequestInfo
    reason: GrantReason
    load_before_tokens: int
    kv_free_after: float
    """Share of the pool that stays free once this prompt is in."""
    kv_threshold: float
    window_tokens: float | None
    waited_passes: int


class Decision(NamedTuple):
    """Requests to admit, first to last. The engine may take fewer, never others."""

    grants: tuple[Grant, ...]
    closed: ClosedReason
    """Why the next request must wait; empty when nobody is left waiting."""
    preempts: bool = False
    """The only grant takes the place of a running request of lower priority, or of none."""

    @property
    def handles(self) -> list[Any]:
        """The engine's own objects of those granted, first to last."""
        return [grant.request.handle for grant in self.grants]


NOBODY_WAITS = Decision((), "")
