"""A CPU platform for stock SGLang, so that tests and the demo need no accelerator.

SGLang finds this module through the entry-point group ``sglang.srt.platforms`` and calls
:func:`activate`, which answers None wherever an accelerator is present, another platform
is selected, or SGLang's own CPU engine is asked for: installing the package changes
nothing there.

It is for development and tests. Attention is torch's own, without a paged kernel, so
absolute figures say nothing about production hardware.
"""

from __future__ import annotations

import importlib.util
import logging
import os

ENTRY_POINT = "twp_cpu_reference"
"""Name in the entry-point group, the value of SGLANG_PLATFORM that selects it."""

PLATFORM_CLASS = "twp_sglang.platforms.cpu_reference_platform.CpuReferencePlatform"

# Accelerator stacks that torch does not know of itself but that announce themselves as
# a Python package; importing them here would initialise them.
_FOREIGN_ACCELERATOR_PACKAGES = ("torch_npu", "torch_xla", "habana_frameworks", "torchada")

logger = logging.getLogger(__name__)


def accelerator_present() -> str | None:
    """Name the accelerator that torch or an installed stack offers, or None."""
    import torch

    if torch.cuda.is_available():
        return "cuda" if torch.version.hip is None else "rocm"
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return "xpu"
    if torch.backends.mps.is_available():
        return "mps"
    for package in _FOREIGN_ACCELERATOR_PACKAGES:
        if importlib.util.find_spec(package) is not None:
            return package
    return None


def other_platform_selected() -> str | None:
    """Say which setting asks for another platform than this one, or None."""
    selected = os.environ.get("SGLANG_PLATFORM", "")
    if selected and selected != ENTRY_POINT:
        return f"SGLANG_PLATFORM={selected}"
    if os.environ.get("SGLANG_USE_CPU_ENGINE", "0") == "1":
        return "SGLANG_USE_CPU_ENGINE=1"
    return None


def activate() -> str | None:
    """Entry point: qualified name of the platform class, or None to stay out of the way."""
    reason = other_platform_selected() or accelerator_present()
    if reason is not None:
        logger.debug("TWP CPU reference platform stays inactive: %s", reason)
        return None
    return PLATFORM_CLASS
