"""The configuration file that tuning writes and launch_server reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controllers.settings import EVIDENCE, jsonable


def write_configuration(
    path: Path, configuration: Mapping[str, Any], evidence: Mapping[str, Any]
) -> None:
    """Write flat keys and the table ``evidence`` as TOML or JSON, by suffix.

    Raises:
        ValueError: another suffix.
        OSError: the file cannot be written.
    """
    data = {**configuration, EVIDENCE: dict(evidence)}
    if path.suffix == ".json":
        text = json.dumps(jsonable(data), indent=2, allow_nan=False) + "\n"
    elif path.suffix == ".toml":
        text = to_toml(data)
    else:
        raise ValueError(f"{path}: write the configuration to a .toml or .json file")
    path.write_text(text, encoding="utf-8")


def to_toml(data: Mapping[str, Any]) -> str:
    """TOML of nested tables with numbers, strings, booleans and flat lists.

    None and numbers that are not finite are left out: here they mean "no limit".
    """
    lines = [
        "# Written by `python -m controllers tune`; launch_server takes it as it is.",
        *_table(data, ()),
    ]
    return "\n".join(lines) + "\n"


def _table(data: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = []
    for key, value in data.items():
        if isinstance(value, Mapping) or _absent(value):
            continue
        lines.append(f"{key} = {_value(value)}")
    for key, value in data.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{'.'.join((*path, key))}]", *_table(value, (*path, key))]
    return lines


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value if not _absent(v)) + "]"
    # JSON's escapes are a subset of TOML's for basic strings.
    return json.dumps(str(value), ensure_ascii=True)
