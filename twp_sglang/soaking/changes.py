"""Changes of the configuration while it serves, through ``/twp/config`` where there is one.

Good changes must be taken and bad ones refused; at the end everything is as it was.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from twp_sglang.soaking.record import Record
from twp_sglang.soaking.server_view import ServerView

PATH = "/twp/config"

GOOD: tuple[dict[str, Any], ...] = (
    {"gamma": 0.3},
    {"gamma": 0.1, "queue_ref": 8.0},
    {"t_max_steps": 50},
    {"forced_per_step": 2},
    {"kv_headroom_min": 0.1},
    {"chunk_tokens": 32},
)
"""Within every configuration's limits, and small enough to leave the server usable."""

BAD: tuple[Any, ...] = (
    {"gamma": -1},
    {"gama": 0.1},
    {"gamma": "0.1"},
    {"h0_tokens": -5},
    {"kv_headroom_min": 2},
    {"w_starvation": 0.0},
    [],
    7,
)


class Changer:
    """Changes one server's configuration and remembers what it was."""

    def __init__(self, view: ServerView, record: Record, seed: int) -> None:
        self._view = view
        self._record = record
        self._random = random.Random(seed)
        self._original: dict[str, Any] = {}

    async def discover(self) -> bool:
        """Whether this server's configuration can be changed."""
        status, reply = await self._view.ask("GET", PATH)
        if status != 200 or not isinstance(reply, dict):
            return False
        config = reply.get("config", reply)
        self._original = {
            name: config[name] for change in GOOD for name in change if name in config
        }
        if self._original.get("chunk_tokens") is None and "chunk_tokens_in_force" in reply:
            # What an unset chunk means is settled at start; it cannot be unset again.
            self._original["chunk_tokens"] = reply["chunk_tokens_in_force"]
        return bool(self._original)

    async def change(self) -> None:
        """One change: two of three are good.

        Raises:
            ServerGone: the server did not answer.
        """
        if self._random.random() < 0.67:
            await self._good(self._random.choice(GOOD))
        else:
            await self._bad(self._random.choice(BAD))

    async def restore(self) -> None:
        """Everything back to what it was."""
        await self._good(self._original)

    async def _good(self, change: Mapping[str, Any]) -> None:
        status, reply = await self._view.ask("PATCH", PATH, dict(change))
        if status == 200:
            self._record.changes["taken"] += 1
        else:
            self._record.changes["wrong"] += 1
            self._record.wrong_changes.append(f"{change}: {status} {str(reply)[:200]}")

    async def _bad(self, change: Any) -> None:
        status, reply = await self._view.ask("PATCH", PATH, change)
        if 400 <= status < 500:
            self._record.changes["refused"] += 1
        else:
            self._record.changes["wrong"] += 1
            self._record.wrong_changes.append(
                f"{change}: {status} in place of a refusal {str(reply)[:200]}"
            )
