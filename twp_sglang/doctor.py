"""``python -m twp_sglang.doctor``: what this machine has, what fits, what does not, what to do.

Exit code 0 when TWP can serve here, 1 when something is in the way.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

Level = Literal["ok", "note", "problem"]

MIN_FREE_GB = 2.0
"""The demo model, its conversion and logs need about 1 GB."""


class Finding(NamedTuple):
    """One line of the report."""

    level: Level
    subject: str
    detail: str


def examine() -> list[Finding]:
    """Every check, in the order of what depends on what."""
    return [finding for check in _CHECKS for finding in check()]


def _python() -> list[Finding]:
    version = platform.python_version()
    good = (3, 11) <= sys.version_info[:2] < (3, 13)
    return [
        Finding("ok", "python", version)
        if good
        else Finding("problem", "python", f"{version}: use 3.11 or 3.12")
    ]


def _packages() -> list[Finding]:
    found = []
    for name in ("twp-sglang", "sglang", "torch", "transformers", "flashinfer-python"):
        try:
            found.append(Finding("ok", name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            if name == "sglang":
                found.append(
                    Finding("problem", name, "not installed: make setup, or the engine extra")
                )
            elif name == "flashinfer-python":
                found.append(Finding("note", name, "not installed: needed on a GPU only"))
            else:
                found.append(Finding("problem", name, "not installed: make setup"))
    return found


def _hooks() -> list[Finding]:
    from patches.sglang_0_5.versions import judge
    from patches.sources import InstalledSource, SourceError

    try:
        verdict = judge(InstalledSource())
    except SourceError as error:
        return [Finding("problem", "hooks", str(error))]
    if not verdict.ok:
        return [Finding("problem", "hooks", "; ".join(verdict.reasons()))]
    count = len(verdict.findings)
    if not verdict.tried:
        return [
            Finding(
                "note", "hooks", f"all {count} fit sglang {verdict.version}, which was never tried"
            )
        ]
    return [Finding("ok", "hooks", f"all {count} fit sglang {verdict.version}")]


def _device() -> list[Finding]:
    if importlib.util.find_spec("torch") is None:
        return [Finding("problem", "device", "torch is not installed: make setup")]
    from twp_sglang.platforms.cpu_reference import accelerator_present, other_platform_selected

    accelerator = accelerator_present()
    if accelerator is not None:
        import torch

        name = torch.cuda.get_device_name() if accelerator in ("cuda", "rocm") else accelerator
        return [Finding("ok", "device", name)]
    selected = other_platform_selected()
    if selected is not None:
        return [Finding("note", "device", f"no accelerator, and {selected} is set")]
    return [
        Finding(
            "note",
            "device",
            "no accelerator: the CPU reference platform serves (development and tests only)",
        )
    ]


def _environment() -> list[Finding]:
    found = []
    plugins = os.environ.get("SGLANG_PLUGINS")
    if plugins:
        found.append(
            Finding("note", "SGLANG_PLUGINS", f"{plugins}: does not touch TWP, which is no plug-in")
        )
    for name in ("SGLANG_USE_MLX", "SGLANG_RUST_SERVER", "TWP_FAULT_INJECTION"):
        value = os.environ.get(name, "")
        if value not in ("", "0"):
            found.append(Finding("problem", name, f"{value}: unset it"))
    return found


def _disk() -> list[Finding]:
    free_gb = shutil.disk_usage(Path.home()).free / 1e9
    level: Level = "ok" if free_gb >= MIN_FREE_GB else "problem"
    return [Finding(level, "disk", f"{free_gb:.0f} GB free in the home folder")]


_CHECKS: tuple[Callable[[], list[Finding]], ...] = (
    _python,
    _packages,
    _hooks,
    _device,
    _environment,
    _disk,
)


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m twp_sglang.doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    arguments = parser.parse_args(argv)
    findings = examine()
    if arguments.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        width = max(len(finding.subject) for finding in findings)
        for finding in findings:
            print(f"{finding.level:8} {finding.subject:{width}}  {finding.detail}")
    return 1 if any(finding.level == "problem" for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
