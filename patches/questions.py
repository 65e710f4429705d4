"""How the HTTP process asks the scheduler processes, on a request that SGLang has anyway.

SGLang's ``GetInternalStateReq`` is sent to every data-parallel replica and broadcast to all
tensor-parallel ranks of each in one scheduling pass, and its answer is a free table. Its
``rid``, which SGLang leaves empty on it, carries the question as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

PREFIX = "twp-question:"
"""Marks a ``rid`` that holds a question; nobody's request id starts so."""

ANSWER = "twp_answer"
"""Key of the answer in the table that comes back."""


def written(question: Mapping[str, Any]) -> str:
    """A question as the ``rid`` that carries it."""
    return PREFIX + json.dumps(question, separators=(",", ":"), allow_nan=False)


def asked(rid: str | None) -> dict[str, Any] | None:
    """The question in ``rid``; None where it holds none."""
    if rid is None or not rid.startswith(PREFIX):
        return None
    question: dict[str, Any] = json.loads(rid.removeprefix(PREFIX))
    return question
