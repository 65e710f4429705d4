"""The profile: the JSON file that calibrate writes and launch_server reads."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from controllers.laws.base import FrozenModel
from twp_sglang.atomic_write import write_text
from twp_sglang.calibration.decode_fit import DecodeFit
from twp_sglang.calibration.machine import Machine
from twp_sglang.calibration.prefill_fit import PrefillFit
from twp_sglang.calibration.window import NominalWindow

SCHEMA: Literal["twp-profile/1"] = "twp-profile/1"


class EngineRecord(FrozenModel):
    """The server that was measured."""

    model: str
    sglang_version: str
    device: str | None
    attention_backend: str | None
    dtype: str | None
    tp_size: int
    kv_tokens: int | None
    chunk_tokens: int | None
    interleaving: str = Field(description="how chunks and decode steps alternate")
    policy: str | None = Field(description="TWP policy it ran under; None for stock SGLang")
    emulated: bool = Field(description="the server's own word that step times are not real")


class DecodeMeasurement(FrozenModel):
    """One visit of a batch size."""

    batch: int
    context_tokens: int = Field(description="prompt tokens of each request")
    round: int
    n: int = Field(description="decode steps timed")
    median_ms: float
    iqr_ms: float
    kv_tokens: float = Field(description="median KV tokens held")
    residual_percent: float | None = Field(description="median against the model")
    used: bool = Field(description="False for a disturbed visit, which the fit left out")


class PrefillMeasurement(FrozenModel):
    """One prompt length: all its probes."""

    tokens: int
    chunks: int
    decoding: int
    n: int = Field(description="probes")
    median_ms: float
    iqr_ms: float
    residual_percent: float | None


class Profile(FrozenModel):
    """What was measured, where, and what follows.

    ``launch_server --twp-profile`` takes the numbers up to ``prefill_free_tokens``; None
    leaves its own default in force. Policy slo plans with

        c + a B + alpha (B - b0)+ + kappa KV + prefill (tokens - free)+

    which is handed over as a whole or not at all.
    """

    schema_version: Literal["twp-profile/1"] = SCHEMA
    l_min_ms: float | None = Field(description="decode step time at the knee, or at b0")
    b0: int | None = Field(description="saturation batch")
    alpha_ms: float | None = Field(description="slope above b0 beyond a_ms, ms per request")
    h0_tokens: float | None = Field(description="nominal window, see window.explanation")
    c_ms: float | None = Field(default=None, description="constant of the step, ms")
    a_ms: float | None = Field(default=None, description="slope at every batch, ms per request")
    kappa_ms_per_token: float | None = Field(default=None, description="ms per KV token")
    prefill_ms_per_token: float | None = Field(description="ms per prompt token")
    prefill_free_tokens: float | None = Field(
        default=None, description="prompt tokens per step that cost nothing"
    )
    warnings: tuple[str, ...] = Field(description="read these before using the numbers")
    complete: bool = Field(description="every planned point was measured")
    decode: DecodeFit | None = Field(description="None where the data cannot carry a fit")
    prefill: PrefillFit | None
    window: NominalWindow
    engine: EngineRecord
    machine: Machine
    date: str
    command: str
    source: Literal["trace", "stream"] = Field(description="where step times came from")
    decode_points: tuple[DecodeMeasurement, ...]
    prefill_points: tuple[PrefillMeasurement, ...]


def write_profile(profile: Profile, path: Path) -> None:
    """Write ``profile``, whole or not at all.

    Raises:
        OSError: the folder cannot be written.
    """
    write_text(path, profile.model_dump_json(indent=1) + "\n")


def read_profile(path: Path) -> Profile:
    """Read a file of :func:`write_profile`.

    Raises:
        ValueError: it is missing or no such file; the message says why.
    """
    try:
        return Profile.model_validate_json(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "file"
        raise ValueError(f"{path}: not a profile ({SCHEMA}): {place}: {first['msg']}") from None
