"""What a request asks for beside its tokens: whose it is, and objectives of its own.

They travel in the request's ``custom_params`` under the key ``twp``, a field that SGLang
carries from the client to every scheduler process untouched:

    {"custom_params": {"twp": {"client": "team-a", "ttft_slo_ms": 500}}}
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

_LARGEST = sys.float_info.max

KEY = "twp"
"""Name under which ``custom_params`` carries the terms."""

CLIENT_MAX_CHARACTERS = 128
"""Longest client name that is accepted: a team's name fits, a document does not."""

CLIENT_KEPT_CHARACTERS = CLIENT_MAX_CHARACTERS + 32
"""Longest one kept: a name and before it the hash of the API key that it came with."""


class RequestTerms(NamedTuple):
    """Terms of one request; empty or None where it has none of its own."""

    client: str = ""
    itl_slo_ms: float | None = None
    ttft_slo_ms: float | None = None


NO_TERMS = RequestTerms()


def terms_of(custom_params: Any) -> RequestTerms:
    """The terms in ``custom_params``. What cannot be used is left out: whoever accepts the
    request has told its sender, and a scheduler must not stumble over it."""
    if not isinstance(custom_params, Mapping):
        return NO_TERMS
    terms = custom_params.get(KEY)
    if not isinstance(terms, Mapping):
        return NO_TERMS
    return RequestTerms(
        _name(terms.get("client")),
        _positive(terms.get("itl_slo_ms")),
        _positive(terms.get("ttft_slo_ms")),
    )


def _name(value: Any) -> str:
    name = value[:CLIENT_KEPT_CHARACTERS] if isinstance(value, str) else ""
    # Names reach logs and traces, where a line end or a lone surrogate does harm.
    return name if name.isprintable() else ""


def _positive(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Compared before it is converted: a whole number can be too large for a float.
    return float(value) if 0 < value <= _LARGEST else None
