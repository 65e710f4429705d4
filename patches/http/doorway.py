"""The ASGI layer around SGLang's application: terms in, refusals out.

A refusal reaches the HTTP process as an abort. SGLang turns it into an HTTP status where the
client waits for the whole answer; where it asked for a stream, 200 has been promised by
then. So the head of a stream is held back until its first event is there, and replaced by
the refusal, in SGLang's own error format for that path, where the first event is one. A
stream that has begun ends with SGLang's own error event.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from patches.http.exchange import Exchange, begin
from patches.http.header_terms import HeaderError, key_client, terms_in
from patches.http.serving_state import ServingState
from twp_sglang.scheduling.overload import RETRY_UNKNOWN_S

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Answer = Callable[[Scope, int, str], Awaitable[Application]]
"""An error with its status and message, as SGLang words it on the path of the scope."""

GENERATING = (
    *("/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"),
    *("/api/generate", "/api/chat", "/invocations", "/vertex_generate"),
)
"""Paths that generate, in SGLang 0.5.20 to 0.5.23."""

_ASKS_TO_COME_AGAIN = (429, 503)


class Doorway:
    """See the module's text.

    Args:
        app: what is inside.
        answer: makes error answers.
        state: whether the server serves.
    """

    def __init__(self, app: Application, answer: Answer, state: ServingState) -> None:
        self._app = app
        self._answer = answer
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] not in ("POST", "PUT") or _path(scope) not in GENERATING:
            await self._app(scope, receive, _Reply(self, Exchange(), scope, receive, send).pass_on)
            return
        try:
            terms = terms_in(scope["headers"])
        except HeaderError as error:
            await self._refuse(scope, receive, send, 400, str(error), None)
            return
        not_serving = self._state.refusal()
        if not_serving is not None:
            await self._refuse(
                scope, receive, send, 503, not_serving.message, not_serving.retry_after_s
            )
            return
        exchange = Exchange(terms, key_client(scope["headers"]))
        begin(exchange)
        reply = _Reply(self, exchange, scope, receive, send)
        await self._app(scope, receive, reply.held)

    async def _refuse(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        status: int,
        message: str,
        retry_after_s: int | None,
    ) -> None:
        async def with_header(item: Message) -> None:
            if item["type"] == "http.response.start" and retry_after_s is not None:
                _add_retry_after(item, retry_after_s)
            await send(item)

        answer = await self._answer(scope, status, message)
        await answer(scope, receive, with_header)


class _Reply:
    """The answer to one request on its way out."""

    def __init__(
        self, door: Doorway, exchange: Exchange, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._door = door
        self._exchange = exchange
        self._scope = scope
        self._receive = receive
        self._send = send
        self._head: Message | None = None
        self._replaced = False

    async def pass_on(self, message: Message) -> None:
        """As it is, with the time to come again where the status asks for that."""
        if message["type"] == "http.response.start" and message["status"] in _ASKS_TO_COME_AGAIN:
            _add_retry_after(message, self._exchange.retry_after_s or RETRY_UNKNOWN_S)
        await self._send(message)

    async def held(self, message: Message) -> None:
        """The same, and the head of a stream only with its first event."""
        if self._replaced:
            return  # the rest of what the refusal took the place of
        if message["type"] == "http.response.start" and _is_stream(message):
            self._head = message
            return
        if self._head is not None and message["type"] == "http.response.body":
            head, self._head = self._head, None
            refused = self._exchange.refused
            if refused is not None:
                self._replaced = True
                await self._door._refuse(
                    self._scope,
                    self._receive,
                    self._send,
                    *refused,
                    self._exchange.retry_after_s
                    or (RETRY_UNKNOWN_S if refused[0] in _ASKS_TO_COME_AGAIN else None),
                )
                return
            await self._send(head)
        await self.pass_on(message)


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    # Behind a proxy the prefix under which the server is known may be part of the path.
    return path.removeprefix(scope.get("root_path", "") or "")


def _is_stream(head: Message) -> bool:
    return head["status"] == 200 and any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in head["headers"]
    )


def _add_retry_after(head: Message, seconds: int) -> None:
    if not any(name.lower() == b"retry-after" for name, _ in head["headers"]):
        head["headers"] = [*head["headers"], (b"retry-after", str(seconds).encode())]
