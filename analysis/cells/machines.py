"""The machine of a cell, by name: ``h100-llama31-8b,kv_tokens=60000``."""

from __future__ import annotations

import functools
import math
import re
from typing import Any, NamedTuple

from pydantic import ValidationError

from controllers.models import LatencyModel
from twp_sglang.simulator.step_models import AffineStep, StepModel
from twp_sglang.simulator.step_replay import Replay
from twp_sglang.simulator.step_sources import build, step_source

KV_TOKENS = "kv_tokens"


class Machine(NamedTuple):
    """A step model with the size of its KV pool.

    Attributes:
        name: as written.
        model: step times.
        step: the terms of the model where it is affine, else None.
        kv_tokens: size of the KV pool.
        chunk_tokens: chunk that the profile calls suitable, if it does.
    """

    name: str
    model: StepModel
    step: AffineStep | None
    kv_tokens: int
    chunk_tokens: int | None

    def latency_model(self) -> LatencyModel:
        """The step model in the form of ``controllers``.

        Raises:
            ValueError: the model is a table.
        """
        if self.step is None:
            raise ValueError(
                f"machine {self.name}: a table of step times has no linear model; use a profile"
            )
        return self.step.latency_model()


@functools.cache
def machine(text: str) -> Machine:
    """The machine that ``text`` names.

    ``text`` is a step model as ``twp_sglang.simulate --step-model`` takes it, followed by
    overrides: ``kv_tokens=N`` and any term of an affine model (``alpha_ms=8.6``).

    Raises:
        ValueError: no such model, a wrong override, or no size of the KV pool.
    """
    name, *overrides = [part.strip() for part in text.split(",")]
    source = step_source(name)
    if isinstance(source.model, Replay):
        raise ValueError(
            f"machine {text}: a recorded trace replays the batches of its own run only; fit a "
            "step model to it with python -m controllers identify"
        )
    profile = source.profile
    step = profile.step if profile is not None else None
    affine = step if isinstance(step, AffineStep) else None
    kv_tokens = profile.kv_tokens if profile is not None else None
    changed: dict[str, Any] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if key == KV_TOKENS and equals:
            kv_tokens = _whole(value, text)
        elif affine is not None and equals and key in AffineStep.model_fields and key != "kind":
            changed[key] = _number(value, key, text)
        else:
            terms = [k for k in AffineStep.model_fields if k != "kind"] if affine else []
            raise ValueError(
                f"machine {text}: '{override}' is no override of it; write KEY=VALUE with one of "
                f"{', '.join([KV_TOKENS, *terms])}"
            )
    if kv_tokens is None:
        raise ValueError(f"machine {text}: names no KV pool; write {name},kv_tokens=N")
    model = source.model
    if affine is not None and changed:
        try:
            affine = AffineStep.model_validate({**affine.model_dump(), **changed})
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(
                f"machine {text}: {first['loc'][0]} = {first['input']}: {first['msg']}"
            ) from None
        model = build(affine)
    chunk = profile.chunk_tokens if profile is not None else None
    return Machine(text, model, affine, kv_tokens, chunk)


def slug(*parts: str) -> str:
    """``parts`` as a file name."""
    return "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-") for part in parts)


def _whole(value: str, text: str) -> int:
    if not value.isdigit() or int(value) < 1:
        raise ValueError(f"machine {text}: {KV_TOKENS} = '{value}' is not a whole number above 0")
    return int(value)


def _number(value: str, key: str, text: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"machine {text}: {key} = '{value}' is not a finite number")
    return number
