"""Admissions as lines of the step trace: with a grant of the policy, or the engine's own."""

from __future__ import annotations

from twp_sglang.scheduling.decision import Grant
from twp_sglang.scheduling.load import ActiveLoad
from twp_sglang.scheduling.request import RequestInfo
from twp_sglang.trace import AdmissionRecord


def granted(info: RequestInfo, grant: Grant, load: ActiveLoad) -> AdmissionRecord:
    """The engine took a granted request on top of ``load``."""
    return AdmissionRecord(
        info.rid,
        grant.reason,
        info.prompt_tokens,
        info.expected_tokens,
        load.load_tokens,
        grant.kv_free_after,
        grant.kv_threshold,
        grant.waited_passes,
        info.cached_tokens,
    )


def taken(
    info: RequestInfo,
    load: ActiveLoad,
    kv_free_after: float,
    kv_threshold: float | None,
    waited_passes: int,
) -> AdmissionRecord:
    """The engine took a request on its own; ``kv_free_after`` is a share of the pool."""
    return AdmissionRecord(
        info.rid,
        "retracted" if info.retracted else "policy",
        info.prompt_tokens,
        info.expected_tokens,
        load.load_tokens,
        kv_free_after,
        kv_threshold,
        waited_passes,
        info.cached_tokens,
    )
