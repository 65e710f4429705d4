"""Decision fidelity: the same requests, the same admissions?

Requests come in waves. A wave is one batched call, which SGLang hands to its scheduler in one
message: all its requests arrive in the same pass, in their order. The next wave leaves when
the last answer is there. So no arrival is ambiguous, and the policy's state (window, filter,
baseline, wait) is carried from wave to wave. The simulator gets the same waves.

What may differ: the simulator's steps take exactly what the model says and the engine's are
measured, scatter of the machine included. A policy that reads step times may therefore let a
request in some steps earlier or later; the order of admission and the reasons may not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from rich.console import Console

from analysis.judging.engine import (
    JudgementError,
    admissions_of,
    config_of,
    serving,
    settings_of,
    twp_of,
)
from controllers.laws.base import FrozenModel
from twp_sglang.benchmarking.lengths import parse_lengths
from twp_sglang.simulator.simulate import simulate
from twp_sglang.simulator.step_sources import step_source
from twp_sglang.trace import StepRecord
from twp_sglang.workloads.request import Request

WAVE_GAP_S = 3600.0
"""Between waves in the simulator: any time after the last answer will do."""

_FIRST_ID = 3
MOST_REQUESTS = 250
"""Prompts are made of that many ids, which every model has, and none begins like another."""


class Admitted(FrozenModel):
    """One request in both. Steps count from the first admission of its wave."""

    request: int
    wave: int
    place: tuple[int, int]
    """Place in the admission sequence: engine, simulator."""
    step: tuple[int, int]
    reason: tuple[str, str]
    load_before_tokens: tuple[int, int]


class DecisionFidelity(FrozenModel):
    """What one policy came to.

    Attributes:
        policy: its name.
        profile: step model of both.
        requests, waves: what was sent.
        same_order: whether the two admission sequences are equal.
        same_reasons: share of requests let in for the same reason.
        same_step: share let in at the same step of their wave.
        step_difference_max: largest difference in steps.
        same_load: share that met the same token load.
        steps: steps of engine and simulator.
        admitted: each request.
    """

    policy: str
    profile: str
    requests: int
    waves: int
    same_order: bool
    same_reasons: float
    same_step: float
    step_difference_max: int
    same_load: float
    steps: tuple[int, int]
    admitted: tuple[Admitted, ...]


def waves(
    count: int, size: int, prompt_law: str, output_law: str, seed: int
) -> list[list[Request]]:
    """``count`` waves of ``size`` requests; a function of the arguments alone.

    Raises:
        ValueError: a law that cannot be read, or too many requests.
    """
    if count * size > MOST_REQUESTS:
        raise ValueError(
            f"--waves {count} of --requests {size} are {count * size} requests; give at most "
            f"{MOST_REQUESTS} in all, so that no two prompts begin alike"
        )
    prompts, outputs = parse_lengths(prompt_law), parse_lengths(output_law)
    prompt_rng, output_rng = (np.random.default_rng([seed, stream]) for stream in range(2))
    return [
        [
            Request(wave * WAVE_GAP_S, int(prompt), int(output))
            for prompt, output in zip(
                prompts.sample(size, prompt_rng), outputs.sample(size, output_rng), strict=True
            )
        ]
        for wave in range(count)
    ]


async def judge(
    flags: Sequence[str],
    profile: str,
    planned: list[list[Request]],
    folder: Path,
    console: Console,
) -> DecisionFidelity:
    """Send ``planned`` through an emulated engine and through the simulator.

    Args:
        flags: of the server, beside ``--twp-emulate``.
        profile: step model of both.
        planned: see :func:`waves`.
        folder: takes log and trace of the server.
        console: where the user looks.

    Raises:
        JudgementError: the server failed, or a request did.
    """
    # SGLang's own warm-up request would be one that the simulator never saw.
    words = ["--twp-emulate", profile, "--skip-server-warmup", *flags]
    async with (
        serving(words, folder, console) as engine,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
    ):
        info = await engine.info(session)
        with console.status("waves") as status:
            for index, wave in enumerate(planned):
                status.update(f"wave {index + 1} of {len(planned)} on the emulated engine")
                await send(session, engine.url, wave, sum(map(len, planned[:index])))
        after = twp_of(await engine.info(session))
        if after["fallbacks"]:
            raise JudgementError(f"TWP fell back to stock scheduling ({after['fallback_reason']})")
    return compare(info, profile, planned, admissions_of(engine.trace_dir), len(engine.steps()))


async def send(
    session: aiohttp.ClientSession, url: str, wave: Sequence[Request], first: int
) -> None:
    """Send one wave to ``url`` and wait for its answers; requests are named from ``first`` on.

    Raises:
        JudgementError: it was refused, or an answer has another length.
    """
    rng = np.random.default_rng(first)
    body = {
        "rid": [str(first + index) for index in range(len(wave))],
        "input_ids": [
            # Each begins with an id of its own: a common one would be a prefix hit.
            [
                _FIRST_ID + first + index,
                *rng.integers(
                    _FIRST_ID, _FIRST_ID + MOST_REQUESTS, request.input_tokens - 1
                ).tolist(),
            ]
            for index, request in enumerate(wave)
        ],
        "sampling_params": [
            {"max_new_tokens": request.output_tokens, "ignore_eos": True} for request in wave
        ],
    }
    async with session.post(url + "/generate", json=body) as response:
        if response.status != 200:
            raise JudgementError(f"a wave was refused: {(await response.text())[:300]}")
        answers = await response.json()
    made = [answer["meta_info"]["completion_tokens"] for answer in answers]
    asked = [request.output_tokens for request in wave]
    if made != asked:
        raise JudgementError(f"answers have {made} tokens instead of {asked}")


class _Steps:
    """Keeps the simulator's records."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []

    def put(self, record: StepRecord) -> None:
        self.records.append(record)


