"""Times repeated work: with device events on a GPU, with the clock on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from twp_sglang.profiling.decoder import Decoder
from twp_sglang.profiling.step_inputs import StepInputs

Work = Callable[[], Any]

_WARM_UP_RUNS = 3
_GRAPH_WARM_UP_RUNS = 2
"""Before a capture: libraries choose their kernels and take their workspaces then."""


class Prepared(NamedTuple):
    """A step that can be repeated, and how it was made."""

    run: Work
    captured: bool
    note: str = ""


def times_ms(
    work: Work, device: torch.device, repeats: int, warm_up: int = _WARM_UP_RUNS
) -> list[float]:
    """Duration of each of ``repeats`` runs, ms, after ``warm_up`` that do not count.

    On a GPU the runs are queued back to back, so that the host is only felt where it is
    slower than the device, as in an engine that overlaps scheduling.
    """
    for _ in range(warm_up):
        work()
    if device.type != "cuda":
        found = []
        for _ in range(repeats):
            begun = time.perf_counter()
            work()
            found.append(1e3 * (time.perf_counter() - begun))
        return found
    torch.cuda.synchronize(device)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize(device)
    return [float(before.elapsed_time(after)) for before, after in pairwise(marks)]


def prepare(
    decoder: Decoder, step: StepInputs, device: torch.device, *, graph: bool, pool: Any = None
) -> Prepared:
    """Plan ``step`` and, with ``graph`` on a GPU, capture it.

    A step that cannot be captured is run as it is, and the note says so.

    Args:
        pool: memory pool that captures share (``torch.cuda.graph_pool_handle()``).
    """
    if not (graph and device.type == "cuda"):
        decoder.attention.plan(step, graph=False)
        return Prepared(lambda: decoder.step(step), captured=False)
    try:
        decoder.attention.plan(step, graph=True)
        return Prepared(_capture(decoder, step, pool), captured=True)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        # FlashInfer raises types of its own when a plan does not fit its workspace.
        torch.cuda.synchronize(device)
        decoder.attention.plan(step, graph=False)
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Prepared(
            lambda: decoder.step(step), captured=False, note=f"not captured as a graph: {first}"
        )


def _capture(decoder: Decoder, step: StepInputs, pool: Any) -> Work:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_GRAPH_WARM_UP_RUNS):
            decoder.step(step)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        decoder.step(step)
    replay: Work = graph.replay
    return replay
