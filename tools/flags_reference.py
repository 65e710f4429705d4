"""Writes docs/flags.md from the configuration model and from every command's own parser.

``python -m tools.flags_reference`` rewrites the file, ``--check`` exits 1 where it is out of
date. Nothing in that file is written by hand.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import types
import typing
from typing import Any, Literal

from pydantic.fields import FieldInfo

from tools.command_lines import COMMANDS, LAUNCHER, parser_of
from tools.structure import ROOT
from twp_sglang.config import TwpConfig
from twp_sglang.objective_values import SPELLINGS
from twp_sglang.serving.options import flag_of, parser

DOCUMENT = ROOT / "docs" / "flags.md"

_HEAD = """\
# Flags and fields

Generated from the code by `python -m tools.flags_reference`: do not edit.

A field may be given in a file (`--twp-config twp.toml`, by the name in the second column), by a
flag, or in part by a profile (`--twp-profile`). Lowest first: defaults, profile, file, flags.
`none` unsets what can be unset. A value that cannot be used ends with one line that names it,
before any model is looked for.
"""

_INTRODUCTIONS = {
    "twp_sglang.bench": "Load generator ([docs](bench.md)).",
    "twp_sglang.calibrate": "Measures a machine ([docs](calibrate.md)).",
    "twp_sglang.simulate": "Simulator ([docs](simulator.md)).",
    "twp_sglang.soak": "Endurance test ([docs](soak.md)).",
    "twp_sglang.profile_step": "Step times without SGLang ([docs](gpu.md)).",
    "controllers": "The window as a feedback loop ([docs](control.md)).",
    "analysis.compare": "Schedulers side by side ([docs](analysis.md)).",
}


def document() -> str:
    """The whole file."""
    lines = [_HEAD]
    lines += [
        "## Serving",
        "",
        "`python -m twp_sglang.launch_server`, with every flag of SGLang's own.",
        "",
    ]
    lines += _files()
    for heading, names in _sections().items():
        lines += [f"### {heading}", "", "| flag | field | value | default | meaning |"]
        lines += ["|---|---|---|---|---|"]
        lines += [_field_row(name, TwpConfig.model_fields[name]) for name in names]
        lines.append("")
    for command, subs in COMMANDS.items():
        if command == LAUNCHER or command.startswith("tools."):
            continue
        lines += [f"## {command}", ""]
        if command in _INTRODUCTIONS:
            lines += [_INTRODUCTIONS[command], ""]
        for sub in subs or (None,):
            lines += _command(command, sub)
    return "\n".join(lines).rstrip() + "\n"


def _files() -> list[str]:
    others = [a for a in parser()._actions if a.dest not in TwpConfig.model_fields]
    return [
        *("### Files and spellings", "", "| flag | value | meaning |", "|---|---|---|"),
        *(f"| `{a.option_strings[0]}` | {cell(a.metavar)} | {_help(a)} |" for a in others),
        "",
    ]


def _sections() -> dict[str, list[str]]:
    """Fields by the comment that stands above them in the model's source."""
    result: dict[str, list[str]] = {}
    heading = "Policy"
    for line in inspect.getsource(TwpConfig).splitlines():
        comment = re.fullmatch(r"    # (.*)\.", line)
        field = re.match(r"    (\w+): .*= Field\(", line)
        if comment:
            heading = comment[1]
        elif field and field[1] != "evidence":
            result.setdefault(heading, []).append(field[1])
    return result


def _field_row(name: str, field: FieldInfo) -> str:
    flags = [flag_of(name), *(flag_of(s) for s, target in SPELLINGS.items() if target == name)]
    default = "unset" if field.default is None else f"`{field.default}`"
    meaning = cell(field.description or "")
    shown = " ".join(f"`{flag}`" for flag in flags)
    return f"| {shown} | `{name}` | {cell(_values(field))} | {default} | {meaning} |"


def _values(field: FieldInfo) -> str:
    """What a field takes, in words."""
    kinds = _kinds(field.annotation)
    bounds = []
    for item in field.metadata:
        for attribute, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
            if hasattr(item, attribute):
                bounds.append(f"{sign} {getattr(item, attribute):g}")
    return " or ".join(kinds) + (f", {', '.join(bounds)}" if bounds else "")


def _kinds(annotation: Any) -> list[str]:
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return [str(value) for value in typing.get_args(annotation)]
    if origin in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(annotation) if part is not type(None)]
        return [kind for part in parts for kind in _kinds(part)]
    return [{int: "whole number", float: "number", bool: "true, false"}.get(annotation, "text")]


def _command(command: str, sub: str | None) -> list[str]:
    found = parser_of(command, sub)
    shown = [a for a in found._actions if not isinstance(a, argparse._HelpAction)]
    lines = [f"### {command} {sub}", ""] if sub else []
    if found.description:
        lines += [cell(found.description.strip().split("\n\n")[0]), ""]
    rows = []
    for action in shown:
        if isinstance(action, argparse._SubParsersAction) or action.help is argparse.SUPPRESS:
            continue
        name = ", ".join(f"`{flag}`" for flag in action.option_strings) or f"`{_metavar(action)}`"
        value = cell(_metavar(action)) if action.option_strings and action.nargs != 0 else ""
        rows.append(f"| {name} | {value} | {_help(action)} |")
    if rows:
        lines += ["| flag | value | meaning |", "|---|---|---|", *rows]
    return [*lines, ""]


def _metavar(action: argparse.Action) -> str:
    if action.choices is not None and action.metavar is None:
        return ", ".join(map(str, action.choices))
    metavar = action.metavar or action.dest.upper()
    return " ".join(metavar) if isinstance(metavar, tuple) else metavar


def _help(action: argparse.Action) -> str:
    text = (action.help or "").replace("%%", "%")
    return cell(text.replace("%(default)s", str(action.default)))


def cell(text: object) -> str:
    """Text that stands in one cell of a table as it is."""
    one_line = " ".join(str(text or "").split())
    for mark in ("|", "<", "*", "_"):
        one_line = one_line.replace(mark, {"<": "&lt;"}.get(mark, "\\" + mark))
    return one_line


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's text."""
    arguments = argparse.ArgumentParser(prog="python -m tools.flags_reference", description=__doc__)
    arguments.add_argument("--check", action="store_true", help="only say whether it is up to date")
    asked = arguments.parse_args(argv)
    new = document()
    if asked.check:
        if not DOCUMENT.exists() or DOCUMENT.read_text(encoding="utf-8") != new:
            print("docs/flags.md is out of date: python -m tools.flags_reference", file=sys.stderr)
            return 1
        return 0
    DOCUMENT.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
