"""Who may join the waiting queue: asked once for every new request, before it does."""

from __future__ import annotations

from typing import Any

from patches.arrivals import Arrivals, info_of
from patches.sglang_0_5 import engine_view
from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.capacity import never_fits
from twp_sglang.scheduling.overload import Refusal, invalid, too_large
from twp_sglang.scheduling.policies import Policy
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.unusable_prompt import unusable

ASKED_ATTRIBUTE = "_twp_asked_tokens"
"""Where a request carries the output limit of its sender, before SGLang clips it."""


class Door:
    """Judges newcomers and keeps what was learned of the last one for the queue.

    Args:
        scheduler: SGLang's.
        policy: that decides.
        arrivals: numbers the requests, refused ones included, equally on all ranks.
        reads_tokens: whether the engine looks at token ids; an emulated one does not.
    """

    def __init__(
        self, scheduler: Any, policy: Policy, arrivals: Arrivals, *, reads_tokens: bool
    ) -> None:
        self._scheduler = scheduler
        self._reads_tokens = reads_tokens
        self._policy = policy
        self._arrivals = arrivals
        self._newcomer: RequestInfo | None = None

    def refusal(
        self, req: Any, config: TwpConfig, pass_index: int, now_ms: float
    ) -> Refusal | None:
        """Why ``req`` must not join; None lets it in. Who was in before is let in."""
        if not self._policy.enforces or info_of(req) is not None:
            return None
        refusal = self._invalid(req)
        if refusal is None and config.oversized == "refuse":
            refusal = self._oversized(req)
        if refusal is not None:
            self._policy.tally.refused(refusal.reason)
            return refusal
        info = self._arrivals.note(req, pass_index, now_ms, retracted=False)
        owed = engine_view.owed_prompt_tokens(self._scheduler.chunked_req)
        refusal = self._policy.refusal(info, owed)
        self._newcomer = info if refusal is None else None
        return refusal

    def let_in(self, req: Any) -> RequestInfo | None:
        """What was noted of ``req`` when it was judged, once."""
        info, self._newcomer = self._newcomer, None
        return info if info is not None and info.handle is req else None

    def _invalid(self, req: Any) -> Refusal | None:
        ids = engine_view.prompt_ids(req)
        if ids is None:
            return None
        vocabulary = engine_view.vocabulary(self._scheduler) if self._reads_tokens else None
        reason = unusable(ids, vocabulary)
        return None if reason is None else invalid(reason)

    def _oversized(self, req: Any) -> Refusal | None:
        asked = getattr(req, ASKED_ATTRIBUTE, None)
        if asked is None:
            return None
        reason = never_fits(
            len(req.origin_input_ids),
            int(asked),
            engine_view.kv_capacity_tokens(self._scheduler),
            int(self._scheduler.page_size),
        )
        return None if reason is None else too_large(reason)
