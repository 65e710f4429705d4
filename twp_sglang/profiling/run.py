"""One profiling run from start to end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from controllers.laws.base import FrozenModel
from twp_sglang.profiling import machine as machines
from twp_sglang.profiling.attention import Attention, kv_pool
from twp_sglang.profiling.correctness import Agreement, agreement, small
from twp_sglang.profiling.decoder import Decoder, random_weights
from twp_sglang.profiling.faults import EXIT_UNUSABLE, MachineUnfit, explain
from twp_sglang.profiling.fitting import FitError, fit_steps
from twp_sglang.profiling.flashinfer_attention import FlashInferAttention, import_flashinfer
from twp_sglang.profiling.measuring import Bench, Measured, headline_of
from twp_sglang.profiling.model_shape import ModelShape, model_shape
from twp_sglang.profiling.roofline import measured_rates
from twp_sglang.profiling.sdpa_attention import SdpaAttention
from twp_sglang.profiling.settings import (
    CPU_BATCHES,
    CPU_CHUNKS,
    CPU_CONTEXTS,
    GPU_BATCHES,
    GPU_CHUNKS,
    GPU_CONTEXTS,
    ProfileSettings,
)
from twp_sglang.profiling.step_file import Findings, StepTraceFile, header, write_step_file
from twp_sglang.profiling.step_points import Plan, make_plan

EXIT_GOOD, EXIT_INCOMPLETE = 0, 1

_WRITE_EVERY_S = 5.0
"""How much of the model's file a kill may cost; the trace loses nothing."""

Say = Callable[[str], None]


class _Set(FrozenModel):
    """What the settings come to on this machine."""

    shape: ModelShape
    device: Any
    dtype: Any
    notes: tuple[str, ...]

    @property
    def element_bytes(self) -> int:
        """Bytes of a weight or a KV element."""
        return int(torch.empty((), dtype=self.dtype).element_size())


def profile(settings: ProfileSettings, command: str, say: Say) -> tuple[int, Findings | None]:
    """Measure, fit and write; (exit status, what was found).

    Whatever ends the run early is told in one line through ``say``, with status 2; what was
    measured by then is on disk and is returned.

    Raises:
        OSError: ``settings.out`` cannot be written.
    """
    keeper = _Keeper(settings)
    try:
        _measure(settings, command, say, keeper)
    except KeyboardInterrupt:
        keeper.end("interrupted")
        say("interrupted; what was measured is kept")
        return EXIT_INCOMPLETE, keeper.findings
    except BaseException as error:
        line = explain(error)
        if line is None:
            raise
        keeper.end(line)
        say(line)
        return EXIT_UNUSABLE, keeper.findings
    found = keeper.findings
    if found is None or (found.agreement is not None and not found.agreement.good):
        return EXIT_INCOMPLETE, found
    return (EXIT_GOOD if found.complete else EXIT_INCOMPLETE), found


class _Keeper:
    """Holds what is known so far, and puts it on disk."""

    def __init__(self, settings: ProfileSettings) -> None:
        self.findings: Findings | None = None
        self._settings = settings
        self._written_s = 0.0

    def take(self, findings: Findings) -> None:
        """Know more, or know something to begin with."""
        self.findings = findings

    def update(self, **changes: Any) -> None:
        """Know more of the run under way."""
        if self.findings is not None:
            self.findings = self.findings.model_copy(update=changes)

    def add(self, found: Measured, held_out: frozenset[Any]) -> None:
        """One more point, fitted and written now and then."""
        if self.findings is None:
            return
        self.update(measured=(*self.findings.measured, found))
        if time.monotonic() - self._written_s >= _WRITE_EVERY_S:
            self.write(held_out)

    def write(self, held_out: frozenset[Any]) -> None:
        """Fit what there is, and write it; nothing while there is too little."""
        if self.findings is None:
            return
        times = {found.point: found.median_ms for found in self.findings.measured}
        try:
            self.update(fit=fit_steps(times, held_out))
        except FitError:
            return
        write_step_file(self._settings.out, self.findings)
        self._written_s = time.monotonic()

    def end(self, reason: str) -> None:
        """Write what there is, with the reason why there is no more."""
        if self.findings is None:
            return
        self.update(ended=reason)
        held = frozenset(
            found.point
            for found in self.findings.measured
            if found.point.label() in self.findings.held_out
        )
        self.write(held)


