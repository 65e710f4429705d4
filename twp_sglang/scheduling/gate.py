"""The admission gate (section IV-B3 ii): two guards, head of line, no skipping.

A request is let in when K + r <= H and its prompt leaves more than delta_kv of the KV
cache free. The first that fails closes the gate for this pass: passing over it would
bypass the order that protects those who wait. Exempt from both guards are the head of an
idle engine, requests that were running before, and those past T_max (at most N per pass
where N is set, and within a budget of prompt tokens); nobody is exempt from what the engine
can physically hold, which the engine itself checks.
"""

from __future__ import annotations

from collections.abc import Iterable

from twp_sglang.scheduling.decision import ClosedReason, Decision, Grant, GrantReason
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import PassView


class Gate:
    """Applies the guards to candidates in their order."""

    def __init__(self, t_max_steps: int, forced_per_step: int | None) -> None:
        self._t_max = t_max_steps
        self._forced_limit = forced_per_step

    def is_starved(self, request: RequestInfo, pass_index: int) -> bool:
        """Whether ``request`` has waited T_max passes."""
        return pass_index - request.arrival_pass >= self._t_max

    def decide(
        self,
        candidates: Iterable[RequestInfo],
        view: PassView,
        window_tokens: float,
        kv_threshold: float,
        forced_tokens: float | None = None,
    ) -> Decision:
        """Grants for the leading candidates, and why the next one must wait.

        ``forced_tokens`` is what may be forced in this pass, in prompt tokens; None is no bound.
        """
        grants: list[Grant] = []
        closed: ClosedReason = ""
        load = view.load_tokens
        batch = view.batch
        free = view.kv_free_tokens
        capacity = max(1, view.kv_capacity_tokens)
        forced = 0
        for request in candidates:
            free_after = (free - request.prompt_tokens) / capacity
            fits_window = load + request.expected_tokens <= window_tokens
            fits_memory = free_after > kv_threshold
            reason: GrantReason
            if request.retracted:
                reason = "retracted"
            elif fits_window and fits_memory:
                reason = "window"
            elif batch == 0:
                reason = "idle"
            elif self.is_starved(request, view.pass_index):
                used_up = forced_tokens is not None and forced_tokens <= 0
                if used_up or (self._forced_limit is not None and forced >= self._forced_limit):
                    closed = "forced-limit"
                    break
                forced += 1
                if forced_tokens is not None:
                    forced_tokens -= request.prompt_tokens
                reason = "forced"
            else:
                closed = "kv" if fits_window else "window"
                break
            grants.append(
                Grant(
                    request,
                    reason,
                    load,
                    free_after,
                    kv_threshold,
                    window_tokens,
                    view.pass_index - request.arrival_pass,
                )
            )
            load += request.expected_tokens
            batch += 1
            free -= request.prompt_tokens
        return Decision(tuple(grants), closed)
