"""What is sent and when: an endless plan from one seed, open-loop with bursts."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from twp_sglang.soaking.settings import SoakSettings

Kind = Literal["serve", "leave_streaming", "leave_waiting", "abort", "malformed", "too_long"]
Api = Literal["generate", "completions", "chat"]
APIS: tuple[Api, ...] = ("generate", "completions", "chat")


class Act(NamedTuple):
    """One request and what its client does with it.

    Attributes:
        number: place in the plan, from 0; also in its request id.
        at_s: when it leaves, seconds from the start of the traffic.
        kind: what the client does.
        api: which of the server's interfaces.
        stream: whether the answer is streamed.
        prompt_tokens: length of the prompt.
        output_tokens: length of the answer asked for.
        answers: how many answers (``n``).
        patience: when the client goes or aborts, as a share of the answer (streams) or of
            ``PATIENCE_S`` (the others). More often soon than late.
        draw: a number in [0, 1) for whatever else must be chosen.
    """

    number: int
    at_s: float
    kind: Kind
    api: Api
    stream: bool
    prompt_tokens: int
    output_tokens: int
    answers: int
    patience: float
    draw: float


PATIENCE_S = 2.0
"""Longest time until a client without a stream goes, or aborts: some answers are done by
then, some run, and in a burst some wait."""

_SEVERAL = 0.06
"""Share of the requests that ask for two or three answers."""


def acts(settings: SoakSettings, rate_rps: float, apis: tuple[Api, ...]) -> Iterator[Act]:
    """The plan, without end, in order of time. Arrivals are Poisson at the load of the moment.

    Args:
        settings: of the soak.
        rate_rps: requests per second that count as load 1.
        apis: what this server can be asked through.
    """
    source = random.Random(settings.seed)
    weights = settings.mix.model_dump()
    kinds: tuple[Kind, ...] = get_args(Kind)
    now_s = 0.0
    number = 0
    while True:
        now_s = after(settings, now_s, source.expovariate(rate_rps))
        kind = source.choices(kinds, [weights[kind] for kind in kinds])[0]
        api = source.choice(apis)
        several = kind == "serve" and api != "chat" and source.random() < _SEVERAL
        yield Act(
            number=number,
            at_s=now_s,
            kind=kind,
            api=api,
            stream=kind == "leave_streaming" or (kind != "leave_waiting" and source.random() < 0.6),
            prompt_tokens=_length(source, settings.longest_prompt_tokens),
            output_tokens=_length(source, settings.longest_output_tokens),
            answers=source.choice((2, 3)) if several else 1,
            patience=source.random() ** 2,
            draw=source.random(),
        )
        number += 1


def after(settings: SoakSettings, now_s: float, work_s: float) -> float:
    """When as much has been offered as ``work_s`` seconds of load 1 bring, from ``now_s`` on."""
    while True:
        # The burst ends each period, so that a soak begins calmly.
        period, into_s = divmod(now_s, settings.burst_every_s)
        calm_s = settings.burst_every_s - settings.burst_s
        calm = into_s < calm_s
        load = settings.base_load if calm else settings.burst_load
        turn_s = period * settings.burst_every_s + (calm_s if calm else settings.burst_every_s)
        if load * (turn_s - now_s) >= work_s:
            return now_s + work_s / load
        work_s -= load * (turn_s - now_s)
        # Beyond the turn for certain, or rounding could hold it on this side for ever.
        now_s = math.nextafter(max(now_s, turn_s), math.inf)


def _length(source: random.Random, longest: int) -> int:
    """Many short, a few long: uniform in the logarithm."""
    return max(1, round(math.exp(math.log(longest) * source.uniform(0.2, 1.0))))
