"""People who look on: they ask why a request waits, and open and close the live page."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from urllib.parse import quote

from twp_sglang.soaking.record import Record
from twp_sglang.soaking.server_view import ServerView

STATE, EXPLAIN, EVENTS = "/twp/state", "/twp/explain/", "/twp/events"

STRANGE_IDS = ("", "nobody", "a/b", "\N{SNOWMAN}", "%00", "x" * 2000, "../../etc")
"""Asked about now and then; the answer is that nobody knows them."""

_LONGEST_LOOK_S = 4.0


class Onlookers:
    """Asks about requests under way, and watches.

    Args:
        view: of the server.
        record: where answers that must not be are noted.
        under_way: ids of the requests that have no end yet.
        seed: of what is asked.
    """

    def __init__(
        self, view: ServerView, record: Record, under_way: Callable[[], Sequence[str]], seed: int
    ) -> None:
        self._view = view
        self._record = record
        self._under_way = under_way
        self._random = random.Random(seed)

    async def discover(self) -> bool:
        """Whether there is something to look at.

        Raises:
            ServerGone: the server did not answer.
        """
        status, _ = await self._view.ask("GET", STATE)
        return status == 200

    async def ask(self) -> None:
        """Ask about one request, mostly one that is under way.

        Raises:
            ServerGone: the server did not answer.
        """
        known = self._under_way()
        strange = not known or self._random.random() < 0.2
        rid = self._random.choice(STRANGE_IDS if strange else known)
        status, said = await self._view.ask("GET", EXPLAIN + quote(rid, safe=""))
        self._note("explained" if status == 200 else "unknown")
        if status not in (200, 404):
            self._record.silences.append(f"{EXPLAIN}{rid[:40]} answered {status}: {said!s:.100}")

    async def watch(self) -> None:
        """Open the page's stream for a while, and leave in the middle of it.

        Raises:
            ServerGone: the server did not answer.
        """
        events = await self._view.listen(EVENTS, self._random.uniform(0.1, _LONGEST_LOOK_S))
        self._note("watched")
        self._record.onlookers["events"] += events

    def _note(self, what: str) -> None:
        self._record.onlookers[what] += 1
