"""Window laws by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from controllers.laws.base import FrozenModel, Law
from controllers.laws.paper import PaperLaw, PaperLawConfig


class LawEntry(NamedTuple):
    """A law's configuration class and how to build the law from it."""

    config: type[FrozenModel]
    build: Callable[[Any], Law]


LAWS: dict[str, LawEntry] = {
    "paper": LawEntry(PaperLawConfig, PaperLaw),
}


def law_names() -> tuple[str, ...]:
    """Names that :func:`make_law` takes."""
    return tuple(LAWS)


def law_entry(name: str) -> LawEntry:
    """Entry of ``name``.

    Raises:
        ValueError: there is no such law; the message lists those there are.
    """
    try:
        return LAWS[name]
    except KeyError:
        raise ValueError(f"law = {name!r} is unknown: use one of {', '.join(LAWS)}") from None


def make_law(name: str, params: Mapping[str, Any] | None = None) -> Law:
    """Law ``name`` configured by ``params``.

    Raises:
        ValueError: no such law, or a parameter it does not take or cannot use
            (``pydantic.ValidationError`` names the field).
    """
    entry = law_entry(name)
    return entry.build(entry.config.model_validate(dict(params or {})))
