"""How the engine is started on this machine, and whether it can be at all."""

from __future__ import annotations

import importlib.util
import json
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from analysis.judging import tiny_model
from analysis.machine_run.settings import RunSettings
from twp_sglang.profiling.model_shape import ModelShape, model_shape

GPU_CONTEXT_TOKENS = "16384"
"""Longest request of a dummy model on a GPU: SGLang's table of requests has this many
columns, and the traffic needs a tenth of it."""


class SetUpError(RuntimeError):
    """The engine cannot be started here; the message says why and what to do."""


class EngineSetUp(NamedTuple):
    """What is the same for every server of a run; ``shape`` is None where none is profiled."""

    gpu: bool
    flags: tuple[str, ...]
    dummy: bool
    shape: ModelShape | None
    profile_words: tuple[str, ...]
    versions: dict[str, str]


def on_gpu(settings: RunSettings) -> bool:
    """Whether the run uses a GPU.

    Raises:
        SetUpError: one is asked for and there is none, or torch is missing.
    """
    if settings.platform == "cpu":
        return False
    if importlib.util.find_spec("torch") is None:
        raise SetUpError("torch is not installed: make setup")
    import torch

    if torch.cuda.is_available():
        return True
    if settings.platform == "gpu":
        raise SetUpError("--platform gpu: torch finds no usable GPU; leave it out for a CPU run")
    return False


def engine_set_up(settings: RunSettings, folder: Path, *, gpu: bool) -> EngineSetUp:
    """The flags of every server, with the model's folder made where it is a dummy.

    Raises:
        ShapeError: no such shape.
        OSError: the folder cannot be written.
    """
    flags: list[str] = []
    shape = None
    if settings.dummy is not None:
        shape = model_shape(settings.dummy)
    elif Path(settings.model).is_dir():
        shape = model_shape(settings.model)
    if settings.dummy == "tiny" and not gpu:
        flags += tiny_model.flags(folder / "model")
    elif settings.dummy is not None and shape is not None:
        path = folder / "model"
        path.mkdir(parents=True, exist_ok=True)
        config = shape.config_json("bfloat16" if gpu else "float32")
        (path / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        flags += ["--model-path", str(path), "--load-format", "dummy", "--skip-tokenizer-init"]
        if gpu:
            flags += ["--context-length", GPU_CONTEXT_TOKENS]
    else:
        flags += ["--model-path", settings.model]
    if gpu:
        flags += ["--attention-backend", settings.attention_backend]
    if any(word.partition("=")[0] == "--twp-emulate" for word in settings.engine_flags):
        shape = None  # a profile of this machine says nothing of the one that is emulated
    profiled = settings.dummy or settings.model
    backend = "flashinfer" if gpu and settings.attention_backend == "flashinfer" else "sdpa"
    return EngineSetUp(
        gpu=gpu,
        flags=(*flags, *settings.engine_flags),
        dummy=settings.dummy is not None,
        shape=shape,
        profile_words=("--model", profiled, "--backend", backend)
        + (() if gpu else ("--device", "cpu", "--threads", "1")),
        versions=_versions(),
    )


def engine_missing(settings: RunSettings, *, gpu: bool) -> str | None:
    """Why no engine can be started here, in one line; None where nothing speaks against it."""
    if importlib.util.find_spec("sglang") is None:
        return (
            "SGLang is not installed: only the step profile can be measured (docs/gpu.md says how "
            "SGLang comes onto a machine without a network)"
        )
    if (
        gpu
        and settings.attention_backend == "flashinfer"
        and importlib.util.find_spec("flashinfer") is None
    ):
        return (
            "--attention-backend flashinfer: FlashInfer is not installed: pip install "
            "flashinfer-python, or take --attention-backend triton"
        )
    return None


def _versions() -> dict[str, str]:
    found = {}
    for name in ("twp-sglang", "sglang", "torch", "flashinfer-python", "sglang-kernel", "triton"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
