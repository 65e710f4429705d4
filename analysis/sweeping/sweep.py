"""Measures every point of a grid, by whichever backend."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from analysis.cells.measure import Metrics
from analysis.cells.store import ResultFile
from analysis.cells.workers import Progress, run_plans
from analysis.sweeping.backends import METRICS, Backend, Simulated
from analysis.sweeping.grid import Grid
from analysis.sweeping.served import Launched
from analysis.sweeping.theory import Engine, predict

Tell = Callable[[Progress], None] | None
Found = dict[tuple[float, ...], Metrics]
"""Metrics by the values of the grid's axes."""


def sweep(grid: Grid, backend: Backend, store: ResultFile, jobs: int, tell: Tell = None) -> Found:
    """Metrics at every point; those that ``store`` knows are not measured again.

    Points that failed on a server are tried again by the next call.

    Raises:
        ValueError: a configuration or an argument that the backend refuses.
    """
    points = grid.points()
    configs = [grid.config(point) for point in points]
    if isinstance(backend, Simulated):
        results = run_plans([backend.plan(config) for config in configs], store, jobs, tell)
    else:
        results = []
        reused = 0
        for number, config in enumerate(configs, start=1):
            values = config.model_dump(mode="json")
            key = _server_key(backend, values)
            known = store.known.get(key)
            if known is None or "error" in known:
                known = backend.evaluate(config)
                store.add(key, {"config": values, "caption": backend.caption}, known)
            else:
                reused += 1
            results.append(known)
            if tell is not None:
                tell(Progress(number, len(points), number - reused, reused))
    return {
        tuple(point[name] for name in grid.axes): result
        for point, result in zip(points, results, strict=True)
    }


def rows(grid: Grid, found: Found, engine: Engine | None) -> list[dict[str, Any]]:
    """One row per point: axes, metrics, and what the theory says."""
    result = []
    for point in grid.points():
        metrics = found[tuple(point[name] for name in grid.axes)]
        row: dict[str, Any] = {**point}
        row.update({name: metrics.get(name) for name in METRICS})
        row["error"] = metrics.get("error", "")
        if engine is not None:
            prediction = predict(engine, grid.config(point))
            row.update(
                theory_stable=prediction.stable,
                theory_gain_margin=prediction.gain_margin,
                theory_disk_margin=prediction.disk_margin,
                theory_regime=prediction.regime,
            )
        result.append(row)
    return result


def _server_key(backend: Backend, values: dict[str, Any]) -> str:
    # A server is measured anew when anything about it changes that we can see.
    how: Sequence[str] = backend.flags if isinstance(backend, Launched) else (backend.caption,)
    content = [
        metadata.version("twp-sglang"),
        list(how),
        getattr(backend, "bench", []),
        values,
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]
