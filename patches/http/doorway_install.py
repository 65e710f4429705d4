"""Puts the doorway around SGLang's HTTP application, and proves that it is there."""

from __future__ import annotations

import time
from typing import Any

from patches.http.doorway import Application, Doorway, Scope
from patches.http.serving_state import EngineSeen, ServingState
from patches.install import ProofError


def add_doorway(app: Any, get_global_state: Any) -> None:
    """Wrap ``app``, innermost: what SGLang puts around it (keys, metrics, CORS) sees the
    answers that clients get.

    Raises:
        ProofError: SGLang lacks what the doorway needs.
    """
    from fastapi import HTTPException
    from starlette.middleware import Middleware

    if app.middleware_stack is not None:
        raise ProofError("SGLang's HTTP application serves already: nothing can be put around it")
    # SGLang's own words for errors, in the format of each path.
    handler = app.exception_handlers.get(HTTPException)
    if handler is None:
        raise ProofError("SGLang words no HTTP errors, so a refusal could not be told")
    state = ServingState(lambda: _seen(get_global_state), time.time)
    app.user_middleware.append(Middleware(Doorway, answer=_answers(handler), state=state))
    if not any(layer.cls is Doorway for layer in app.user_middleware):
        raise ProofError("SGLang's HTTP application did not take TWP's layer")


def _answers(handler: Any) -> Any:
    from fastapi import HTTPException
    from starlette.requests import Request

    async def answer(scope: Scope, status: int, message: str) -> Application:
        response: Application = await handler(
            Request(scope), HTTPException(status_code=status, detail=message)
        )
        return response

    return answer


def _seen(get_global_state: Any) -> EngineSeen | None:
    state = get_global_state()
    manager = None if state is None else state.tokenizer_manager
    if manager is None:
        return None
    return EngineSeen(
        shutting_down=bool(manager.gracefully_exit),
        unhealthy=manager.server_status.name == "UnHealthy",
        last_answer_s=float(manager.last_receive_tstamp),
    )
