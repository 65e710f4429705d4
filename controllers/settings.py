"""The loop as a flat set of named settings, the form of files and command lines.

The names are those of launch_server's flags, so one file can serve both.
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from controllers.laws.base import FrozenModel
from controllers.laws.registry import law_entry
from controllers.models import LatencyModel, LengthLaw, LoopModel, LoopTiming
from controllers.models.latency import MAX_COEFFICIENT, MIN_STEP_MS

EVIDENCE = "evidence"
"""Table of a tuned configuration that explains it; it sets nothing."""
POLICY = "policy"
"""Names the server's policy that reads the rest of a tuned file; nothing here depends on it."""

LAW_KEYS = (
    "h0_tokens",
    "h_min_tokens",
    "h_max_tokens",
    "gamma",
    "queue_ref",
    "sigma_ref",
    "k",
)
LATENCY_KEYS = tuple(LatencyModel.model_fields)
LOOP_KEYS = ("beta", "queue", "prompt_tokens")


class SettingsError(ValueError):
    """One line that names the setting, its value and the mend."""


class Settings(FrozenModel):
    """Every key that ``--set`` takes. ``None`` leaves the default of the model it belongs to.

    Bounds stand here as well as in the models, so that a value is checked even where the
    chosen law does not use it.
    """

    law: str = Field(default="paper", description="window law")
    h0_tokens: float | None = Field(default=None, gt=0, description="nominal or first window")
    h_min_tokens: float | None = Field(default=None, gt=0, description="lower clamp")
    h_max_tokens: float | None = Field(default=None, gt=0, description="upper clamp")
    gamma: float | None = Field(default=None, gt=0, le=1, description="window gain (paper)")
    beta: float | None = Field(default=None, gt=0, le=1, description="weight of the ITL filter")
    queue_ref: float | None = Field(default=None, gt=0, description="queue that is saturated")
    sigma_ref: float | None = Field(
        default=None,
        gt=1,
        description="slowdown to hold (regulated, aimd); times l_min the objective (predictive)",
    )
    k: float | None = Field(default=None, gt=0, le=1, description="integral gain (regulated)")
    l_min_ms: float | None = Field(
        default=None, ge=MIN_STEP_MS, le=MAX_COEFFICIENT, description="constant of the step, ms"
    )
    b0: float | None = Field(default=None, ge=0, le=MAX_COEFFICIENT, description="knee, requests")
    alpha_ms: float | None = Field(
        default=None,
        ge=0,
        le=MAX_COEFFICIENT,
        description="slope above the knee, ms",
    )
    a_ms: float | None = Field(
        default=None, ge=0, le=MAX_COEFFICIENT, description="slope at every batch, ms"
    )
    kappa_ms_per_token: float | None = Field(
        default=None, ge=0, le=MAX_COEFFICIENT, description="ms per KV token"
    )
    prefill_ms_per_token: float | None = Field(
        default=None, ge=0, le=MAX_COEFFICIENT, description="ms per prompt token"
    )
    prompt_tokens: float | None = Field(default=None, ge=0, description="mean prompt length")
    delay_steps: int | None = Field(default=None, ge=0, le=64, description="extra steps of delay")
    lengths: str | None = Field(default=None, description="length law, e.g. geometric:50")
    queue: float | str | None = Field(default=None, description="'saturated' or a depth")

    def unused(self) -> tuple[str, ...]:
        """Keys that are set but mean nothing to the chosen law."""
        taken = set(law_entry(self.law).config.model_fields)
        if self.law == "predictive":
            taken.add("sigma_ref")
        return tuple(key for key in LAW_KEYS if getattr(self, key) is not None and key not in taken)

    def loop(self) -> LoopModel:
        """The loop these settings describe.

        Raises:
            SettingsError: a value the models cannot use, or clamps out of order.
        """
        given = {k: v for k, v in self.model_dump().items() if v is not None}
        try:
            latency = LatencyModel(**{k: given[k] for k in LATENCY_KEYS if k in given})
            unused = set(self.unused())
            params: dict[str, Any] = {k: given[k] for k in LAW_KEYS if k in given}
            params = {k: v for k, v in params.items() if k not in unused}
            if self.law == "predictive":
                params["latency"] = latency.model_dump()
                if (ratio := params.pop("sigma_ref", None)) is not None:
                    params["itl_objective_ms"] = ratio * latency.l_min_ms
            fields: dict[str, Any] = {k: given[k] for k in LOOP_KEYS if k in given}
            if "lengths" in given:
                fields["lengths"] = LengthLaw.parse(given["lengths"])
            if "delay_steps" in given:
                fields["timing"] = LoopTiming(delay_steps=given["delay_steps"])
            return LoopModel(latency=latency, law=self.law, law_params=params, **fields)
        except ValidationError as error:
            raise SettingsError(one_line(error)) from None
        except ValueError as error:
            raise SettingsError(str(error)) from None


def load_settings(config: Path | None = None, assignments: Iterable[str] = ()) -> Settings:
    """Settings from a TOML or JSON file, then ``key=value`` assignments over it.

    Raises:
        SettingsError: unreadable file, unknown key, or a value out of range.
    """
    values: dict[str, Any] = {} if config is None else _read_file(config)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise SettingsError(f"--set {assignment}: write it as key=value")
        values[key.strip()] = _parse_value(key.strip(), text.strip())
    return make_settings(values)


def make_settings(values: Mapping[str, Any]) -> Settings:
    """Settings from a mapping of keys.

    Raises:
        SettingsError: unknown key, or a value out of range.
    """
    known = Settings.model_fields
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f": did you mean {close[0]}?" if close else f": use one of {', '.join(known)}"
            raise SettingsError(f"{key} = {values[key]!r}: unknown key{hint}")
        if isinstance(values[key], bool):  # would pass as 0 or 1
            raise SettingsError(f"{key} = {values[key]}: no key is true or false: give its value")
    try:
        settings = Settings.model_validate(dict(values))
    except ValidationError as error:
        raise SettingsError(one_line(error)) from None
    try:
        law_entry(settings.law)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    return settings


def one_line(error: ValidationError) -> str:
    """First problem of a validation error as 'field = value: what is expected'."""
    first = error.errors(include_url=False, include_context=True)[0]
    where = ".".join(str(part) for part in first["loc"] if not _is_branch(part))
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if first["type"] == "value_error" and not where:
        return message
    return f"{where} = {first['input']!r}: {message}" if where else message


def _is_branch(part: int | str) -> bool:
    """Whether a part of an error's location is a union's branch and not a field."""
    return isinstance(part, str) and part in {"float", "str", "int", "constrained-float"}


def _parse_value(key: str, text: str) -> Any:
    if key in {"law", "lengths"}:
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise SettingsError(f"--config {path}: {reason}") from None
    try:
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise SettingsError(f"--config {path}: not {kind}: {error}") from None
    if not isinstance(data, dict):
        raise SettingsError(f"--config {path}: expected a table of keys")
    data.pop(EVIDENCE, None)
    data.pop(POLICY, None)
    return data


def jsonable(value: Any) -> Any:
    """``value`` with every number that JSON lacks (infinity, NaN) as None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    return value
