"""One interface for every admission policy; the engine and the simulator drive it alike.

The life of a request, seen from here: :meth:`Policy.enqueue` when it joins the queue,
a :class:`Grant` in some :meth:`Policy.decide`, then :meth:`Policy.admitted` once the engine
took it, or :meth:`Policy.withdraw` when it left unserved. Between passes
:meth:`Policy.observe` brings the measured steps.

All inputs are equal on all tensor-parallel ranks: the samples are rank 0's, as is the time
where a policy reads it, waiting is counted in passes, and requests are named by their
arrival number. A policy keeps to them
and reads nothing else, so that ranks agree to the bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, NamedTuple

from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.decision import NOBODY_WAITS, Decision, Grant
from twp_sglang.scheduling.lengths import DeclaredLengths, LengthSource
from twp_sglang.scheduling.lengths_online import FinishedAnswer
from twp_sglang.scheduling.load import ActiveLoad
from twp_sglang.scheduling.overload import Overload, Refusal
from twp_sglang.scheduling.ranking import first_come
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import PassView, StepSample
from twp_sglang.scheduling.tally import Tally
from twp_sglang.scheduling.waiting import WaitingQueue

GRANTS_PER_PASS = 64
"""Most grants in one pass. One step's prompt budget rarely holds more, and the next pass
goes on where this one ended."""


class Signals(NamedTuple):
    """What a policy steers by."""

    window_tokens: float | None
    sigma: float | None
    itl_ms: float | None


class Policy(ABC):
    """Decides who is admitted. See the module's text for the calls and their order."""

    name: str = ""
    enforces = True
    """Whether the engine must follow; False for a policy that only watches."""
    sizes_chunks = False
    """Whether it chooses the prompt tokens of each step itself."""
    reads_time = False
    """Whether it looks at ``now_ms`` and ``arrival_ms``, which are then rank 0's clock."""
    reads_lengths = False
    """Whether it wants to be told how long answers became."""
    reads_rows = False
    """Whether it looks at the active requests one by one (``PassView.rows``)."""

    def __init__(self) -> None:
        self.queue = WaitingQueue()
        self.tally = Tally()
        self.length_source: LengthSource = DeclaredLengths()
        """Expected output lengths, for the token load and for every request that joins."""
        self.overload: Overload | None = None
        """Bounds of the queue; None where the policy refuses nobody."""
        self.forced_total = 0
        self.admitted_total = 0

    def refusal(self, request: RequestInfo, owed_prompt_tokens: int = 0) -> Refusal | None:
        """Why a request that has just arrived must not join the queue; None lets it in. Asked
        once for every new request, before :meth:`enqueue`.

        Args:
            owed_prompt_tokens: prompt tokens of admitted requests still to be computed.
        """
        if self.overload is None:
            return None
        ahead, in_time = self.prompt_tokens_before(request)
        refusal = self.overload.judge(
            request,
            self.queue,
            owed_prompt_tokens + ahead,
            owed_prompt_tokens + in_time,
            self.ttft_objective_ms(request),
        )
        if refusal is not None:
            self.tally.refused(refusal.reason)
        return refusal

    def ttft_objective_ms(self, request: RequestInfo) -> float:
        """The TTFT that ``request`` is to have, ms; 0 where nobody stated one."""
        return request.ttft_slo_ms or 0.0

    def prompt_tokens_before(self, request: RequestInfo) -> tuple[int, int]:
        """Waiting prompt tokens that are computed before a newcomer's: all that go before it in
        the policy's order, and those of them that do even where others can no longer be in
        time."""
        ahead = self.queue.tokens_to_serve_at(request.priority)
        return ahead, ahead

    def enqueue(self, request: RequestInfo) -> None:
        """A request joins the queue (again, when it was retracted)."""
        self.queue.add(request)

    def recount(self, request: RequestInfo, cached_tokens: int) -> None:
        """The engine's prefix cache now holds so many tokens of the prompt of ``request``."""
        self.queue.recount(request, cached_tokens)

    def withdraw(self, request: RequestInfo) -> None:
        """A request left the queue unserved."""
        self.queue.discard(request)

    def admitted(self, grant: Grant) -> None:
        """The engine took a granted request."""
        self.queue.discard(grant.request)
        self.admitted_total += 1
        self.forced_total += grant.reason == "forced"
        self.tally.admitted(grant.reason)
        if self.overload is not None:
            self.overload.admitted(grant.request, grant.waited_passes)

    def taken(self, request: RequestInfo, *, agreed: bool = False) -> None:
        """The engine took a request on its own (a policy that only watches); ``agreed``
        when this pass's decision would have granted it."""
        self.queue.discard(request)
        self.admitted_total += 1
        self.tally.admitted("retracted" if request.retracted else "engine")

    def observe(self, sample: StepSample) -> None:  # noqa: B027 - most policies measure nothing
        """One step was measured."""

    @abstractmethod
    def decide(self, view: PassView) -> Decision:
        """Whom to admit in this pass. Changes nothing: asked twice, it answers the same."""

    def waiting_order(self, view: PassView) -> list[RequestInfo]:
        """Everybody who waits, in the order in which :meth:`decide` would grant. Changes
        nothing; costs a ranking of the whole queue, so it is for questions and not for passes."""
        return [*self.queue.retracted, *first_come(self.queue, self.queue.fresh)]

    def reconfigure(self, config: TwpConfig) -> None:  # noqa: B027 - most have no settings
        """Take another configuration of the same policy while serving. What was measured and
        learned stays, as do the queue and the counts. With a fresh policy the outcome is that
        of building it with ``config``.

        Raises:
            ValueError: it cannot be used; nothing has changed.
        """

    def try_out(self, config: TwpConfig) -> None:  # noqa: B027 - most have no settings
        """Build all that :meth:`reconfigure` would build, and change nothing.

        Raises:
            ValueError: :meth:`reconfigure` would raise it.
        """

    def remark(self, request: RequestInfo) -> str:
        """What is special about a waiting request beside its place, in words; mostly nothing."""
        return ""

    def predicted_ms(self, sample: StepSample) -> float | None:
        """What the policy's model says that step takes, ms; None where it has no model."""
        return None

    def finished(self, answer: FinishedAnswer) -> None:  # noqa: B027 - most do not learn lengths
        """A request ended; called where :attr:`reads_lengths`."""

    def chunk_tokens(self, view: PassView) -> int | None:
        """Most prompt tokens in the step that this pass forms, at least 1; None leaves the
        engine's own setting. Changes nothing."""
        return None

    def end_pass(  # noqa: B027 - most policies do not look at memory
        self, kv_free_tokens: int, kv_capacity_tokens: int, load: ActiveLoad | None
    ) -> None:
        """The pass is over; memory as it stands once the batch is formed, and the load
        where the caller has it."""

    @property
    def kv_threshold(self) -> float | None:
        """Share of the KV cache that an admission must leave free; None where the policy
        asks for none."""
        return None

    def signals(self) -> Signals:
        """Window and latency now, for the trace; None where the policy has none."""
        return Signals(None, None, None)

    def snapshot(self) -> dict[str, Any]:
        """State for /server_info, traces and metrics; JSON types only."""
        return {
            "policy": self.name,
            "queue": len(self.queue),
            "admitted": self.admitted_total,
            "forced": self.forced_total,
            "window_tokens": None,
            "sigma": None,
            "itl_ms": None,
            "l_min_ms": None,
            **self.tally.snapshot(),
        }

    def admit_all(self, view: PassView, order: Iterable[RequestInfo]) -> Decision:
        """Grants for everybody, retracted requests first, ``order`` after them."""
        if not len(self.queue):
            return NOBODY_WAITS
        capacity = max(1, view.kv_capacity_tokens)
        load = view.load_tokens
        free = view.kv_free_tokens
        grants: list[Grant] = []
        for request in islice(chain(self.queue.retracted, order), GRANTS_PER_PASS):
            grants.append(
                Grant(
                    request,
                    "retracted" if request.retracted else "policy",
                    load,
                    (free - request.prompt_tokens) / capacity,
                    0.0,
                    None,
                    view.pass_index - request.arrival_pass,
                )
            )
            load += request.expected_tokens
            free -= request.prompt_tokens
        return Decision(tuple(grants), "limit" if len(self.queue) > len(grants) else "")
