"""What a pool did, as JSON and for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from twp_sglang.simulator.pool_settings import PoolSettings
from twp_sglang.simulator.serverless import PoolStats


def pool_json(stats: PoolStats, settings: PoolSettings) -> dict[str, Any]:
    """The block ``pool`` of a result file."""
    return {**stats.model_dump(mode="json"), "settings": settings.model_dump(mode="json")}


def print_pool(console: Console, stats: PoolStats) -> None:
    """Cold starts, what they cost, and how containers ended."""
    starts = stats.cold_starts
    loading, startup = stats.loading_ms, stats.startup_ms
    line = ", ".join(f"{count} from {tier}" for tier, count in starts.items() if count)
    console.print(f"{sum(starts.values())} cold starts ({line or 'none'})", highlight=False)
    if loading.p50 is not None and loading.max is not None:
        console.print(
            f"loading P50 {loading.p50:,.0f} ms, max {loading.max:,.0f} ms", highlight=False
        )
    if startup.p50 is not None and startup.p99 is not None:
        console.print(
            f"{startup.count} requests waited for a container: P50 {startup.p50:,.0f} ms, "
            f"P99 {startup.p99:,.0f} ms; {stats.warm_requests} found one warm",
            highlight=False,
        )
    closed = ", ".join(f"{count} {reason}" for reason, count in sorted(stats.closed.items()))
    console.print(
        f"containers closed: {closed or 'none'}; {stats.container_s:,.0f} GPU seconds held",
        highlight=False,
    )
    if stats.migrations:
        console.print(
            f"{stats.migrations} live migrations of {stats.migrated_requests} requests, "
            f"{stats.recomputed_tokens:,} tokens computed again",
            highlight=False,
        )
