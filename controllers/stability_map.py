"""Stability and margins over the law's gain and the weight of the ITL filter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controllers.margins import margins
from controllers.models import LoopModel

GAIN_FIELD = {"paper": "gamma", "regulated": "k"}
"""The field of each law's configuration that scales its loop gain."""


class StabilityMap(NamedTuple):
    """Margins on a grid; rows are gains, columns are filter weights.

    Attributes:
        gain_name: ``gamma`` or ``k``.
        gains: shape (n,).
        betas: shape (m,).
        stable: shape (n, m), bool.
        disk_margin: balanced disk margin, shape (n, m); 0 where unstable.
        gain_margin: factor, shape (n, m); infinity where no gain is too much.
    """

    gain_name: str
    gains: NDArray[np.float64]
    betas: NDArray[np.float64]
    stable: NDArray[np.bool_]
    disk_margin: NDArray[np.float64]
    gain_margin: NDArray[np.float64]


def gain_field(law: str) -> str:
    """Name of the law's gain.

    Raises:
        ValueError: the law has no single gain.
    """
    try:
        return GAIN_FIELD[law]
    except KeyError:
        raise ValueError(
            f"law = {law!r} has no single gain to map: use one of {', '.join(GAIN_FIELD)}"
        ) from None


def default_gains(count: int = 12) -> list[float]:
    """Gains from 0.01 to 1, equally spaced on a log scale."""
    return [float(v) for v in np.geomspace(0.01, 1.0, count)]


def stability_map(
    loop: LoopModel, gains: Sequence[float] | None = None, betas: Sequence[float] | None = None
) -> StabilityMap:
    """Margins of ``loop`` with every pair of gain and filter weight.

    Raises:
        ValueError: the law has no single gain, or a gain or weight outside (0, 1].
    """
    name = gain_field(loop.law)
    rows = default_gains() if gains is None else list(gains)
    columns = default_gains() if betas is None else list(betas)
    for label, values in ((name, rows), ("beta", columns)):
        for value in values:
            if not 0 < value <= 1:
                raise ValueError(f"{label} = {value:g}: must lie in (0, 1]")
    shape = (len(rows), len(columns))
    result = StabilityMap(
        name, np.array(rows), np.array(columns), np.zeros(shape, dtype=np.bool_),
        np.zeros(shape), np.zeros(shape),
    )  # fmt: skip
    for i, gain in enumerate(rows):
        for j, beta in enumerate(columns):
            found = margins(
                loop.model_copy(
                    update={"law_params": {**loop.law_params, name: gain}, "beta": beta}
                )
            )
            result.stable[i, j] = found.stable
            result.disk_margin[i, j] = found.disk_margin_alpha
            result.gain_margin[i, j] = np.inf if found.gain_margin is None else found.gain_margin
    return result
