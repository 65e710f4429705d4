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
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.wheel_choice import RELEASES, had, requirements
from tools.wheel_parts import LEFT_OUT, SOURCES, CannotPack, download, pack, unpack


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
                done = sources / f".{wheel.name}.unpacked"
                if (
                    wheel.name.startswith(("flashinfer_python", "nvidia_ml_py"))
                    and not done.exists()
                ):
                    unpack(wheel, sources, ())
                    done.touch()  # a second unpacking would make every source newer
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
