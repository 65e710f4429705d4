"""Answers of a scheduler process to the HTTP process: state, configuration, why somebody waits.

Every rank gets every question in the same scheduling pass, before it decides, and changes of
the configuration are applied right there: so ranks never decide by different ones. Answers
other than a change leave no trace. A fault in here is answered with, and does not end the
steering.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from patches import explaining
from patches.informed import informed
from patches.runtime import Runtime
from patches.sglang_0_5 import engine_view
from twp_sglang import policy_fields
from twp_sglang.config import TwpConfig
from twp_sglang.config_changes import SOURCE, changed, difference
from twp_sglang.config_values import OptionsError, one_spelling
from twp_sglang.one_line import one_line
from twp_sglang.scheduling.explanation import facts_of, status_line
from twp_sglang.scheduling.policies import build_policy

logger = logging.getLogger(__name__)

Question = Mapping[str, Any]
Answer = dict[str, Any]


def answer(runtime: Runtime | None, scheduler: Any, question: Question) -> Answer:
    """Answer ``question``; faults become ``{"fault": reason}``."""
    if runtime is None:
        return {"id": question.get("id"), "replica": 0, "fault": "TWP is not installed here"}
    try:
        said = _ANSWERS[question["ask"]](runtime, scheduler, question)
    except OptionsError as error:
        said = {"refused": str(error)}
    except Exception as error:
        logger.exception("TWP cannot answer %s; it goes on deciding", question.get("ask"))
        said = {"fault": f"{type(error).__name__}: {error}"}
    return {"id": question.get("id"), "replica": runtime.replica, **said}


def _state(runtime: Runtime, scheduler: Any, question: Question) -> Answer:
    state = runtime.state()
    state.pop("config", None)
    told = question.get("after_step") or {}
    return {
        "state": {
            **state,
            "why": status_line(facts_of(state)),
            "steps": runtime.watching.recent.summary(told.get(str(runtime.replica), -1))._asdict(),
        }
    }


def _config(runtime: Runtime, scheduler: Any, question: Question) -> Answer:
    return {
        "config": runtime.config.model_dump(mode="json"),
        "revision": runtime.revision,
        "chunk_tokens": runtime.chunk_tokens,
    }


def _check(runtime: Runtime, scheduler: Any, question: Question) -> Answer:
    """What a change would do; it changes nothing."""
    config, _ = _wanted(runtime, scheduler, question["changes"])
    given = one_spelling(question["changes"], SOURCE)
    return {
        "revision": runtime.revision,
        "changes": difference(runtime.config, config),
        "unread": policy_fields.unread(config.policy, given),
        "policy": config.policy,
    }


def _change(runtime: Runtime, scheduler: Any, question: Question) -> Answer:
    if question["revision"] != runtime.revision:
        return {"conflict": f"the configuration is at revision {runtime.revision} by now"}
    config, chunk = _wanted(runtime, scheduler, question["changes"])
    changes = difference(runtime.config, config)
    runtime.reconfigure(config, chunk)
    logger.warning(
        "TWP configuration changed by %s, in force from pass %d on: %s",
        question["by"],
        runtime.pass_index + 1,
        told(changes),
    )
    return {"revision": runtime.revision, "changes": changes, "pass": runtime.pass_index + 1}


def _explain(runtime: Runtime, scheduler: Any, question: Question) -> Answer:
    return {"found": explaining.explain(runtime, scheduler, question["rid"], time.perf_counter())}


_ANSWERS: dict[str, Callable[[Runtime, Any, Question], Answer]] = {
    "state": _state,
    "config": _config,
    "check": _check,
    "change": _change,
    "explain": _explain,
}


def told(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """Changes as one line: ``gamma 0.15 -> 0.2, b0 8 -> 16``."""
    if not changes:
        return "no value differs"
    return ", ".join(
        f"{name} {_value(old)} -> {_value(new)}" for name, (old, new) in sorted(changes.items())
    )


def _value(value: Any) -> str:
    return "unset" if value is None else str(value)


def _wanted(
    runtime: Runtime, scheduler: Any, changes: Mapping[str, Any]
) -> tuple[TwpConfig, int | None]:
    """The configuration and chunk that ``changes`` lead to.

    Raises:
        OptionsError: they cannot be used, with the reason.
    """
    config = changed(runtime.config, changes)
    chunk = runtime.chunk_tokens
    if config.chunk_tokens != runtime.config.chunk_tokens:
        chunk = _chunk(runtime, scheduler, config.chunk_tokens)
    try:
        stated = informed(config, scheduler)
        build_policy(stated)
        runtime.policy.try_out(stated)
    except Exception as error:
        # Whatever it is: after the check of all replicas it would come in the middle of a change.
        reason = one_line(" ".join(str(error).split()))
        raise OptionsError(
            f"the policy cannot be built with {', '.join(sorted(changes))}: "
            f"{type(error).__name__}: {reason}"
        ) from error
    return config, chunk


def _chunk(runtime: Runtime, scheduler: Any, tokens: int | None) -> int | None:
    given = f"chunk_tokens = {'unset' if tokens is None else tokens} ({SOURCE})"
    whole = getattr(scheduler, "chunked_prefill_size", None)
    if whole is None or whole <= 0:
        raise OptionsError(
            f"{given}: prefill is not chunked in this server (--chunked-prefill-size); restart "
            "it without that flag"
        )
    if tokens is None:
        if not runtime.chunk_unset:
            raise OptionsError(
                f"{given}: the server was started with a number, so what an unset one means on "
                "this machine was never settled; give a number of tokens"
            )
        return runtime.chunk_unset[0]
    return engine_view.aligned_chunk(tokens, scheduler)
