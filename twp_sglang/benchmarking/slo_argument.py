"""Reads SLOs from a command line: ``ttft=2s,itl_p99=50ms``."""

from __future__ import annotations

import math
import re
from typing import get_args

from twp_sglang.latency_metrics import Slo, SloMetric

_VALUE = re.compile(r"^([0-9.eE+-]+)(ms|s)$")
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
        match = _VALUE.match(limit)
        if not match:
            raise ValueError(f"'{item}': give the limit with its unit, for example {name}=50ms")
        try:
            value = float(match[1])
        except ValueError:
            raise ValueError(f"'{item}': '{match[1]}' is not a number") from None
        limit_ms = value * (1000.0 if match[2] == "s" else 1.0)
        if not math.isfinite(limit_ms) or limit_ms <= 0:
            raise ValueError(f"'{item}': the limit must be finite and above 0")
        slos.append(Slo(metric=metric, limit_ms=limit_ms))
    return tuple(slos)
