"""Named step models as plain numbers, one JSON file each, with source and limits.

The simulator and the emulated engine read the same files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from controllers.laws.base import FrozenModel
from twp_sglang.simulator.step_models import AffineStep, TableStep

_FOLDER = Path(__file__).parent


class StepProfile(FrozenModel):
    """A step model with what is known of it."""

    name: str = Field(min_length=1)
    title: str = ""
    step: AffineStep | TableStep = Field(discriminator="kind")
    kv_tokens: int | None = Field(default=None, ge=1, description="usual size of the KV pool")
    kv_tokens_reason: str = ""
    chunk_tokens: int | None = Field(
        default=None, ge=1, description="prompt tokens per mixed step that suit this machine"
    )
    sources: tuple[str, ...] = ()
    leaves_out: str = ""
    measured: dict[str, Any] | None = Field(
        default=None, description="how it was measured (twp_sglang.profile_step); not used here"
    )


class ProfileError(ValueError):
    """A step model that cannot be had; the message says why and what there is."""


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that come with the package."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def named_profile(name: str) -> StepProfile:
    """The profile that comes with the package under ``name``.

    Raises:
        ProfileError: there is none; the message lists those there are.
    """
    if name not in profile_names():
        raise ProfileError(
            f"step model '{name}': no such profile and no such file; profiles are "
            f"{', '.join(profile_names())}"
        )
    return read_profile(_FOLDER / f"{name}.json")


def read_profile(path: Path) -> StepProfile:
    """A profile from a JSON file.

    Three forms are taken: that of the files here; what ``python -m twp_sglang.calibrate``
    wrote, of which the fitted decode model, the cost of a prompt token and the engine's KV
    pool and chunk are used; and a flat object of step terms (``l_min_ms``, ``b0``,
    ``alpha_ms``, ``a_ms``, ``kappa_ms_per_token``, ``prefill_ms_per_token``).

    Raises:
        ProfileError: the file cannot be read, or holds no step model.
    """
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"step model {path}: cannot be read ({error})") from None
    except RecursionError:
        raise ProfileError(f"step model {path}: is not usable JSON (nested too deeply)") from None
    except ValueError as error:  # of the decoder, of a number too long, of a path with a zero byte
        raise ProfileError(f"step model {path}: is not JSON ({error})") from None
    if not isinstance(loaded, dict):
        raise ProfileError(f"step model {path}: must hold one JSON object")
    if "step" not in loaded:
        calibrated = "decode_points" in loaded
        terms = _calibrated(loaded, path) if calibrated else loaded
        known = {key: terms[key] for key in AffineStep.model_fields if terms.get(key) is not None}
        engine = loaded.get("engine") if calibrated else None
        measured = engine if isinstance(engine, dict) else {}
        loaded = {
            "name": path.stem,
            "step": {**known, "kind": "affine"},
            **{key: measured.get(key) for key in ("kv_tokens", "chunk_tokens")},
        }
    try:
        return StepProfile.model_validate(loaded)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ProfileError(
            f"step model {path}: {place} = {first.get('input')!r}: {first['msg']}"
        ) from None


def _calibrated(profile: dict[str, Any], path: Path) -> dict[str, Any]:
    """The step terms of a calibration's profile."""
    decode = profile.get("decode")
    # Where a knee is in doubt, what was measured is still described.
    model = (decode.get("model") or decode.get("predicts")) if isinstance(decode, dict) else None
    if not isinstance(model, dict):
        raise ProfileError(
            f"step model {path}: this calibration could not fit a decode step time (its warnings "
            "say why); calibrate again with more batch sizes"
        )
    prompts = ("prefill_ms_per_token", "prefill_free_tokens")
    return {**model, **{name: profile.get(name) for name in prompts}}
