"""A configuration with what only the running engine knows."""

from __future__ import annotations

from typing import Any

from patches.sglang_0_5.engine_view import graph_ceiling_rows
from twp_sglang.config import TwpConfig


def informed(config: TwpConfig, scheduler: Any) -> TwpConfig:
    """``config`` with the engine's largest CUDA graph, where policy slo is told none.

    Args:
        config: as stated by whoever started the server.
        scheduler: SGLang's, once its model is loaded.
    """
    if config.policy != "slo" or config.graph_ceiling_rows is not None:
        return config
    rows = graph_ceiling_rows(scheduler)
    return config if rows is None else config.model_copy(update={"graph_ceiling_rows": rows})
