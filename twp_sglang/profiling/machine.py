"""What the profiler runs on, and whether it may: architecture, driver, memory, neighbours."""

from __future__ import annotations

import importlib
import os
import platform
from typing import Any

import torch

from controllers.laws.base import FrozenModel
from twp_sglang.profiling.faults import MachineUnfit

_OLDEST_CAPABILITY = (7, 5)
"""FlashInfer's oldest architecture (Turing); bfloat16 wants 8.0."""

_BUSY_PERCENT = 10
"""An idle GPU shows 0; a display or a monitor now and then a few percent."""

_SPARE = 0.85
"""Share of the free memory that may be planned with: workspaces, graphs and the allocator's
fragments take the rest."""


class MachineRecord(FrozenModel):
    """What was measured on, for the result file."""

    device: str
    device_name: str
    capability: str = ""
    driver: str = ""
    torch: str
    cuda: str = ""
    flashinfer: str = ""
    python: str
    threads: int
    host: str
    notes: tuple[str, ...] = ()


def choose_device(wanted: str) -> torch.device:
    """``auto``, ``cuda`` or ``cpu`` as a device.

    Raises:
        MachineUnfit: ``cuda`` is asked for and cannot be had.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if wanted == "cuda":
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().splitlines()[0] if str(error) else "no reason given"
            raise MachineUnfit(f"--device cuda: torch finds no usable GPU: {reason}") from None
        raise MachineUnfit("--device cuda: torch finds no usable GPU")
    return torch.device("cpu")


def check_device(device: torch.device, dtype: torch.dtype, *, allow_busy: bool) -> tuple[str, ...]:
    """Refuse a GPU on which the numbers would mean nothing; notes on what could not be told.

    Raises:
        MachineUnfit: too old an architecture, or other work on the GPU.
    """
    if device.type != "cuda":
        return ()
    capability = torch.cuda.get_device_capability(device)
    if capability < _OLDEST_CAPABILITY:
        raise MachineUnfit(
            f"{torch.cuda.get_device_name(device)} has compute capability "
            f"{capability[0]}.{capability[1]}; FlashInfer starts at 7.5: take --backend sdpa "
            "--device cpu, or another GPU"
        )
    if dtype == torch.bfloat16 and capability < (8, 0):
        raise MachineUnfit(
            f"{torch.cuda.get_device_name(device)} (compute capability {capability[0]}."
            f"{capability[1]}) has no bfloat16 units; take a GPU of capability 8.0 or later"
        )
    busy, note = neighbours(_index_of(device))
    if busy and not allow_busy:
        raise MachineUnfit(
            f"the GPU is busy: {busy}; wait until it is free, or measure beside it with "
            "--allow-busy and distrust the numbers"
        )
    return tuple(text for text in (f"busy: {busy}" if busy else "", note) if text)


def neighbours(index: int, nvml: Any = None) -> tuple[str, str]:
    """(what else runs on GPU ``index``, or "", and a note where that cannot be told)."""
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return "", "whether others use the GPU was not checked: nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        own = os.getpid()
        others = [p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid != own]
        load = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    except nvml.NVMLError as error:
        return "", f"whether others use the GPU was not checked: {error}"
    if load > _BUSY_PERCENT:
        whose = f", processes {', '.join(map(str, others))}" if others else ""
        return f"utilisation {load} %{whose}", ""
    return "", f"idle processes on the GPU: {', '.join(map(str, others))}" if others else ""


def _index_of(device: torch.device) -> int:
    """NVML's number of torch's device, which CUDA_VISIBLE_DEVICES may have renumbered."""
    number = device.index or 0
    visible = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if number < len(visible) and visible[number].isdigit():
        return int(visible[number])
    return number


def free_bytes(device: torch.device) -> int:
    """Memory that may be planned with."""
    if device.type == "cuda":
        return int(_SPARE * torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(_SPARE * int(line.split()[1]) * 1024)
    except OSError:
        pass
    return int(_SPARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def record(device: torch.device, flashinfer: Any, notes: tuple[str, ...]) -> MachineRecord:
    """What this machine is."""
    gpu = device.type == "cuda"
    capability = torch.cuda.get_device_capability(device) if gpu else None
    return MachineRecord(
        device=device.type,
        device_name=torch.cuda.get_device_name(device) if gpu else _cpu_name(),
        capability="" if capability is None else f"{capability[0]}.{capability[1]}",
        driver=_driver() if gpu else "",
        torch=str(torch.__version__),
        cuda=str(torch.version.cuda or "") if gpu else "",
        flashinfer="" if flashinfer is None else str(flashinfer.__version__),
        python=platform.python_version(),
        threads=torch.get_num_threads(),
        host=platform.platform(),
        notes=notes,
    )


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _driver() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:
        return ""
