"""The live page in SGLang's HTTP process: what it is made of needs no key, its data do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from patches.contract import Hook

HTTP_SERVER = "sglang.srt.entrypoints.http_server"
PAGE_PATHS = ("/twp", "/twp/static/")


def decide_request_auth(original: Callable[..., Any], **request: Any) -> Any:
    """AROUND: a browser cannot send a key before it has a page to ask for one."""
    if request["method"] == "GET" and _is_page(request["path"]):
        from sglang.srt.utils.auth import AuthDecision

        return AuthDecision(allowed=True)
    return original(**request)


def _is_page(path: str) -> bool:
    page, parts = PAGE_PATHS
    return path == page or (path.startswith(parts) and "/" not in path.removeprefix(parts))


HOOKS = (
    Hook(
        target="sglang.srt.utils.auth.decide_request_auth",
        kind="around",
        function=f"{__name__}:decide_request_auth",
        signatures=("*, method, path, authorization_header, api_key, admin_api_key, auth_level",),
        replaces="the need of a key for GET /twp and the files of that page, which hold no data",
        why="with --api-key a browser could not open the page at which the key is entered",
        until="SGLang lets a route say that it needs no key",
        reads=(
            "sglang.srt.utils.auth:AuthDecision",
            "sglang.srt.utils.auth:_get_auth_level_from_app_and_scope",
            "sglang.srt.utils.auth:AuthLevel.ADMIN_OPTIONAL",
            "sglang.srt.utils.auth:auth_level",
            f"{HTTP_SERVER}:app",
            f"{HTTP_SERVER}:get_global_state",
            "sglang.srt.managers.tokenizer_control_mixin:_COMMUNICATOR_SPECS",
            "sglang.srt.managers.io_struct:GetInternalStateReq",
            "sglang.srt.managers.io_struct:BaseReq.rid",
            "sglang.srt.managers.tokenizer_manager:TokenizerManager.auto_create_handle_loop",
            "sglang.srt.managers.tokenizer_manager:TokenizerManager.served_model_name",
            "sglang.srt.managers.tokenizer_manager:TokenizerManager.gracefully_exit",
        ),
    ),
)
