"""Asks a server for its TWP state a few times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from twp_sglang.benchmarking.server_probe import twp_states

PERIOD_S = 0.3
"""The scheduler answers between two steps, so on a CPU a faster question would only wait."""


async def watch(
    session: aiohttp.ClientSession, url: str, heard: Callable[[Mapping[str, Any]], None]
) -> None:
    """Call ``heard`` with the first scheduler's state until cancelled.

    A poll that fails is skipped: a server that died shows in its requests.
    """
    while True:
        states = await twp_states(session, url, {})
        if states:
            heard(states[0])
        await asyncio.sleep(PERIOD_S)
