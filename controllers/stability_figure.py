"""Picture of a stability map."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from controllers.margins import DISK_MARGIN_GOAL
from controllers.models import LoopModel
from controllers.stability_map import StabilityMap


def draw_stability_map(result: StabilityMap, loop: LoopModel, path: str | Path) -> None:
    """Write the map as a picture whose format follows the name of ``path``.

    Raises:
        OSError: the file cannot be written.
        ValueError: the picture's format is unknown.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    axes = figure.add_subplot()
    alpha = np.where(result.stable, result.disk_margin, np.nan)
    mesh = axes.pcolormesh(
        result.betas, result.gains, alpha, cmap="viridis", vmin=0.0, vmax=2.0, shading="nearest"
    )
    figure.colorbar(mesh, ax=axes, label="balanced disk margin α (2 = no feedback)")
    axes.set_facecolor("0.85")
    if result.gains.size > 1 and result.betas.size > 1:
        filled = np.where(result.stable, result.disk_margin, 0.0)
        if filled.min() < DISK_MARGIN_GOAL < filled.max():
            lines = axes.contour(
                result.betas, result.gains, filled, levels=[DISK_MARGIN_GOAL], colors="white"
            )
            axes.clabel(lines, fmt=lambda _: f"α = {DISK_MARGIN_GOAL}", colors="white")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("filter weight β (1 = no filter)")
    symbol = {"gamma": "γ", "k": "k"}[result.gain_name]
    axes.set_ylabel(f"window gain {symbol} per step")
    axes.set_title(
        f"{loop.law} law, {loop.lengths.name}, d = {loop.timing.delay_steps} steps (grey: unstable)"
    )
    figure.savefig(path, dpi=150)
