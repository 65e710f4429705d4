"""Changes of the configuration: checked on every replica first, then made on all or on none.

Within a replica one broadcast reaches all tensor-parallel ranks in one pass. Replicas share
no pass: if one of them fails after it had agreed, the others are taken back.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from patches.control import told
from patches.http.asking import Unanswered, ask
from twp_sglang.config_values import object_without_repeats
from twp_sglang.one_line import one_line

logger = logging.getLogger(__name__)

KEPT_CHANGES = 50
"""Changes that GET /twp/config lists; all of them are in the log."""

_REASON_CHARACTERS = 4000
"""Of a refusal in the log: some ten fields with what each of them means."""

_one_at_a_time = asyncio.Lock()
history: deque[dict[str, Any]] = deque(maxlen=KEPT_CHANGES)
"""The newest changes made through this process, oldest first."""


class Refused(Exception):
    """The change was not made; ``status`` is the HTTP status for the reason."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def parsed(body: bytes) -> dict[str, Any]:
    """The fields in a request's body.

    Raises:
        Refused: it is not one JSON object of finite values.
    """
    example = 'send a JSON object such as {"gamma": 0.2}'
    try:
        changes = json.loads(
            body, object_pairs_hook=object_without_repeats, parse_constant=_not_json
        )
    except RecursionError:
        raise Refused(f"the body is nested too deeply: {example}") from None
    except ValueError as error:
        raise Refused(f"the body is not JSON ({error}): {example}") from None
    if not isinstance(changes, dict):
        raise Refused(f"the body is not an object: {example}")
    return changes


def _not_json(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


async def change(changes: Mapping[str, Any], by: str) -> dict[str, Any]:
    """Make ``changes`` on all replicas.

    Args:
        by: who asked for it, for the log; one printable line.

    Returns:
        What changed, the new revision, the pass from which it is in force per replica, and
        the fields that the policy in force does not read.

    Raises:
        Refused: nothing has changed; says why.
        Unanswered: a scheduler did not answer; says what is known.
    """
    async with _one_at_a_time:
        try:
            made = await _change(changes, by)
        except Refused as error:
            reason = one_line(str(error), _REASON_CHARACTERS)
            logger.warning("TWP audit: change by %s refused: %s", by, reason)
            raise
        except Unanswered as error:
            reason = one_line(str(error), _REASON_CHARACTERS)
            logger.error("TWP audit: change by %s: %s", by, reason)
            raise
    fields = {name: tuple(values) for name, values in made["changes"].items()}
    logger.warning(
        "TWP audit: changed by %s: %s (revision %d)%s",
        by,
        told(fields),
        made["revision"],
        _without_effect(made),
    )
    if fields:
        history.append(
            {
                "time_unix_s": round(time.time(), 3),
                "by": by,
                "changes": made["changes"],
                "revision": made["revision"],
            }
        )
    return made


def _without_effect(made: Mapping[str, Any]) -> str:
    """The end of a log line for fields that nobody reads, as the start has it; or nothing."""
    if not made["unread"]:
        return ""
    return f"; policy {made['policy']} does not read {', '.join(made['unread'])}"


async def _change(changes: Mapping[str, Any], by: str) -> dict[str, Any]:
    checked = await ask("check", changes=dict(changes))
    for said in checked:
        if "refused" in said:
            raise Refused(str(said["refused"]))
    revisions = {said["revision"] for said in checked}
    if len(revisions) > 1:
        raise Refused(
            "the replicas are at different revisions of the configuration; restart the server", 409
        )
    outcome = {name: checked[0][name] for name in ("changes", "revision", "unread", "policy")}
    if not any(said["changes"] for said in checked):
        return {**outcome, "replicas": []}
    (revision,) = revisions
    try:
        answers = await ask("change", changes=dict(changes), revision=revision, by=by)
    except Unanswered as error:
        raise Unanswered(
            f"{error}. The change may be in force on some replicas: GET /twp/config tells",
            error.status,
        ) from None
    failed = [said for said in answers if "pass" not in said]
    if failed:
        reason = str(failed[0].get("conflict") or failed[0].get("refused"))
        if len(failed) < len(answers):
            await _take_back(answers, by)
        raise Refused(f"not changed: {reason}; look at GET /twp/config and ask again", 409)
    return {
        **outcome,
        "changes": answers[0]["changes"],
        "revision": answers[0]["revision"],
        "replicas": [
            {"replica": said["replica"], "in_force_from_pass": said["pass"]} for said in answers
        ],
    }


async def _take_back(answers: list[dict[str, Any]], by: str) -> None:
    """Old values for the replicas that made the change; the others refuse the revision."""
    made = next(said for said in answers if "pass" in said)
    old = {name: values[0] for name, values in made["changes"].items()}
    await ask("change", changes=old, revision=made["revision"], by=f"{by}, taken back")
