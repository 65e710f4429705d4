"""What can go wrong on a machine that is lent for minutes, each as one line that helps."""

from __future__ import annotations

import re

from twp_sglang.profiling.fitting import FitError
from twp_sglang.profiling.flashinfer_attention import FlashInferMissing
from twp_sglang.profiling.model_shape import ShapeError
from twp_sglang.profiling.step_points import PlanError

EXIT_UNUSABLE = 2
"""Bad input, or a machine that cannot do it; something has to change first."""


class MachineUnfit(RuntimeError):
    """The machine cannot be measured on; the message says why and what to do."""


_KNOWN = (
    (
        r"out of memory|can't allocate memory|not enough memory|bad_alloc",
        "out of memory ({detail}); give a smaller --model, smaller --batches or --contexts, or "
        "free the device",
    ),
    (
        r"no kernel image is available|not compatible with the current PyTorch|sm_\d+ is not "
        r"compatible|No supported CUDA architectures|does not support compute capability|"
        r"[Uu]nsupported (?:gpu )?arch|compute capability",
        "the kernels do not run on this GPU's architecture ({detail}); install a torch and a "
        "FlashInfer built for it, or take --backend sdpa",
    ),
    (
        r"driver on your system is too old|CUDA driver version is insufficient|forward "
        r"compatibility was attempted",
        "the GPU driver is too old for this torch ({detail}); update the driver, or install a "
        "torch built for an older CUDA",
    ),
    (
        r"all CUDA-capable devices are busy|devices? (?:is|are) busy|exclusive[- ]process",
        "the GPU is busy ({detail}); wait until it is free",
    ),
    (
        r"Ninja build failed|nvcc|Could not find nvcc",
        "FlashInfer could not compile its kernels ({detail}); docs/gpu.md says what they need",
    ),
    (
        r"illegal memory access|misaligned address|device-side assert",
        "a kernel failed on the device ({detail}); please report this with the command",
    ),
    (
        r"No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device",
        "there is no usable GPU ({detail}); take --backend sdpa --device cpu",
    ),
)


def explain(error: BaseException) -> str | None:
    """One line for an error that a machine can cause; None for what is a fault of ours."""
    if isinstance(error, (MachineUnfit, FlashInferMissing, ShapeError, PlanError, FitError)):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory on the host; give a smaller --model"
    if not isinstance(error, Exception):
        return None
    text = str(error)
    for pattern, line in _KNOWN:
        found = re.search(pattern, text)
        if found:
            return line.format(detail=_line_with(text, found.start()))
    return None


def _line_with(text: str, place: int) -> str:
    """The line of ``text`` around ``place``, shortened."""
    start = text.rfind("\n", 0, place) + 1
    end = text.find("\n", place)
    line = text[start : end if end >= 0 else len(text)].strip()
    sentence = re.split(r"(?<=[.!?])\s", line[max(0, place - start - 80) :])
    short = " ".join(sentence[:2]).strip().rstrip(".")
    return short if len(short) <= 160 else short[:157] + "..."
