"""What is refused on arrival, why, and when to come again.

A queue without an end serves nobody in time: past some length every request in it waits
longer than its sender does, and the machine works for people who have left. So the queue has
bounds, and where a limit on the first token is set, a request whose first token would come
later is told so at once.

    predicted TTFT = (prompt tokens before it + its own) / prompt rate
    prompt rate    = prompt tokens per ms of steps that made somebody wait

Prompt tokens that the prefix cache holds are not among them: nobody waits for those.

Nobody is refused while nobody waits: a rate learned in a bad moment could otherwise shut the
door of an idle engine for good. Everything here follows from arrivals, passes and rank 0's
samples, so that tensor-parallel ranks refuse the same requests.
"""

from __future__ import annotations

from math import ceil, inf
from typing import Literal, NamedTuple

from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.explanation import prompt_to_serve
from twp_sglang.scheduling.prefill_rate import PrefillRate
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import StepSample
from twp_sglang.scheduling.waiting import WaitingQueue

RefusalReason = Literal["queue-requests", "queue-tokens", "ttft", "never-fits", "invalid"]

TOO_MANY_REQUESTS = 429
BAD_REQUEST = 400

RETRY_MIN_S = 1
"""Retry-After is in whole seconds, and 0 would be an invitation."""

RETRY_MAX_S = 60
"""Longer than that ahead, the load will be another; and few clients wait so long."""

RETRY_UNKNOWN_S = 5
"""While no rate is known: some steps of any engine, and below usual time limits."""

DRAIN_SHARE = 0.5
"""A full queue asks to come again when half of it is served: at the first free place
everybody would come at once and find it taken."""

IN_TIME_SHARE = 0.75
"""Part of its objective by which a newcomer must be served to pass those who are late already.
At the whole of it, each newcomer that is a little later than predicted moves somebody else to
the late line, which grows without end."""


class Refusal(NamedTuple):
    """Why a request is turned away."""

    reason: RefusalReason
    message: str
    """For the sender: what is the matter, in numbers."""
    status: int
    """HTTP status."""
    retry_after_s: int | None
    """Whole seconds after which to try again; None where trying again cannot help."""


def too_large(message: str) -> Refusal:
    """A request that no waiting helps."""
    return Refusal("never-fits", f"The request {message}.", BAD_REQUEST, None)


def invalid(message: str) -> Refusal:
    """A request that no engine can compute."""
    return Refusal("invalid", f"The request {message}.", BAD_REQUEST, None)


