"""Which wheels a GPU machine lacks: for the profiler, and for an engine of one release."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from tools.wheel_parts import CannotPack


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