def _measure(settings: ProfileSettings, command: str, say: Say, keeper: _Keeper) -> None:
    flashinfer = import_flashinfer() if settings.backend == "flashinfer" else None
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    what = _set_up(settings)
    device, shape = what.device, what.shape
    plan, kv_tokens, pool_slots = _plan(settings, what)
    agreed = None
    if settings.check:
        agreed = _check(settings, what, flashinfer)
        say(
            f"checked: relative error {agreed.worst:.2g}, limit {agreed.limit:g}: "
            + ("agrees" if agreed.good else "DOES NOT AGREE, the times below are of wrong results")
        )
    rates = measured_rates(device, what.dtype)
    record = machines.record(device, flashinfer, what.notes)
    keeper.take(
        Findings(
            shape=shape,
            backend=settings.backend,
            dtype=str(what.dtype).removeprefix("torch."),
            element_bytes=what.element_bytes,
            machine=record,
            agreement=agreed,
            rates=rates,
            kv_tokens=kv_tokens,
            command=command,
            left_out=plan.left_out,
            held_out=tuple(sorted(point.label() for point in plan.held_out)),
        )
    )
    say(
        f"{shape.name}: {shape.parameters / 1e9:.2f} G parameters, KV pool of {pool_slots} tokens, "
        f"{len(plan.points)} steps to measure"
    )
    decoder = Decoder(
        shape,
        random_weights(shape, what.dtype, device, settings.seed),
        kv_pool(shape, pool_slots, what.dtype, device, settings.seed + 1),
        _attention(settings, what, shape, flashinfer),
    )
    bench = Bench(
        decoder, device, graphs=settings.graphs, repeats=settings.repeats, seed=settings.seed
    )
    begun = time.monotonic()
    with StepTraceFile(settings.trace, header(shape, settings.backend, record, kv_tokens)) as trace:
        for number, point in enumerate(plan.points, start=1):
            if time.monotonic() - begun > settings.budget_s:
                keeper.end(
                    f"the time of --budget-s {settings.budget_s:g} ran out after {number - 1} of "
                    f"{len(plan.points)} steps"
                )
                say(str(keeper.findings.ended if keeper.findings else ""))
                return
            found = bench.measure(point)
            trace.add(found)
            keeper.add(found, plan.held_out)
            say(f"{number:3}/{len(plan.points)}  {point.label()}: {found.median_ms:.3f} ms")
    measured = list(keeper.findings.measured) if keeper.findings else []
    head = headline_of(measured)
    if head is not None:
        keeper.update(parts=bench.take_apart(head))
    keeper.update(complete=True)
    keeper.write(plan.held_out)


def _set_up(settings: ProfileSettings) -> _Set:
    shape = model_shape(settings.model)
    device = machines.choose_device(settings.device)
    if settings.backend == "flashinfer" and device.type != "cuda":
        raise MachineUnfit(
            "--backend flashinfer: its kernels run on an NVIDIA GPU, and torch sees none here; "
            "take --backend sdpa on a CPU"
        )
    name = settings.dtype
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" else "float32"
    if settings.backend == "flashinfer" and name == "float32":
        raise MachineUnfit("--dtype float32: FlashInfer computes in 16 bits; take bfloat16")
    dtype = getattr(torch, name)
    notes = machines.check_device(device, dtype, allow_busy=settings.allow_busy)
    return _Set(shape=shape, device=device, dtype=dtype, notes=notes)


def _attention(
    settings: ProfileSettings, what: _Set, shape: ModelShape, flashinfer: Any
) -> Attention:
    if flashinfer is None:
        return SdpaAttention(shape)
    return FlashInferAttention(shape, what.dtype, what.device, settings.extend, flashinfer)


def _check(settings: ProfileSettings, what: _Set, flashinfer: Any) -> Agreement:
    with torch.inference_mode():
        return agreement(
            what.shape,
            settings.backend,
            _attention(settings, what, small(what.shape), flashinfer),
            what.dtype,
            what.device,
            settings.seed,
            graph=settings.graphs != "none",
        )


def _plan(settings: ProfileSettings, what: _Set) -> tuple[Plan, int, int]:
    """The points that fit, the KV tokens that memory would hold, and the pool's size."""
    shape, device = what.shape, what.device
    gpu = device.type == "cuda"
    free = machines.free_bytes(device)
    weights = shape.parameters * what.element_bytes
    per_token = shape.kv_bytes_per_token(what.element_bytes)
    room = (free - weights) // per_token
    if room < 1:
        raise MachineUnfit(
            f"out of memory: the weights of {shape.name} take {weights / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB may be used on this {'GPU' if gpu else 'machine'}; give a "
            "smaller --model"
        )
    plan = make_plan(
        settings.batches or (GPU_BATCHES if gpu else CPU_BATCHES),
        settings.contexts or (GPU_CONTEXTS if gpu else CPU_CONTEXTS),
        settings.chunks or (GPU_CHUNKS if gpu else CPU_CHUNKS),
        # What attention and the matrix products need besides stays within the spare share
        # of free_bytes on a GPU; gathering on a CPU doubles the KV of a layer.
        slots=int(room),
        context_limit=shape.context_tokens,
        seed=settings.seed,
    )
    return plan, int(room), max(point.slots for point in plan.points)
