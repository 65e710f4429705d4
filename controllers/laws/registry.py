"""Window laws by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from controllers.laws.aimd import AimdLaw, AimdLawConfig
from controllers.laws.base import FrozenModel
from controllers.laws.fixed import FixedLaw, FixedLawConfig
from controllers.laws.gradient2 import Gradient2Law, Gradient2LawConfig
from controllers.laws.jacobian import AnalysedLaw
from controllers.laws.paper import PaperLaw, PaperLawConfig
from controllers.laws.predictive import PredictiveLaw, PredictiveLawConfig
from controllers.laws.regulated import RegulatedLaw, RegulatedLawConfig
from controllers.laws.vegas import VegasLaw, VegasLawConfig


class LawEntry(NamedTuple):
    """A law's configuration class and how to build the law from it."""

    config: type[FrozenModel]
    build: Callable[[Any], AnalysedLaw]


LAWS: dict[str, LawEntry] = {
    "paper": LawEntry(PaperLawConfig, PaperLaw),
    "regulated": LawEntry(RegulatedLawConfig, RegulatedLaw),
    "predictive": LawEntry(PredictiveLawConfig, PredictiveLaw),
    "gradient2": LawEntry(Gradient2LawConfig, Gradient2Law),
    "vegas": LawEntry(VegasLawConfig, VegasLaw),
    "aimd": LawEntry(AimdLawConfig, AimdLaw),
    "fixed": LawEntry(FixedLawConfig, FixedLaw),
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


def make_law(name: str, params: Mapping[str, Any] | None = None) -> AnalysedLaw:
    """Law ``name`` configured by ``params``.

    Raises:
        ValueError: no such law, or a parameter it does not take or cannot use
            (``pydantic.ValidationError`` names the field).
    """
    entry = law_entry(name)
    return entry.build(entry.config.model_validate(dict(params or {})))
