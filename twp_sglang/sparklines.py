"""Numbers as a row of block characters."""

from __future__ import annotations

from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], width: int, top: float) -> str:
    """The last ``width`` values as block characters, 0 at the bottom and ``top`` at the top.

    An absent value is a space; the line is padded on the left.
    """
    shown = values[-width:]
    scale = (len(_BLOCKS) - 1) / top if top > 0 else 0.0
    drawn = "".join(
        " " if value is None else _BLOCKS[min(len(_BLOCKS) - 1, max(0, round(value * scale)))]
        for value in shown
    )
    return drawn.rjust(width)
