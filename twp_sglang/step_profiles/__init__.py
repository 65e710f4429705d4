"""Named step models as plain numbers, one JSON file each, with source and limits.

The simulator and the emulated engine read the same files.
"""

from __future__ import annotations

import json
from pathlib import Path

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
    """A profile from a JSON file: ours, or one that ``calibrate`` wrote.

    Besides the form of the files here, a flat object of step terms is taken
    (``l_min_ms``, ``b0``, ``alpha_ms``, ``a_ms``, ``kappa_ms_per_token``,
    ``prefill_ms_per_token``), alone or under the key ``latency``.

    Raises:
        ProfileError: the file cannot be read, or holds no step model.
    """
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"step model {path}: cannot be read ({error})") from None
    except json.JSONDecodeError as error:
        raise ProfileError(f"step model {path}: is not JSON ({error})") from None
    if not isinstance(loaded, dict):
        raise ProfileError(f"step model {path}: must hold one JSON object")
    if "step" not in loaded:
        terms = loaded["latency"] if isinstance(loaded.get("latency"), dict) else loaded
        known = {key: terms[key] for key in AffineStep.model_fields if key in terms}
        loaded = {"name": path.stem, "step": {**known, "kind": "affine"}}
    try:
        return StepProfile.model_validate(loaded)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ProfileError(
            f"step model {path}: {place} = {first.get('input')!r}: {first['msg']}"
        ) from None
