"""Puts TWP's routes onto SGLang's HTTP application, and proves that they are there."""

from __future__ import annotations

import logging
from typing import Any

from patches.install import ProofError, prove, register
from patches.sglang_0_5.versions import HookTable

logger = logging.getLogger(__name__)


def announce(table: HookTable) -> None:
    """Register the hooks of this process; SGLang applies them when it loads plug-ins.

    Raises:
        ProofError: another plug-in was there before.
    """
    register(table.hooks)


def add_routes(table: HookTable, arguments: Any) -> str | None:
    """Add the routes to SGLang's application.

    Returns:
        Why they will not be served, or None where they will.

    Raises:
        ProofError: SGLang lacks what they need.
    """
    workers = getattr(arguments, "tokenizer_worker_num", None) or 1
    if workers > 1:
        return (
            f"--tokenizer-worker-num {workers}: SGLang's HTTP workers are processes of their own "
            "that know nothing of TWP. There is no /twp here (/server_info has the state), X-TWP-* "
            "headers are ignored, refusals carry no Retry-After, and a refused stream ends with an "
            "error event instead of a 429"
        )
    prove(table.hooks)
    from sglang.srt.entrypoints import http_server
    from sglang.srt.managers.tokenizer_control_mixin import _COMMUNICATOR_SPECS
    from sglang.srt.utils.auth import AuthLevel, _get_auth_level_from_app_and_scope

    from patches.http.routes import PREFIX, router

    if not any(spec[0] == "get_internal_state" for spec in _COMMUNICATOR_SPECS):
        raise ProofError("SGLang has no channel to ask its schedulers for their internal state")
    wanted = _routes(router)
    taken = wanted & _routes(http_server.app)
    if taken:
        raise ProofError(f"SGLang serves {sorted(taken)[0][0]} itself")
    # One by one: SGLang does not look for the key that a route asks for inside of a router
    # that was included, and would let anybody change the configuration.
    http_server.app.router.routes.extend(router.routes)
    missing = wanted - _routes(http_server.app)
    if missing:
        raise ProofError(f"SGLang did not take the route {sorted(missing)[0][0]}")
    change = {"type": "http", "method": "PATCH", "path": f"{PREFIX}/config", "headers": []}
    if _get_auth_level_from_app_and_scope(http_server.app, change) != AuthLevel.ADMIN_OPTIONAL:
        raise ProofError("SGLang would not ask for its admin key before a change")
    return None


def _routes(router: Any) -> set[tuple[str, str]]:
    return {
        (route.path, method)
        for route in router.routes
        for method in getattr(route, "methods", None) or ()
    }
