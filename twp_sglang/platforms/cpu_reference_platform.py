"""The platform class behind :mod:`twp_sglang.platforms.cpu_reference`; imports SGLang."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

logger = logging.getLogger(__name__)

NOTICE = (
    "TWP CPU reference platform: stock SGLang on torch's own CPU kernels, for development "
    "and tests only; its absolute speed says nothing about production hardware."
)

# Set where the person left SGLang's default (None or False). A flag that was given wins.
_DEFAULTS: dict[str, tuple[Any, str]] = {
    "device": ("cpu", "there is no accelerator"),
    "attention_backend": ("torch_native", "the only backend without a GPU kernel"),
    "sampling_backend": ("pytorch", "FlashInfer's sampler needs CUDA"),
    "disable_cuda_graph": (True, "no CUDA"),
    "disable_overlap_schedule": (
        True,
        "a CPU forward is synchronous: overlapping buys nothing and would charge each "
        "step with its successor's time",
    ),
}
_UNSET = (None, False, "auto")

KEEP_OVERLAP = "TWP_CPU_REFERENCE_OVERLAP"
"""Set to 1, SGLang's overlap scheduling stays on: tests take the code path of a GPU that way,
at the price of step times that belong to the step after."""


class CpuReferencePlatform(CpuDeviceMixin, SRTPlatform):
    """Out-of-tree CPU platform: default capabilities, torch-native attention, gloo."""

    _enum = PlatformEnum.OOT
    capabilities = PlatformCapabilities()

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Fill what a CPU needs; called by SGLang while it resolves the arguments."""
        logger.warning(NOTICE)
        for name, (value, why) in _DEFAULTS.items():
            if name == "disable_overlap_schedule" and os.environ.get(KEEP_OVERLAP) == "1":
                continue
            if getattr(server_args, name, None) in _UNSET:
                logger.info("CPU reference platform sets %s=%s: %s", name, value, why)
                setattr(server_args, name, value)
        # bfloat16 matmuls are emulated on most CPUs, and float16 lacks kernels.
        if getattr(server_args, "dtype", "auto") == "auto":
            server_args.dtype = "float32"

    def get_device(self, device_id: int = 0) -> str:
        """``"cpu"`` as text: SGLang splits it at ":" when it fills the --device default."""
        return "cpu"

    def get_default_attention_backend(self) -> str:
        """torch_native: the only attention backend without a device kernel."""
        return "torch_native"

    def is_pin_memory_available(self, device: Any = None) -> bool:
        """There is no device to pin host memory for."""
        return False

    def get_torch_profiler_activity_str(self) -> str:
        """Name SGLang's profiler passes to torch."""
        return "CPU"

    def get_torch_profiler_activity(self) -> torch.profiler.ProfilerActivity:
        """torch's own CPU activity."""
        return torch.profiler.ProfilerActivity.CPU
