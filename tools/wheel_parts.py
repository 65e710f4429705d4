"""Wheels downloaded for another machine, unpacked without ballast, packed in small parts."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

LEFT_OUT = (
    # The FlashAttention library of SGLang: 1.1 GB that only its own fa3 backend loads.
    "sgl_kernel/flash_ops.abi3.so",
    "sgl_kernel/flashmla_ops.abi3.so",
    "sgl_kernel/infllm_ops.*",
    # Kernel sources, which compiled kernels make needless: nine tenths of FlashInfer. The
    # templates above them are read even where the kernel is compiled.
    "flashinfer/data/csrc/*/*",
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
