"""Who may be made to give up a place for a higher priority, and who not.

A running request makes way only for one whose priority is larger by more than the engine's
threshold, so equals never swap and two requests cannot push each other out in turn. Against a
stream of high priorities it is protected: after its k-th preemption it keeps its place until
it has produced 32 * 2^(k-1) more tokens. So it is preempted at most about log2(output/32) + 1
times however many come, and who comes waits at most until the least protected one is through.
"""

from __future__ import annotations

from twp_sglang.scheduling.active_rows import ActiveRows
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.scheduling.sample import PassView

PROTECTED_TOKENS = 32
"""Output between the first preemption and the next: some 1.6 s at 50 ms per token, and as many
tokens as pay for computing a short prompt again."""

_MOST_DOUBLINGS = 20


def protected(request: RequestInfo, produced_tokens: int) -> bool:
    """Whether ``request``, with so many tokens produced in all, keeps its place whoever comes."""
    if not request.preemptions:
        return False
    owed = PROTECTED_TOKENS << min(request.preemptions - 1, _MOST_DOUBLINGS)
    return produced_tokens - request.produced_tokens < owed


def makes_way(rows: ActiveRows, priority: int, threshold: int) -> int | None:
    """Row that gives its place to a request of ``priority``: of the lowest priority the one
    that joined last, as the engine chooses; None where none may."""
    found: tuple[int, int] | None = None
    place = None
    for row, (request, produced) in enumerate(
        zip(rows.requests, rows.produced_tokens.tolist(), strict=True)
    ):
        if request is None or priority - request.priority <= threshold:
            continue
        key = (request.priority, -request.seq)
        if (found is None or key < found) and not protected(request, produced):
            found, place = key, row
    return place


def without(view: PassView, row: int) -> PassView:
    """The engine as it stands once that row has given back its memory."""
    rows = view.rows()
    keep = [place for place in range(len(rows.requests)) if place != row]
    left = ActiveRows(
        [rows.requests[place] for place in keep],
        rows.prompt_tokens[keep],
        rows.max_new_tokens[keep],
        rows.produced_tokens[keep],
        rows.new_token_ratio,
    )
    return view._replace(
        batch=view.batch - 1,
        kv_free_tokens=view.kv_free_tokens + int(rows.held_tokens[row]),
        rows=lambda: left,
    )
