"""A server under judgement, and its set-up in the simulator's terms."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from rich.console import Console

from controllers.trace_reader import StepTrace, read_step_trace
from twp_sglang.config import TwpConfig
from twp_sglang.serving.child import ServerFailed, ServerProcess, free_port
from twp_sglang.simulator.settings import EngineSettings, StepKind

START_TIMEOUT_S = 400.0
"""SGLang starts in 25 to 100 s on two cores, by what else runs there."""

_HEALTH_GENERATES = "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"

_TIMEOUT = aiohttp.ClientTimeout(total=30.0)


class JudgementError(Exception):
    """A measurement that cannot be made; the message says why."""


class Engine(NamedTuple):
    """A serving engine."""

    url: str
    trace_dir: Path

    async def info(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        """Its /server_info."""
        async with session.get(self.url + "/server_info", timeout=_TIMEOUT) as response:
            response.raise_for_status()
            body: dict[str, Any] = await response.json()
            return body

    def steps(self) -> StepTrace:
        """What it did so far; complete once it was stopped."""
        return read_step_trace(self.trace_dir)


@asynccontextmanager
async def serving(flags: Sequence[str], folder: Path, console: Console) -> AsyncIterator[Engine]:
    """Serve with ``flags`` and a step trace into ``folder``; stop at the end.

    Raises:
        JudgementError: the server did not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trace_dir = folder / "steps"
    for old in trace_dir.glob("*.jsonl"):
        old.unlink()
    port = free_port()
    words = [*flags, "--twp-trace", str(trace_dir), "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with _quiet_health():
        server = await ServerProcess.start(words, url, folder / "server.log")
    try:
        with console.status("starting the server") as status:
            try:
                await server.ready(
                    START_TIMEOUT_S,
                    lambda waited_s, _: status.update(f"starting the server ({waited_s:.0f} s)"),
                )
            except ServerFailed as error:
                raise JudgementError(f"{error}\n{error.tail}") from None
        yield Engine(url, trace_dir)
    finally:
        with console.status("stopping the server"):
            await server.stop()


@contextmanager
def _quiet_health() -> Iterator[None]:
    """Children started here answer /health without generating: such a request would pass
    through the policy and be one that the simulator never saw."""
    before = os.environ.get(_HEALTH_GENERATES)
    os.environ[_HEALTH_GENERATES] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_HEALTH_GENERATES]
        else:
            os.environ[_HEALTH_GENERATES] = before


def settings_of(info: dict[str, Any], *, ignore_eos: bool = True) -> EngineSettings:
    """The simulator's settings for the engine that answered ``info``.

    Raises:
        JudgementError: it does not say enough.
    """
    state = twp_of(info)
    kind: StepKind = "prefill-first"
    if info.get("enable_mixed_chunk"):
        kind = "mixed"
    elif info.get("prefill_decode_interval"):
        kind = "interval"
    chunk = int(info.get("chunked_prefill_size") or 0)
    inner = info["internal_states"][0]
    return EngineSettings(
        kv_tokens=int(info["max_total_num_tokens"]),
        page_size=int(info.get("page_size") or 1),
        step_kind=kind,
        prefill_decode_interval=int(info.get("prefill_decode_interval") or 1),
        chunk_tokens=chunk if chunk > 0 else None,
        decode_chunk_tokens=state.get("chunk_tokens"),
        max_prefill_tokens=int(info["max_prefill_tokens"]),
        max_running_requests=int(inner["effective_max_running_requests_per_dp"]),
        overlap=not info.get("disable_overlap_schedule"),
        schedule_conservativeness=float(info.get("schedule_conservativeness") or 1.0),
        ignore_eos=ignore_eos,
    )


def twp_of(info: dict[str, Any]) -> dict[str, Any]:
    """The state of TWP in the only scheduler.

    Raises:
        JudgementError: there is none, or more than one.
    """
    states = info.get("internal_states") or []
    if len(states) != 1 or not isinstance(states[0].get("twp"), dict):
        raise JudgementError(
            "the server must have one scheduler under TWP (a policy other than off): it writes "
            "the step trace that is compared"
        )
    state: dict[str, Any] = states[0]["twp"]
    return state


def config_of(info: dict[str, Any]) -> TwpConfig:
    """The policy's configuration in force."""
    return TwpConfig.model_validate(twp_of(info)["config"])


def admissions_of(trace_dir: Path) -> list[tuple[int, dict[str, Any]]]:
    """(step, admission) of every admission of a trace, in order."""
    path = read_step_trace(trace_dir).path
    found = []
    with path.open(encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            step = json.loads(line)
            found += [(int(step["step"]), admission) for admission in step["admissions"]]
    return found
