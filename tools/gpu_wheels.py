"""Packs what a GPU machine without a network lacks into parts that fit through a narrow door.

    python -m tools.gpu_wheels --out .wheels --arch 9.0a            # for twp_sglang.profile_step
    python -m tools.gpu_wheels --out .wheels --sglang 0.5.23        # and for the engine

Wheels are downloaded with pip for the other machine's Python, unpacked, cut down (what a
decode server never loads is left out) and packed into ``part-N.tar.gz`` of less than
``--part-mib`` each. FlashInfer's kernels are compiled here where nvcc is, because compiling
them there costs minutes of the loan. The commands for the other machine are printed.
docs/gpu.md says which versions belong together.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import NamedTuple


class Release(NamedTuple):
    """What belongs to one SGLang release, by its own metadata."""

    torch: str
    flashinfer: str
    kernels: str


RELEASES = {
    "0.5.17": Release(torch="2.11.0", flashinfer="0.6.15.post1", kernels="0.4.5"),
    "0.5.23": Release(torch="2.14.1", flashinfer="0.7.2", kernels="0.4.10"),
}
"""Only for the torch that the other machine has: compiled operators fit no other."""

PROFILER = ("apache-tvm-ffi==0.1.11", "nvidia-ml-py==13.615.71")
"""What FlashInfer imports beside what every PyTorch image has. TVM-FFI must be the one that
the kernels are compiled with."""

OURS = ("pydantic", "pydantic-core", "annotated-types", "typing-inspection", "control")
"""What this package needs beside that, in the versions that are installed here; ``control``
is for ``python -m controllers``."""

IMAGE = frozenset(
    [
        "torch",
        "torchaudio",
        "torchvision",
        "triton",
        "numpy",
        "scipy",
        "matplotlib",
        "rich",
        "requests",
        "tqdm",
        "jinja2",
        "markupsafe",
        "packaging",
        "filelock",
        "setuptools",
        "typing-extensions",
        "certifi",
        "charset-normalizer",
        "idna",
        "urllib3",
        "aiohttp",
        "ninja",
        "pillow",
        "psutil",
        "regex",
        "safetensors",
        "tokenizers",
        "transformers",
        "einops",
        "huggingface-hub",
        "sympy",
        "networkx",
        "mpmath",
        "fsspec",
        "pyyaml",
        "click",
    ]
)
"""What an image for PyTorch usually has; ``--have`` says it exactly."""

_SERVING_MODULES = (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.models.llama",
    "sglang.srt.layers.attention.flashinfer_backend",
)
"""What a server imports; what they import in turn is what it needs."""

LEFT_OUT = (
    # The FlashAttention library of SGLang: 1.1 GB that only its own fa3 backend loads.
    "sgl_kernel/flash_ops.abi3.so",
    "sgl_kernel/flashmla_ops.abi3.so",
    "sgl_kernel/infllm_ops.*",
    # Kernel sources, which compiled kernels make needless: nine tenths of FlashInfer.
    "flashinfer/data/csrc/*",
    "flashinfer/data/cutlass/*",
    "flashinfer/data/cccl/*",
    "flashinfer/data/spdlog/*",
    "flashinfer/data/include/*",
    # Tables of kernels that are no part of a decode step of a dense model.
    "flashinfer/fused_moe/backends/cudnn_frost/artifacts/*",
    "*/tests/*",
    "*.pyi",
)

SOURCES = tuple(pattern for pattern in LEFT_OUT if pattern.startswith("flashinfer/data/"))
"""Kept where the kernels are to be compiled on the other machine."""

_PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 24, 17)),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)


class CannotPack(RuntimeError):
    """Something is missing; the message says what."""


def pip_python() -> str:
    """An interpreter that has pip: ours, the one beside uv, or the system's.

    Raises:
        CannotPack: none has.
    """
    for candidate in (sys.executable, ".uv/bin/python", "python3"):
        try:
            done = subprocess.run(
                [candidate, "-m", "pip", "--version"], capture_output=True, check=False
            )
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    raise CannotPack("no pip: run this with an interpreter that has it (python3 -m venv ENV)")


def download(requirements: Sequence[str], python: str, folder: Path) -> list[Path]:
    """Wheels of exactly ``requirements``, for ``python`` on Linux x86-64.

    Raises:
        CannotPack: pip does not find one; its last line is in the message.
    """
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    done = subprocess.run(
        [
            *(pip_python(), "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--only-binary=:all:", "--implementation", "cp", "--python-version", python),
            *platforms,
            *("--dest", str(folder), *requirements),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise CannotPack(f"pip: {lines[-1] if lines else 'failed'}")
    return sorted(folder.glob("*.whl"))


def unpack(wheel: Path, site: Path, left_out: Sequence[str]) -> tuple[int, int]:
    """Unpack ``wheel`` into ``site`` without what ``left_out`` matches; (kept, all) bytes."""
    kept = total = 0
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            total += member.file_size
            if any(fnmatch(member.filename, pattern) for pattern in left_out):
                continue
            archive.extract(member, site)
            kept += member.file_size
    return kept, total


def parts(site: Path, most_bytes: int) -> Iterator[list[Path]]:
    """Files of ``site`` in groups whose packed size stays below ``most_bytes``.

    Raises:
        CannotPack: a file that does not fit alone.
    """
    group: list[Path] = []
    size = 0
    for path in sorted(p for p in site.rglob("*") if p.is_file()):
        packed = _packed_bytes(path)
        if packed > most_bytes:
            raise CannotPack(f"{path.relative_to(site)} takes {packed / 2**20:.0f} MiB packed")
        if size + packed > most_bytes:
            yield group
            group, size = [], 0
        group.append(path)
        size += packed
    if group:
        yield group


def _packed_bytes(path: Path) -> int:
    import zlib

    compressor = zlib.compressobj(6)
    size = 0
    with path.open("rb") as file:
        while block := file.read(2**20):
            size += len(compressor.compress(block))
    return size + len(compressor.flush()) + 1024  # with the header and its padding


def pack(site: Path, out: Path, most_bytes: int) -> list[Path]:
    """Write the parts; their paths."""
    for old in out.glob("part-*.tar.gz"):
        old.unlink()
    written = []
    for number, group in enumerate(parts(site, most_bytes), start=1):
        path = out / f"part-{number}.tar.gz"
        with tarfile.open(path, "w:gz", compresslevel=6) as archive:
            for file in group:
                archive.add(file, arcname=str(file.relative_to(site)))
        written.append(path)
    return written


def compile_here(sources: Path, site: Path, arguments: argparse.Namespace) -> bool:
    """Compile FlashInfer's kernels from ``sources`` into ``site``; False where that fails."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tools.flashinfer_kernels", "--model", arguments.model),
            *("--arch", arguments.arch, "--into", str(site), "--jobs", str(arguments.jobs)),
            *(("--no-ragged",) if arguments.no_ragged else ()),
        ],
        # This FlashInfer before any other; torch and TVM-FFI are this interpreter's.
        env={**os.environ, "PYTHONPATH": f"{sources}{os.pathsep}{Path.cwd()}"},
        check=False,
    )
    return done.returncode == 0


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def had(path: Path | None) -> frozenset[str]:
    """What the other machine has: ``pip list --format=freeze`` of it, or :data:`IMAGE`.

    Raises:
        OSError: the file cannot be read.
    """
    if path is None:
        return IMAGE
    lines = path.read_text("utf-8").splitlines()
    return frozenset(normal(re.split(r"[=@ ]", line, maxsplit=1)[0]) for line in lines if line)


