"""Whether SGLang exports metrics, and under which labels."""

from __future__ import annotations

import time

from patches.metrics.exporter import Exporter

CONTEXT = "sglang.srt.runtime_context"

READS = (f"{CONTEXT}:get_observability", f"{CONTEXT}:get_serving")


def exporter_of(tp_rank: int, dp_rank: int | None) -> Exporter | None:
    """The exporter of this scheduler process, where ``--enable-metrics`` was given.

    Rank 0 of every data-parallel replica exports: the others decide the same.
    """
    from sglang.srt.runtime_context import get_observability, get_serving

    observability = get_observability()
    if not observability.enable_metrics or tp_rank != 0:
        return None
    labels = {"model_name": get_serving().served_model_name}
    if dp_rank is not None:
        labels["dp_rank"] = str(dp_rank)
    labels.update(observability.extra_metric_labels or {})
    return Exporter(labels, time.monotonic)
