"""Which points are visited, as far as the server can hold them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from twp_sglang.calibration.errors import usage
from twp_sglang.calibration.server import Server
from twp_sglang.calibration.settings import MIN_BATCH_SIZES, CalibrationSettings

_MAX_BATCH_CPU = 32
_MAX_BATCH_ACCELERATOR = 128
_KV_SHARE = 0.9
"""Of the KV cache: above it SGLang holds requests back or retracts them."""
_DECODING_BESIDE_PREFILL = 4
"""Requests that decode while a prompt is prefilled: few, so that their steps are short
against its chunks, more than one, so that one late token does not decide."""
_PROBES_PER_ROUND = 2
"""A probe is one difference of times, where a held batch gives the median of many steps."""
_CHUNKS = (0.25, 0.5, 0.75, 1.0, 2.0, 4.0)
CONTEXT = 64
"""Prompt tokens of the held requests unless asked otherwise: short ones fill quickly."""
_LONG_CONTEXTS = (512, 256)
"""Of the few visits that tell what a KV token costs: the first that fits the server."""
_LONG_PROMPTS_CPU, _LONG_PROMPTS_ACCELERATOR = 4096, 65_536
"""Most prompt tokens of such a visit: their prefill shall not take longer than its steps."""
_MIN_LONG = 2
_UNCHUNKED = (64, 128, 256, 512, 1024)


class DecodeTask(NamedTuple):
    """Hold ``batch`` requests of ``context_tokens`` prompt tokens."""

    batch: int
    context_tokens: int


class PrefillTask(NamedTuple):
    """Prefill ``tokens`` against ``decoding`` held requests of ``context_tokens``."""

    tokens: int
    decoding: int
    context_tokens: int


Task = DecodeTask | PrefillTask


class Plan(NamedTuple):
    """One round, and what had to be left out of it."""

    tasks: tuple[Task, ...]
    notes: tuple[str, ...]

    def shuffled(self, round_: int, seed: int) -> list[Task]:
        """The tasks in the order of round ``round_``."""
        order = np.random.default_rng((seed, round_)).permutation(len(self.tasks))
        return [self.tasks[i] for i in order]


def half_octaves(largest: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 6, 8, 12, ... up to ``largest``, which is the last."""
    sizes = {1, largest}
    power = 2
    while power <= largest:
        sizes.update(size for size in (power, power * 3 // 2) if size <= largest)
        power *= 2
    return tuple(sorted(sizes))


def longest_output(settings: CalibrationSettings, server: Server, batch: int, context: int) -> int:
    """Output tokens reserved per request when planning: the plateau, and a ramp of one step
    per chunk and one per arrival before it."""
    chunks = 0
    if server.chunk_tokens is not None:
        chunks = math.ceil(batch * context / server.chunk_tokens)
    return settings.steps + settings.settle_steps + chunks + 2 * batch


def make_plan(settings: CalibrationSettings, server: Server) -> Plan:
    """The points of one round.

    Raises:
        CalibrationError: a point that was asked for does not fit the server, or too few do.
    """
    notes: list[str] = []
    tasks: list[Task] = []
    for context in settings.contexts or (CONTEXT,):
        tasks += [DecodeTask(b, context) for b in _batches(settings, server, context, notes)]
    if settings.contexts is None:
        tasks += _long(settings, server, tasks, notes)
    tasks += _prefill(settings, server, notes)
    return Plan(tuple(tasks), tuple(notes))


def _long(
    settings: CalibrationSettings, server: Server, tasks: Sequence[Task], notes: list[str]
) -> list[Task]:
    """The largest batch that may hold a long context, a half and a quarter of it."""
    sizes = [task.batch for task in tasks if isinstance(task, DecodeTask)]
    prompts = _LONG_PROMPTS_CPU if _on_cpu(server) else _LONG_PROMPTS_ACCELERATOR
    for context in _LONG_CONTEXTS:
        fitting = [
            b
            for b in sizes
            if b * context <= prompts and _why_not(settings, server, b, context) is None
        ]
        if len(fitting) >= _MIN_LONG:
            chosen = {
                min(fitting, key=lambda b: abs(b - max(fitting) / part)) for part in (1, 2, 4)
            }
            return [DecodeTask(b, context) for b in sorted(chosen)]
    notes.append(
        f"no context longer than {CONTEXT} fits this server: what a KV token costs is part of the "
        "cost of a request"
    )
    return []


def _batches(
    settings: CalibrationSettings, server: Server, context: int, notes: list[str]
) -> Sequence[int]:
    asked = settings.batches
    if asked is not None:
        for batch in asked:
            reason = _why_not(settings, server, batch, context)
            if reason is not None:
                raise usage(f"--batches: batch {batch} does not fit: {reason}")
        return asked
    largest = settings.max_batch or (_MAX_BATCH_CPU if _on_cpu(server) else _MAX_BATCH_ACCELERATOR)
    sizes = half_octaves(largest)
    fitting = [b for b in sizes if _why_not(settings, server, b, context) is None]
    if len(fitting) < len(sizes):
        first_out = next(b for b in sizes if b not in fitting)
        reason = _why_not(settings, server, first_out, context)
        if len(fitting) < MIN_BATCH_SIZES or settings.max_batch is not None:
            raise usage(f"batch {first_out} does not fit: {reason}")
        notes.append(f"batches of {first_out} and more were left out: {reason}")
    return fitting


def _on_cpu(server: Server) -> bool:
    return server.device == "cpu" and not server.emulated


def _why_not(settings: CalibrationSettings, server: Server, batch: int, context: int) -> str | None:
    if server.max_batch is not None and batch > server.max_batch:
        return (
            f"the server runs at most {server.max_batch} requests at once "
            "(--max-running-requests); ask for fewer or raise it"
        )
    if server.max_prompt_tokens is not None and context > server.max_prompt_tokens:
        return f"a prompt of {context} tokens exceeds the server's {server.max_prompt_tokens}"
    if server.kv_tokens is not None:
        each = context + longest_output(settings, server, batch, context)
        if batch * each > _KV_SHARE * server.kv_tokens:
            return (
                f"{batch} requests of {each} tokens need {batch * each} tokens of KV cache and "
                f"the server has {server.kv_tokens}; lower --contexts or --steps, or raise "
                "--max-total-tokens or --mem-fraction-static on the server"
            )
    return None


def _prefill(settings: CalibrationSettings, server: Server, notes: list[str]) -> list[Task]:
    context = min(settings.contexts or (CONTEXT,))
    decoding = min(_DECODING_BESIDE_PREFILL, server.max_batch or _DECODING_BESIDE_PREFILL)
    room = None
    if server.kv_tokens is not None:
        chunk = server.chunk_tokens or 1024
        held = context + longest_output(settings, server, decoding, context) + settings.steps
        # Each chunk may come with a decode step of everybody held.
        room = (_KV_SHARE * server.kv_tokens - decoding * held) / (1.0 + decoding / chunk)
    limits = [x for x in (server.max_prompt_tokens, room) if x is not None]
    limit = min(limits) if limits else math.inf
    asked = settings.prefill
    if asked is None:
        chunk_tokens = server.chunk_tokens
        lengths = (
            [max(int(chunk_tokens * share), 1) for share in _CHUNKS]
            if chunk_tokens
            else list(_UNCHUNKED)
        )
        kept = sorted({n for n in lengths if n <= limit})
        if len(kept) < len(set(lengths)):
            notes.append(
                f"prefill probes above {limit:.0f} tokens were left out: they do not fit beside "
                f"{decoding} decoding requests"
            )
    else:
        kept = list(asked)
        for tokens in kept:
            if tokens > limit:
                raise usage(
                    f"--prefill {tokens}: at most {limit:.0f} prompt tokens fit beside {decoding} "
                    "decoding requests on this server"
                )
    tasks: list[Task] = [PrefillTask(n, decoding, context) for n in kept]
    return tasks * _PROBES_PER_ROUND
