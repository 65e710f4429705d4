"""How many requests per second a server carries: closed-loop, before the soak."""

from __future__ import annotations

import asyncio
import time
from itertools import count

from twp_sglang.soaking.client import Target, send
from twp_sglang.soaking.endings import Outcome
from twp_sglang.soaking.settings import Mix, SoakSettings
from twp_sglang.soaking.traffic import Act, Api, acts


class TooSlow(Exception):
    """Nothing was answered in the time given to measure."""


async def measure(target: Target, settings: SoakSettings, apis: tuple[Api, ...]) -> float:
    """Requests per second of the soak's own kind that the server completes.

    Raises:
        TooSlow: none was completed, or one was not answered.
    """
    only_serve = settings.model_copy(update={"mix": _ONLY_SERVE, "seed": settings.seed + 1})
    plan = acts(only_serve, 1.0, apis)
    numbers = count(_FIRST_NUMBER)
    begun = time.monotonic()
    end = begun + settings.measure_s
    ended: list[Outcome] = []

    async def client() -> None:
        while time.monotonic() < end:
            act: Act = next(plan)._replace(number=next(numbers))
            ended.append(await send(target, act, settings.reply_bound_s))

    await asyncio.gather(*(client() for _ in range(settings.measure_clients)))
    good = sum(outcome.ending == "answered" for outcome in ended)
    if not good:
        why = next((outcome.reason for outcome in ended if outcome.reason), "no answer")
        raise TooSlow(
            f"none of {len(ended)} requests was answered while the rate was measured: {why}"
        )
    return good / (time.monotonic() - begun)


_ONLY_SERVE = Mix(serve=1, leave_streaming=0, leave_waiting=0, abort=0, malformed=0, too_long=0)
_FIRST_NUMBER = 90_000_000
"""Apart from the soak's own numbers: request ids must not repeat."""