def compare(
    info: dict[str, Any],
    profile: str,
    planned: list[list[Request]],
    theirs: list[tuple[int, dict[str, Any]]],
    engine_steps: int,
) -> DecisionFidelity:
    """Simulate the engine that answered ``info`` and set its admissions beside ``theirs``."""
    config = config_of(info)
    sink = _Steps()
    simulate(
        [request for wave in planned for request in wave],
        settings_of(info),
        lambda: step_source(profile).model,
        config,
        sinks=[sink],
    )
    ours = [
        (record.step, admission._asdict())
        for record in sink.records
        for admission in record.admissions
    ]
    wave_of = [wave for wave, members in enumerate(planned) for _ in members]
    engine, simulator = _by_request(theirs, wave_of), _by_request(ours, wave_of)
    if set(engine) != set(simulator):
        raise JudgementError(
            f"{len(engine)} requests were admitted by the engine, {len(simulator)} by the simulator"
        )
    admitted = tuple(
        Admitted(
            request=request,
            wave=wave_of[request],
            place=(engine[request][0], simulator[request][0]),
            step=(engine[request][1], simulator[request][1]),
            reason=(engine[request][2]["reason"], simulator[request][2]["reason"]),
            load_before_tokens=(
                engine[request][2]["load_before_tokens"],
                simulator[request][2]["load_before_tokens"],
            ),
        )
        for request in sorted(engine)
    )

    def same(name: str) -> float:
        pairs = [getattr(item, name) for item in admitted]
        return float(np.mean([left == right for left, right in pairs]))

    return DecisionFidelity(
        policy=config.policy,
        profile=profile,
        requests=len(admitted),
        waves=len(planned),
        same_order=same("place") == 1.0,
        same_reasons=same("reason"),
        same_step=same("step"),
        step_difference_max=max(abs(item.step[0] - item.step[1]) for item in admitted),
        same_load=same("load_before_tokens"),
        steps=(engine_steps, len(sink.records)),
        admitted=admitted,
    )


def _by_request(
    admissions: list[tuple[int, dict[str, Any]]], wave_of: list[int]
) -> dict[int, tuple[int, int, dict[str, Any]]]:
    """First admission of each request: (place, step from the first one of its wave, itself)."""
    found: dict[int, tuple[int, int, dict[str, Any]]] = {}
    origin: dict[int, int] = {}
    for step, admission in admissions:
        request = int(admission["rid"])
        if request in found:
            continue  # retracted and let in again
        start = origin.setdefault(wave_of[request], step)
        found[request] = (len(found), step - start, admission)
    return found
