"""Where the paper's numbers exclude each other: arithmetic on what is printed, no simulation.

Each check computes its sides from :class:`Published`; it says nothing where they agree. What a
contradiction touches cannot be reproduced by anybody, because no system shows both sides.
"""

from __future__ import annotations

from collections.abc import Callable

from analysis.claims import figure_contradictions as figures
from analysis.claims import table_contradictions as table
from analysis.claims.contradiction import Contradiction
from analysis.claims.published import Published


def contradictions(paper: Published) -> list[Contradiction]:
    """Every contradiction there is, in the order of the paper."""
    return [found for check in CHECKS for found in [check(paper)] if found is not None]


CHECKS: tuple[Callable[[Published], Contradiction | None], ...] = (
    figures.arrivals,
    figures.fig2_axis,
    figures.spikes,
    figures.chunked_prefill,
    figures.cold_starts,
    figures.tail_ttft,
    table.throughput_figures,
    figures.serial_service,
    figures.flat_itl,
    figures.cv_figures,
    table.impossible_throughput,
    table.gains,
    table.end_to_end,
    table.consistently_best,
    table.identical_rows,
)
