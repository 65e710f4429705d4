"""Requests on their way through SGLang's HTTP process: terms in, refusals noticed."""

from __future__ import annotations

import logging
from typing import Any

from patches.contract import Hook
from patches.http.body_terms import merged
from patches.http.exchange import current
from patches.sglang_0_5.refusing import RETRY_AFTER_KEY

logger = logging.getLogger(__name__)

TOKENIZER_MANAGER = "sglang.srt.managers.tokenizer_manager"
HTTP_SERVER = "sglang.srt.entrypoints.http_server"

_BAD_REQUEST = 400


def generate_request(manager: Any, obj: Any, request: Any = None) -> None:
    """BEFORE: put the terms of the request into its sampling parameters.

    Raises:
        ValueError: the body's own terms cannot be used; SGLang answers with 400.
    """
    exchange = current()
    if exchange is None or not manager.is_generation:
        return
    exchange.request = obj
    try:
        obj.sampling_params = merged(obj.sampling_params, exchange.terms, exchange.key_client)
    except ValueError as error:
        # A stream would otherwise begin with 200 and end with this.
        exchange.refused = (_BAD_REQUEST, str(error))
        raise


def handle_abort_finish_reason(manager: Any, out: Any, state: Any, is_stream: Any) -> None:
    """BEFORE: the scheduler ended a request; note status and time to come again."""
    exchange = current()
    if exchange is None:
        return
    try:
        reason = out["meta_info"]["finish_reason"]
        status = reason.get("status_code")
        if reason.get("type") != "abort" or status is None or not 400 <= int(status) < 600:
            return
        retry_after_s = reason.get(RETRY_AFTER_KEY)
        if retry_after_s is not None:
            exchange.retry_after_s = max(exchange.retry_after_s or 0, int(retry_after_s))
        # One of a batch says nothing of the others, which may be streaming.
        if state.obj is exchange.request:
            exchange.refused = (int(status), str(reason.get("message") or "Aborted"))
    except Exception:
        # SGLang's own answer is still right, it only lacks a header.
        logger.exception("TWP cannot read why a request was aborted")


HOOKS = (
    Hook(
        target=f"{TOKENIZER_MANAGER}.TokenizerManager.generate_request",
        kind="before",
        function=f"{__name__}:generate_request",
        signatures=("self, obj, request=",),
        replaces="nothing: custom_params gets an entry that SGLang carries along",
        why="headers end in the HTTP process, and the scheduler decides by whom a request comes "
        "from and by what it asks for",
        until="SGLang hands request headers to the scheduler",
        reads=(
            "sglang.srt.managers.io_struct:GenerateReqInput.sampling_params",
            f"{TOKENIZER_MANAGER}:TokenizerManager.is_generation",
        ),
    ),
    Hook(
        target=f"{TOKENIZER_MANAGER}.TokenizerManager._handle_abort_finish_reason",
        kind="before",
        function=f"{__name__}:handle_abort_finish_reason",
        signatures=("self, out, state, is_stream",),
        replaces="nothing: the abort is answered as stock",
        why="the answer needs a Retry-After, and a refused stream an HTTP status of its own",
        until="SGLang answers a refused stream with a status and takes a Retry-After from the "
        "scheduler",
        reads=(
            f"{TOKENIZER_MANAGER}:ReqState.obj",
            f"{TOKENIZER_MANAGER}:TokenizerManager.server_status",
            f"{TOKENIZER_MANAGER}:TokenizerManager.gracefully_exit",
            f"{TOKENIZER_MANAGER}:TokenizerManager.last_receive_tstamp",
            f"{TOKENIZER_MANAGER}:ServerStatus.UnHealthy",
            f"{HTTP_SERVER}:app",
            f"{HTTP_SERVER}:get_global_state",
        ),
    ),
)
