"""Asks the scheduler processes, one answer per data-parallel replica.

Rides on the request of SGLang's ``/server_info``; see :mod:`patches.questions`.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from patches import questions

TIMEOUT_S = 10.0
"""A scheduler answers between two steps; seconds without an answer mean that it hangs, or
loads or compiles something."""

_numbers = itertools.count(1)
_under_way: set[asyncio.Task[Any]] = set()


class Unanswered(Exception):
    """No usable answer came; the message says why, ``status`` is the HTTP status for it."""

    def __init__(self, message: str, status: int = 503) -> None:
        super().__init__(message)
        self.status = status


def tokenizer_manager() -> Any:
    """SGLang's side of the channel in this process.

    Raises:
        Unanswered: the server has not started yet.
    """
    from sglang.srt.entrypoints.http_server import get_global_state

    state = get_global_state()
    if state is None:
        raise Unanswered("the server has not started yet: try again in a moment")
    return state.tokenizer_manager


async def ask(kind: str, **fields: Any) -> list[dict[str, Any]]:
    """The answer of every replica, in their order, each with its number under ``replica``.

    Raises:
        Unanswered: a replica did not answer in time, runs without TWP, or failed at it.
    """
    from sglang.srt.managers.io_struct import GetInternalStateReq

    manager = tokenizer_manager()
    manager.auto_create_handle_loop()
    number = next(_numbers)
    request = GetInternalStateReq(rid=questions.written({"ask": kind, "id": number, **fields}))
    # Never cancelled, also where the client goes away: SGLang would take the answers that
    # still come for those to the next request.
    task = asyncio.create_task(manager.get_internal_state_communicator(request))
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)
    try:
        responses = await asyncio.wait_for(asyncio.shield(task), TIMEOUT_S)
    except TimeoutError:
        raise Unanswered(
            f"the scheduler did not answer within {TIMEOUT_S:g} s: it is in a long step, or hangs",
            504,
        ) from None
    answers = [response.internal_state.get(questions.ANSWER) for response in responses]
    return sorted((_usable(said, number) for said in answers), key=lambda said: said["replica"])


def _usable(said: dict[str, Any] | None, number: int) -> dict[str, Any]:
    if said is None:
        raise Unanswered("TWP is off in this server (--twp-policy off): SGLang decides alone", 404)
    if said.pop("id") != number:
        raise Unanswered("an answer to another question came: ask again")
    if "fault" in said:
        raise Unanswered(f"TWP failed to answer ({said['fault']}); the log has the traceback", 500)
    return said
