"""``sglang serve MODEL --twp-policy slo``: TWP as a backend of SGLang's own command.

SGLang discovers it through the entry-point group ``sglang.serve_backends`` and picks it when
the command line holds a ``--twp-`` flag; ``--model-type twp`` picks it by name.
"""

from __future__ import annotations

from typing import Any

from twp_sglang.serving.options import PREFIX


def create() -> Any:
    """Entry point: the backend's description in SGLang's terms."""
    from sglang.cli.serve_backends import (
        SERVE_BACKEND_API_VERSION,
        ServeBackend,
        ServeBackendDetection,
    )

    def detect(request: Any) -> Any:
        asked = any(word.startswith(PREFIX) for word in request.argv)
        return ServeBackendDetection.MATCH if asked else ServeBackendDetection.NO_MATCH

    return ServeBackend(api_version=SERVE_BACKEND_API_VERSION, run=_run, detect=detect)


def _run(request: Any) -> None:
    from twp_sglang.serving.launch import serve_and_leave

    serve_and_leave(list(request.argv))
