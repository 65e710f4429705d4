"""The structure document is up to date, and imports point the way it says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import structure

ROOT = structure.ROOT

FORBIDDEN = {
    "controllers": ("twp_sglang", "patches", "analysis", "sglang", "time"),
    "twp_sglang/scheduling": ("patches", "analysis", "sglang", "time", "twp_sglang.serving"),
    "twp_sglang/simulator": ("patches", "analysis", "sglang", "twp_sglang.serving"),
    "patches": ("analysis", "twp_sglang.serving"),
    "twp_sglang": ("analysis",),
}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_module_list_is_up_to_date() -> None:
    text = structure.DOCUMENT.read_text(encoding="utf-8")
    assert text == structure.updated(text), "run python -m tools.structure"


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_point_one_way(folder: str) -> None:
    offences = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / folder).rglob("*.py")
        for name in imported(path)
        for banned in FORBIDDEN[folder]
        if name == banned or name.startswith(banned + ".")
    ]
    assert offences == []


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for package in structure.PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not structure.first_line(path)
    ]
    assert silent == []
