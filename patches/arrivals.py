"""From a request of SGLang to what the policy knows of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patches.sglang_0_5 import engine_view
from twp_sglang.scheduling.lengths import LengthSource
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.request_terms import terms_of

INFO_ATTRIBUTE = "_twp_request"
"""Where a request of SGLang carries what TWP knows of it."""

PRIORITY_MOST = 2**62
"""Priorities beyond this, either way, are all the same."""


class Arrivals:
    """Numbers requests in the order in which they join the queue, equal on all ranks.

    Args:
        scheduler: SGLang's.
        lengths: expected output lengths.
        held: tokens of a request's prompt that the prefix cache holds.
    """

    def __init__(self, scheduler: Any, lengths: LengthSource, held: Callable[[Any], int]) -> None:
        self._scheduler = scheduler
        self._lengths = lengths
        self._held = held
        self._next_seq = 0

    def note(self, req: Any, pass_index: int, now_ms: float, *, retracted: bool) -> RequestInfo:
        """``req`` joined in pass ``pass_index`` at rank 0's time ``now_ms``; from here on it
        carries the answer."""
        prompt, max_new, produced = engine_view.request_numbers(req)
        terms = terms_of(engine_view.custom_params(req))
        before = info_of(req)
        retractions = 0 if before is None else before.retractions
        charged = 0 if before is None else before.charged_tokens
        info = RequestInfo(
            req.rid,
            self._next_seq,
            pass_index,
            prompt + produced,
            self._lengths.remaining(prompt, max_new, produced),
            priority=self._priority(req),
            retracted=retracted,
            handle=req,
            arrival_ms=now_ms,
            client=terms.client,
            itl_slo_ms=terms.itl_slo_ms,
            ttft_slo_ms=terms.ttft_slo_ms,
            max_new_tokens=max_new,
            produced_tokens=produced,
            retractions=retractions + retracted,
            charged_tokens=charged,
            cached_tokens=self._held(req),
            preemptions=0 if before is None else before.preemptions,
        )
        self._next_seq += 1
        setattr(req, INFO_ATTRIBUTE, info)
        return info

    def _priority(self, req: Any) -> int:
        value = req.priority
        if not self._scheduler.enable_priority_scheduling:
            return 0
        if value is None:
            return -PRIORITY_MOST
        low_first = self._scheduler.schedule_low_priority_values_first
        larger_first = -int(value) if low_first else int(value)
        # SGLang gives requests without a priority the last integer there is, once they have
        # joined; arrays of priorities must be able to hold its negative.
        return min(max(larger_first, -PRIORITY_MOST), PRIORITY_MOST)


def info_of(req: Any) -> RequestInfo | None:
    """What TWP knows of ``req``; None where it did not see it arrive."""
    info: RequestInfo | None = getattr(req, INFO_ATTRIBUTE, None)
    return info


def arrival_of(req: Any) -> int:
    """Arrival number of a request; -1 where TWP does not know it (yet)."""
    info = info_of(req)
    return -1 if info is None else info.seq
