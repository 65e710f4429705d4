"""Which part of the waiting prompts the prefix cache holds: those tokens are not computed.

Asked once when a request arrives, and again while it waits: a few requests in each pass, in
turn, and only where the tree has changed. What the numbers are for are sums of prompt tokens that
wait, which may be a little old. When SGLang takes a request, its own number takes their place.
"""

from __future__ import annotations

import logging
from typing import Any

from patches.arrivals import info_of
from patches.sglang_0_5 import prefix_view
from twp_sglang.scheduling.policies import Policy

logger = logging.getLogger(__name__)

AGAIN_PER_PASS = 2
"""Requests asked about again in one pass: ten to fifteen microseconds each on a busy machine,
where a decision with many waiting takes 450 and is to stay below 500."""

AGAIN_NEWEST = 256
"""Only the last in SGLang's queue are asked about again. Who stands before that many has mostly
missed its objective: when it is served does not depend on the sums any more, and going through
everybody would take minutes and help nobody."""

AGAIN_TOKENS = 32_768
"""Prompt tokens from which no further one is asked about in a pass: comparing a long prompt with
its like in the cache takes a nanosecond or two per token."""


class PrefixHits:
    """Asks the prefix cache of ``scheduler``. Where that fails nothing counts as held, which is
    said once and does not end the steering."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._question: prefix_view.Question | None = None
        self._chosen = False
        self._failed = False
        self._size = 0
        self._place = 0
        # Places of the queue to go through until all were asked since the tree last changed.
        self._left = 0

    def of(self, req: Any) -> int:
        """Tokens of the prompt of ``req`` that need not be computed if it is taken now; for a
        retracted request those it had produced count as prompt."""
        try:
            if not self._chosen:
                self._chosen = True
                self._question = prefix_view.question_for(self._scheduler.tree_cache)
            return 0 if self._question is None else self._question(req)
        except Exception as error:
            self._say(error)
            return 0

    def renew(self, waiting_queue: list[Any], policy: Policy) -> None:
        """Ask again about the next few who wait, and tell ``policy`` what has changed."""
        span = min(len(waiting_queue), AGAIN_NEWEST)
        if self._question is None or not self._is_due(span):
            return
        tokens = 0
        for _ in range(min(self._left, AGAIN_PER_PASS)):
            if self._place >= span:
                self._place = 0
            req = waiting_queue[self._place - span]
            self._place += 1
            self._left -= 1
            info = info_of(req)
            if info is None:
                continue
            held = self.of(req)
            if held != info.cached_tokens:
                policy.recount(info, held)
            tokens += info.prompt_tokens
            if tokens >= AGAIN_TOKENS:
                break

    def _is_due(self, span: int) -> bool:
        try:
            size = prefix_view.tokens_held(self._scheduler.tree_cache)
        except Exception as error:
            self._say(error)
            return False
        if size != self._size:
            self._size, self._left = size, span
        self._left = min(self._left, span)
        return self._left > 0

    def _say(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            logger.warning(
                "TWP could not ask SGLang's prefix cache about a prompt and counts such prompts "
                "whole (%s: %s)",
                type(error).__name__,
                error,
            )
