"""Reads SLOs from a command line: ``ttft=2s,itl_p99=50ms``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from twp_sglang.durations import milliseconds
from twp_sglang.latency_metrics import Slo, SloMetric

_METRICS: tuple[SloMetric, ...] = get_args(SloMetric)


def parse_slos(text: str) -> tuple[Slo, ...]:
    """Read comma-separated ``METRIC=LIMIT`` with the limit in ``ms`` or ``s``.

    Raises:
        ValueError: naming the objective, what is wrong with it and the mend.
    """
    slos: list[Slo] = []
    for item in text.replace(" ", "").split(","):
        name, equals, limit = item.partition("=")
        if not equals:
            raise ValueError(f"'{item}' is not an SLO; write METRIC=LIMIT, for example ttft=2s")
        metric = next((known for known in _METRICS if known == name), None)
        if metric is None:
            raise ValueError(f"'{name}' is not a metric with an SLO; one of {', '.join(_METRICS)}")
        if any(slo.metric == metric for slo in slos):
            raise ValueError(f"'{name}' is given twice; keep one limit")
        try:
            limit_ms = milliseconds(limit)
        except ValueError as error:
            raise ValueError(f"'{item}': {error}") from None
        slos.append(Slo(metric=metric, limit_ms=limit_ms))
    return tuple(slos)


def itl_limit_ms(slos: Iterable[Slo]) -> float | None:
    """The shortest limit on the pace of tokens, ms: of ITL or TPOT; None where none is given."""
    return min(
        (s.limit_ms for s in slos if s.metric.startswith("itl") or s.metric == "tpot"),
        default=None,
    )


def ttft_limit_ms(slos: Iterable[Slo]) -> float | None:
    """The limit on the first token, ms; None where none is given."""
    return min((s.limit_ms for s in slos if s.metric == "ttft"), default=None)