class Overload:
    """Bounds of the queue, and the measured drain that makes answers of them."""

    def __init__(self, config: TwpConfig) -> None:
        self._rate = PrefillRate()
        self._busy_ms = 0.0
        self._turn_ms = 0.0
        self._waited_pass = -1
        self.reconfigure(config)

    def reconfigure(self, config: TwpConfig) -> None:
        """Other bounds; what was measured stays."""
        self.max_requests = config.queue_max_requests
        self.max_prompt_tokens = config.queue_max_prompt_tokens
        self.ttft_limit_ms = config.refuse_ttft_ms

    # ---------------------------------------------------------------- measurement

    def admitted(self, request: RequestInfo, waited_passes: int) -> None:
        """``request`` was admitted; the step of that pass made somebody wait if it did."""
        if waited_passes > 0:
            self._waited_pass = max(self._waited_pass, request.arrival_pass + waited_passes)

    def observe(self, sample: StepSample, queue: WaitingQueue) -> None:
        """Take one measured step; ``queue`` as it stands when the sample arrives."""
        duration = sample.duration_ms
        if duration is None or not 0.0 < duration < inf:
            return
        self._busy_ms += duration
        if not len(queue):
            # Who was told to come later finds an open door: no turns are kept.
            self._turn_ms = 0.0
        oldest = queue.oldest()
        left_waiting = oldest is not None and oldest.arrival_pass < sample.step
        # The step that took the last one who waited counts too; without it a short queue
        # would look as if it never moved.
        if left_waiting or sample.step <= self._waited_pass:
            self._rate.observe(duration, sample.prefill_tokens)

    @property
    def prompt_tokens_per_ms(self) -> float | None:
        """The measured rate; None while nobody has waited long enough to measure one."""
        return self._rate.measured_tokens_per_ms()

    # ------------------------------------------------------------------ judgement

    def judge(
        self,
        request: RequestInfo,
        queue: WaitingQueue,
        tokens_ahead: int,
        in_time_tokens: int,
        objective_ms: float = 0.0,
    ) -> Refusal | None:
        """Whether ``request``, which has just arrived, may join ``queue``.

        Args:
            tokens_ahead: prompt tokens that are served before its own, as far as that can be
                said on arrival.
            in_time_tokens: those of them that are served before its own even where the policy
                prefers requests that can still be in time.
            objective_ms: TTFT that the request is to have; whoever can have it is let in.
        """
        waiting = len(queue)
        if not waiting or request.retracted:
            return None
        rate = self.prompt_tokens_per_ms
        if self.max_requests is not None and waiting >= self.max_requests:
            return self._full(
                "queue-requests",
                f"{waiting:,} requests wait already and no more may "
                f"(queue_max_requests = {self.max_requests:,})",
                request,
                queue,
                rate,
            )
        total = queue.prompt_tokens + request.prompt_tokens
        if self.max_prompt_tokens is not None and total > self.max_prompt_tokens:
            return self._full(
                "queue-tokens",
                f"{queue.prompt_tokens:,} prompt tokens wait already, with the "
                f"{request.prompt_tokens:,} of this request more than may "
                f"(queue_max_prompt_tokens = {self.max_prompt_tokens:,})",
                request,
                queue,
                rate,
            )
        if self.ttft_limit_ms is None or rate is None:
            return None
        limit = max(self.ttft_limit_ms, objective_ms)
        own = prompt_to_serve(request)
        predicted = (tokens_ahead + own) / rate
        in_time = (in_time_tokens + own) / rate
        if predicted <= limit or in_time <= IN_TIME_SHARE * objective_ms:
            return None
        return Refusal(
            "ttft",
            f"The server is overloaded: the first token would come in about "
            f"{predicted / 1e3:,.1f} s, and it queues for at most {limit / 1e3:g} s "
            f"(refuse_ttft_ms); {tokens_ahead:,} prompt tokens are before this request's "
            f"{own:,}, at {rate * 1e3:,.0f} per second.",
            TOO_MANY_REQUESTS,
            self._retry_after_s(predicted - limit, request, rate),
        )

    def _full(
        self,
        reason: RefusalReason,
        what: str,
        request: RequestInfo,
        queue: WaitingQueue,
        rate: float | None,
    ) -> Refusal:
        base = 0.0 if rate is None else DRAIN_SHARE * queue.tokens_to_serve / rate
        return Refusal(
            reason,
            f"The server is overloaded: {what}.",
            TOO_MANY_REQUESTS,
            self._retry_after_s(base, request, rate),
        )

    def _retry_after_s(self, base_ms: float, request: RequestInfo, rate: float | None) -> int:
        """When to come again: not before ``base_ms``, and each refused request after the one
        before it by the time that its prompt takes, so that they come back at the pace at
        which they can be served and not all at once."""
        if rate is None:
            return RETRY_UNKNOWN_S
        turn = max(self._turn_ms + prompt_to_serve(request) / rate, self._busy_ms + base_ms)
        # Nobody is told to come later than the maximum, so no turns are kept beyond it.
        self._turn_ms = min(turn, self._busy_ms + RETRY_MAX_S * 1e3)
        wait_s = ceil((self._turn_ms - self._busy_ms) / 1e3)
        return max(RETRY_MIN_S, min(wait_s, RETRY_MAX_S))
