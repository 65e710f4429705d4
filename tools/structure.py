"""Writes the module list of docs/structure.md from the first line of each module's docstring.

``python -m tools.structure`` rewrites the file, ``--check`` exits 1 where it is out of date.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

from tools.marked_section import renewed

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "structure.md"
PACKAGES = ("controllers", "twp_sglang", "patches", "analysis", "benchmarks", "tools")
BEGIN = "<!-- modules: begin (python -m tools.structure) -->"
END = "<!-- modules: end -->"


def first_line(path: Path) -> str:
    """First sentence-like line of a module's docstring, or an empty string."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.strip().splitlines()[0] if text.strip() else ""


def module_list() -> str:
    """The list as Markdown: one heading a folder, one line a module."""
    lines: list[str] = []
    for package in PACKAGES:
        folders = sorted({path.parent for path in (ROOT / package).rglob("*.py")})
        for folder in folders:
            modules = sorted(folder.glob("*.py"))
            described = [(path.name, first_line(path)) for path in modules]
            described = [(name, line) for name, line in described if line]
            if not described:
                continue
            lines.append(f"\n### {folder.relative_to(ROOT)}/\n")
            lines += [
                f"- **{folder.name if name == '__init__.py' else name}**: {line}"
                if name == "__init__.py"
                else f"- `{name}`: {line}"
                for name, line in described
            ]
    return "\n".join(lines) + "\n"


def updated(document: str) -> str:
    """``document`` with the list between its markers renewed.

    Raises:
        ValueError: the markers are missing.
    """
    return renewed(document, DOCUMENT, BEGIN, END, f"\n{module_list()}\n")


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m tools.structure", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    arguments = parser.parse_args(argv)
    old = DOCUMENT.read_text(encoding="utf-8")
    new = updated(old)
    if arguments.check:
        if old != new:
            print("docs/structure.md is out of date: python -m tools.structure", file=sys.stderr)
            return 1
        return 0
    DOCUMENT.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
