"""Whether two objects are the same inside: attribute by attribute, as deep as it goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Paths at which ``one`` and ``other`` differ."""
    if type(one) is not type(other):
        return [f"{path}: {one!r} and {other!r}"]
    if isinstance(one, BaseModel | str | int | float | bool | None):
        return [] if one == other else [f"{path}: {one!r} and {other!r}"]
    if isinstance(one, np.ndarray):
        return [] if np.array_equal(one, other) else [path]
    if isinstance(one, Mapping):
        keys = list(one.keys() | other.keys())
        return [
            d for key in keys for d in differences(one.get(key), other.get(key), f"{path}[{key}]")
        ]
    if isinstance(one, list | tuple | deque | set | frozenset):
        if len(one) != len(other):
            return [f"{path}: {one!r} and {other!r}"]
        pairs = zip(one, other, strict=True)
        return [d for i, pair in enumerate(pairs) for d in differences(*pair, f"{path}[{i}]")]
    if callable(one):
        return []
    return [
        d
        for name in _names(one)
        for d in differences(getattr(one, name, None), getattr(other, name, None), f"{path}.{name}")
    ]


def _names(thing: Any) -> list[str]:
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*getattr(thing, "__dict__", {}), *slots]
