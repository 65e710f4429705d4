"""The step model that policy slo is told: the machine's own, a wrong one, another machine's.

The axis ``step_model`` of a contender takes

``machine``                what a full calibration of the machine would say
``machine,TERM*FACTOR``    the same with one term wrong, ``machine,alpha_ms*0.5``
``learned``                nothing: it learns while serving
``NAME[,KEY=VALUE]``       the model of another machine, as ``--machine`` names one
"""

from __future__ import annotations

import math
from typing import Any

from analysis.cells.machines import Machine, machine
from twp_sglang.simulator.step_models import AffineStep

TERMS = tuple(name for name in AffineStep.model_fields if name != "kind")


def told_fields(text: str, where: Machine) -> dict[str, Any]:
    """Fields of :class:`TwpConfig` that tell policy slo the model ``text`` names on ``where``.

    A table of step times has no terms to tell; such a machine tells nothing.

    Raises:
        ValueError: no such model, no such term, or a factor that is no positive number.
    """
    if text == "learned":
        return {}
    name, _, change = text.partition(",")
    if name != "machine":
        return _fields(machine(text).step)
    step = where.step
    if change and step is not None:
        term, star, factor = (part.strip() for part in change.partition("*"))
        if not star or term not in TERMS:
            raise ValueError(
                f"step_model {text}: '{change}' is not TERM*FACTOR with a term of "
                f"{', '.join(TERMS)}"
            )
        step = AffineStep.model_validate(
            {**step.model_dump(), term: _factor(factor, text) * getattr(step, term)}
        )
    return _fields(step)


def _fields(step: AffineStep | None) -> dict[str, Any]:
    if step is None:
        return {}
    told = step.model_dump(exclude={"kind", "b0"})
    # As a calibrated server has it: whole rows, and none where there is no knee.
    return {**told, "b0": round(step.b0)} if step.b0 >= 1 else told


def _factor(text: str, whole: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"step_model {whole}: '{text}' is not a finite factor above 0")
    return factor
