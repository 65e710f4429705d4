"""Compiles the few FlashInfer kernels that a model needs; no GPU is needed for it, nvcc is.

    python -m tools.flashinfer_kernels --model llama-3.2-3b --arch 9.0a --into SITE

compiles for compute capability 9.0 (H100, H200) and puts the libraries into SITE/flashinfer,
where FlashInfer looks before it compiles anything itself. Without ``--into`` they stay in
FlashInfer's own cache: on the machine with the GPU that warms it with all cores at once.
FlashInfer, torch, nvcc and ninja must be there (docs/gpu.md).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from twp_sglang.profiling.model_shape import ModelShape, ShapeError, model_shape

_TENSOR_CORE_GROUP = 4
"""As SGLang and the profiler choose: from there on decode runs the prefill kernels."""


class CannotCompile(RuntimeError):
    """Something is missing; the message says what."""


def specs_for(shape: ModelShape, architecture: str, *, ragged: bool = True) -> list[Any]:
    """FlashInfer's build specifications for bfloat16 on ``architecture``.

    Paged prefill (fa2) serves prompts after a prefix and, with wide groups, decode; decode
    kernels serve narrow groups; the ragged prefill of Hopper (fa3) takes four fifths of the
    time to compile and is left out where only ``--extend paged`` will run.
    """
    import torch
    from flashinfer.jit import (
        activation,
        cascade,
        norm,
        rope,
    )
    from flashinfer.jit.attention import modules as attention

    kind, index, head = torch.bfloat16, torch.int32, shape.head_dim
    common = (kind, kind, kind, index, head, head, 0, False, False)
    # From 0.7 on the wrappers load a module of their own for pools of equal strides.
    paged = getattr(
        attention, "_gen_batch_prefill_primary_module", attention.gen_batch_prefill_module
    )
    specs = [
        activation.gen_act_and_mul_module("silu"),
        cascade.gen_cascade_module(),
        norm.gen_norm_module(),
        rope.gen_rope_module(),
        paged("fa2", *common, False),
    ]
    if shape.heads // shape.kv_heads < _TENSOR_CORE_GROUP:
        specs.append(attention.gen_batch_decode_module(*common))
    if ragged and architecture.startswith("9."):
        specs.append(attention.gen_batch_prefill_module("fa3", *common, False))
    return specs


def prepare_environment(architecture: str, jobs: int, scratch: Path) -> None:
    """Set what FlashInfer's build reads; before it is imported.

    Raises:
        CannotCompile: no nvcc, no ninja, or no headers of cuBLAS.
    """
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    home = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda")
    if not (home / "bin" / "nvcc").exists():
        home = Path(nvcc).resolve().parents[1]
    if not (home / "bin" / "nvcc").exists():
        raise CannotCompile("no nvcc: install the CUDA toolkit, or set CUDA_HOME")
    if shutil.which("ninja") is None:
        raise CannotCompile("no ninja: pip install ninja")
    os.environ["CUDA_HOME"] = str(home)
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = architecture
    os.environ["MAX_JOBS"] = str(jobs)
    if not (home / "include" / "cublasLt.h").exists():
        # The norm kernels include it; torch's own packages bring it.
        found = next(
            (
                place / "nvidia" / "cu13" / "include"
                for place in map(Path, sys.path)
                if (place / "nvidia" / "cu13" / "include" / "cublasLt.h").exists()
            ),
            None,
        )
        if found is None:
            raise CannotCompile(
                f"no cublasLt.h in {home}/include, and no nvidia-cublas package: install one"
            )
        _add("FLASHINFER_EXTRA_CUDAFLAGS", f"-isystem {found}")
    if not any((home / "lib64" / "stubs").glob("libcuda.so*")):
        _add("FLASHINFER_EXTRA_LDFLAGS", f"-L{_driver_stub(scratch)}")


def _driver_stub(scratch: Path) -> Path:
    """A folder with an empty libcuda: the linker wants one, the driver is on the GPU machine."""
    source = scratch / "empty.c"
    source.write_text("", encoding="ascii")
    library = scratch / "libcuda.so"
    subprocess.run(
        ["cc", "-shared", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)], check=True
    )
    return scratch


def _add(variable: str, words: str) -> None:
    os.environ[variable] = f"{os.environ.get(variable, '')} {words}".strip()


def build(shape: ModelShape, architecture: str, into: Path | None, *, ragged: bool) -> list[Path]:
    """Compile in parallel; the libraries, copied into ``into`` where it is given."""
    from flashinfer.jit import build_jit_specs

    specs = specs_for(shape, architecture, ragged=ragged)
    build_jit_specs(specs, verbose=False, skip_prebuilt=False)
    libraries = []
    for spec in specs:
        library = Path(spec.jit_library_path)
        if into is not None:
            place = into / "flashinfer" / "data" / "aot" / spec.name / library.name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(library, place)
            library = place
        libraries.append(library)
    return libraries


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 compiled, 2 something is missing."""
    parser = argparse.ArgumentParser(prog="python -m tools.flashinfer_kernels", description=__doc__)
    parser.add_argument("--model", default="llama-3.2-3b", help="shape, as profile_step takes it")
    parser.add_argument("--arch", default="9.0a", help="compute capability [9.0a: H100, H200]")
    parser.add_argument("--into", type=Path, help="site folder whose flashinfer receives them")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--no-ragged", action="store_true", help="only for --extend paged")
    arguments = parser.parse_args(argv)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="twp-kernels-") as scratch:
        try:
            shape = model_shape(arguments.model)
            prepare_environment(arguments.arch, arguments.jobs, Path(scratch))
            libraries = build(shape, arguments.arch, arguments.into, ragged=not arguments.no_ragged)
        except (CannotCompile, ShapeError, ModuleNotFoundError, RuntimeError) as error:
            print(f"flashinfer_kernels: {str(error).splitlines()[0]}", file=sys.stderr)
            return 2
    for library in libraries:
        print(f"{library.stat().st_size / 2**20:6.2f} MiB  {library.name}")
    print(f"{len(libraries)} libraries for {arguments.arch} in {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
