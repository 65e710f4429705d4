"""What the engine runs on, in words that tell two machines apart."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from pydantic import Field

from controllers.laws.base import FrozenModel

_QUERY_TIMEOUT_S = 10.0


class Machine(FrozenModel):
    """The machine of the server; fields are None where the client cannot see them."""

    cpu: str | None = Field(default=None, description="processor name")
    cores: int | None = Field(default=None, description="cores this process may use")
    gpus: tuple[str, ...] = Field(default=(), description="accelerators of the machine")
    os: str | None = None
    omp_num_threads: str | None = Field(
        default=None, description="OMP_NUM_THREADS here; a CPU engine's step time hangs on it"
    )


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        gpus=_gpu_names(),
        os=f"{platform.system()} {platform.release()}",
        omp_num_threads=os.environ.get("OMP_NUM_THREADS"),
    )


def remote_machine(accelerator: str | None, count: int | None) -> Machine:
    """What a server elsewhere says of itself."""
    return Machine(gpus=(accelerator,) * (count or 1) if accelerator else ())


def _cpu_name() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or None


def _gpu_names() -> tuple[str, ...]:
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_QUERY_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in found.stdout.splitlines() if line.strip())