def serving_requirements() -> list[str]:
    """Distributions that SGLang's server imports on this machine, pinned as they are here.

    Raises:
        CannotPack: SGLang cannot be imported here.
    """
    code = (
        "import sys, importlib, importlib.metadata as m\n"
        f"for name in {_SERVING_MODULES!r}: importlib.import_module(name)\n"
        "owners = m.packages_distributions()\n"
        "found = {d for n in list(sys.modules) for d in owners.get(n.partition('.')[0], ())}\n"
        "print('found:', *sorted(found))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    line = next((x for x in done.stdout.splitlines() if x.startswith("found:")), None)
    if line is None:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CannotPack(f"--sglang: what a server imports is asked of SGLang here: {last}")
    names = [name for name in line.split()[1:] if normal(name) != "twp-sglang"]
    return [f"{name}=={metadata.version(name)}" for name in names]


def requirements(sglang: str | None, have: frozenset[str]) -> list[str]:
    """What to download, pinned.

    Raises:
        CannotPack: a release of SGLang that is not in :data:`RELEASES`.
    """
    if sglang is not None and sglang not in RELEASES:
        raise CannotPack(f"--sglang {sglang}: known are {', '.join(RELEASES)}")
    release = RELEASES[sglang or "0.5.23"]
    fixed = [f"flashinfer-python=={release.flashinfer}", *PROFILER]
    wanted = [*PROFILER[1:], *(f"{name}=={metadata.version(name)}" for name in OURS)]
    if sglang is not None:
        fixed += [f"sglang=={sglang}", f"sglang-kernel=={release.kernels}"]
        wanted += serving_requirements()
    chosen = {normal(item.split("==")[0]): item for item in wanted}
    chosen = {name: item for name, item in chosen.items() if name not in have}
    chosen |= {normal(item.split("==")[0]): item for item in fixed}
    skipped = ("nvidia-c", "nvidia-n", "nvidia-t", "cuda-", "sglang-cpu")
    return [item for name, item in chosen.items() if not name.startswith(skipped)]


def commands(written: Sequence[Path], *, compiled: bool, engine: bool) -> list[str]:
    """What to run on the other machine, one line each."""
    site = "/tmp/site"
    lines = ["# one transfer per part, then on the machine with the GPU:", f"mkdir -p {site}"]
    lines += [f"tar -xzf {path} -C {site}" for path in written]
    lines.append(f"export PYTHONPATH={site}:$PWD")
    if not compiled:
        lines.append("python3 -m tools.flashinfer_kernels    # all cores, some minutes")
    lines.append(
        "python3 -m twp_sglang.profile_step --model llama-3.2-3b --backend flashinfer "
        "--out $OUT/step.json"
    )
    if engine:
        lines.append(
            "python3 -m analysis.flashinfer_run --model dummy:llama-3.2-3b --minutes 8 "
            "--out $OUT/run"
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 packed, 2 something is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_wheels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for the parts; keep it out of git")
    add("--python", default="3.12", help="the other machine's Python [3.12]")
    add("--arch", default="9.0a", help="its compute capability [9.0a: H100, H200]")
    add("--model", default="llama-3.2-3b", help="shape whose kernels are compiled [llama-3.2-3b]")
    add("--sglang", metavar="VERSION", help=f"the engine too: {', '.join(RELEASES)}")
    add("--have", type=Path, metavar="FILE", help="pip list --format=freeze of the other machine")
    add("--no-compile", action="store_true", help="pack kernel sources in place of kernels")
    add("--no-ragged", action="store_true", help="no Hopper prefill kernels (--extend paged)")
    add("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="compilers at a time")
    add("--part-mib", type=float, default=56.0, help="largest part [56, of 64 with the checkout]")
    arguments = parser.parse_args(argv)
    try:
        return _pack(arguments)
    except (CannotPack, OSError) as error:
        print(f"gpu_wheels: {error}", file=sys.stderr)
        return 2


def _pack(arguments: argparse.Namespace) -> int:
    wanted = requirements(arguments.sglang, had(arguments.have))
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="twp-wheels-") as name:
        wheels, site = Path(name) / "wheels", Path(name) / "site"
        wheels.mkdir()
        found = download(wanted, arguments.python, wheels)
        compiled = False
        if not arguments.no_compile:
            # A place that stays: nvcc's results are kept by the paths of the sources.
            sources = arguments.out / "flashinfer-sources"
            for wheel in found:
                if wheel.name.startswith(("flashinfer_python", "nvidia_ml_py")):
                    unpack(wheel, sources, ())
            compiled = compile_here(sources.resolve(), site, arguments)
            if not compiled:
                print("gpu_wheels: kernels are packed as sources, to be compiled there")
        for wheel in found:
            kept, total = unpack(wheel, site, [p for p in LEFT_OUT if compiled or p not in SOURCES])
            print(f"{wheel.name}: {kept / 2**20:.1f} of {total / 2**20:.1f} MiB")
        written = pack(site, arguments.out, int(arguments.part_mib * 2**20))
    for path in written:
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    print("\n".join(commands(written, compiled=compiled, engine=arguments.sglang is not None)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
