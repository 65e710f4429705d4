"""The emulated engine: stock SGLang whose model is replaced by a wait.

A table of its own, registered only when asked for: HTTP, tokenizer, scheduler, prefix
cache, KV accounting and streaming stay SGLang's; the forward of the worker becomes a step
on :class:`patches.emulated_device.EmulatedDevice` and tokens that mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from patches.contract import Hook
from patches.emulated_device import EmulatedDevice
from patches.emulated_tokens import TokenSource, candidates
from patches.sglang_0_5.engine_view import SCHEDULE_BATCH, SCHEDULER, batch_facts

if TYPE_CHECKING:  # a check of the hooks has no use for scipy, which this loads
    from twp_sglang.simulator.step_sources import StepSource

TP_WORKER = "sglang.srt.managers.tp_worker"
UTILS = "sglang.srt.managers.utils"
LOGITS = "sglang.srt.layers.logits_processor"

_NO_LOGPROBS = (
    "this engine is EMULATED: no model runs and there are no log probabilities; ask without "
    "logprobs"
)


class EmulatedModel:
    """What runs instead of the model, in one scheduler process."""

    def __init__(self, source: StepSource) -> None:
        self.source = source
        self._device: EmulatedDevice | None = None
        self._tokens: TokenSource | None = None

    def state(self) -> dict[str, Any]:
        """What /server_info says of it; JSON types only."""
        device = self._device
        return {
            "emulated": True,
            "emulated_profile": self.source.name,
            "emulated_steps": 0 if device is None else device.steps,
            "emulated_busy_ms": 0.0 if device is None else round(device.busy_ms, 3),
            "emulated_starved_steps": 0 if device is None else device.starved_steps,
            "emulated_late_ms_mean": (
                0.0
                if device is None or not device.steps
                else round(device.late_ms_sum / device.steps, 4)
            ),
            "emulated_late_ms_max": 0.0 if device is None else round(device.late_ms_max, 3),
        }

    def idle(self) -> None:
        """The scheduler found nothing to run."""
        if self._device is not None:
            self._device.idle()

    def forward(self, worker: Any, batch: Any) -> Any:
        """One step in the place of the model's: SGLang's ``GenerationBatchResult``."""
        import torch

        device, tokens = self._made_for(worker)
        _refuse_logprobs(batch)
        facts = batch_facts(batch)
        lengths = batch.seq_lens_cpu if batch.seq_lens_cpu is not None else batch.seq_lens
        deadline_s = device.launch(facts.decode_rows, int(lengths.sum()), facts.prefill_tokens)
        dealt = tokens.deal(req.sampling_params.stop_token_ids for req in batch.reqs)
        result = _result_class()(
            logits_output=_no_logits(),
            next_token_ids=torch.tensor(dealt, dtype=torch.int64, device=batch.seq_lens.device),
            can_run_cuda_graph=False,
        )
        if worker.enable_overlap:
            result.completion = _Completion(device, deadline_s)
        else:
            device.wait(deadline_s)
        return result

    def _made_for(self, worker: Any) -> tuple[EmulatedDevice, TokenSource]:
        if self._device is None or self._tokens is None:
            config = worker.model_config
            self._device = EmulatedDevice(self.source.model, bool(worker.enable_overlap))
            self._tokens = TokenSource(
                candidates(
                    worker.tokenizer, int(config.vocab_size), set(config.hf_eos_token_id or ())
                )
            )
        return self._device, self._tokens


class _Completion:
    """Stands for the device event that SGLang waits for before it reads a result."""

    def __init__(self, device: EmulatedDevice, deadline_s: float) -> None:
        self._device = device
        self._deadline_s = deadline_s
        self.copied: Any = None

    def synchronize(self) -> None:
        self._device.wait(self._deadline_s)
        if self.copied is not None:
            self.copied.synchronize()


@cache
def _result_class() -> type:
    from sglang.srt.managers.utils import GenerationBatchResult

    class EmulatedResult(GenerationBatchResult):  # type: ignore[misc]  # untyped for mypy
        """A result that is ready when the emulated step is."""

        completion: _Completion | None = None
        copy_done: Any

        def copy_to_cpu(self, *args: Any, **kwargs: Any) -> None:
            """As stock; then the event to wait for is the end of the emulated step."""
            super().copy_to_cpu(*args, **kwargs)
            if self.completion is not None:
                self.completion.copied = self.copy_done
                self.copy_done = self.completion

    return EmulatedResult


def _no_logits() -> Any:
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput

    return LogitsProcessorOutput(next_token_logits=None)


def _refuse_logprobs(batch: Any) -> None:
    """End requests that want numbers that nobody computed with HTTP 400, and only those."""
    if not batch.return_logprob:
        return
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    for req in batch.reqs:
        if req.return_logprob:
            req.return_logprob = False
            req.to_finish = FINISH_ABORT(_NO_LOGPROBS, 400, "BadRequestError")
    batch.return_logprob = False


_model: EmulatedModel | None = None
_on_constructed: Callable[[Any], None] | None = None


def install(source: StepSource, on_constructed: Callable[[Any], None]) -> None:
    """Make the hooks of this process emulate ``source``.

    ``on_constructed`` is called with the scheduler that the process builds, before it
    serves; an exception of it ends the process.
    """
    global _model, _on_constructed
    _model = EmulatedModel(source)
    _on_constructed = on_constructed


def profile() -> str:
    """Name of the step model in force; empty where the engine is real."""
    return "" if _model is None else _model.source.name


def forward_batch_generation(
    original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """AROUND: the stock forward is never called."""
    if _model is None or batch is None:
        raise RuntimeError("an emulated engine was asked for a forward that it cannot stand in for")
    return _model.forward(worker, batch)


def on_idle(original: Callable[..., Any], scheduler: Any) -> Any:
    """AROUND: the device is idle from here on."""
    if _model is not None:
        _model.idle()
    return original(scheduler)


def scheduler_init(returned: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER: an exception here ends the process before it serves; that is meant."""
    if _on_constructed is not None:
        _on_constructed(scheduler)


def get_internal_state(result: Any, scheduler: Any, *args: Any) -> None:
    """AFTER: say EMULATED where an operator looks, whatever else is there."""
    if _model is None:
        return
    # Without TWP's own hooks this is all there is under "twp".
    state = result.internal_state.setdefault("twp", {"policy": "off", "deciding": False})
    state.update(_model.state())
    result.internal_state["emulated"] = True


HOOKS = (
    Hook(
        target=f"{TP_WORKER}.TpModelWorker.forward_batch_generation",
        kind="around",
        function=f"{__name__}:forward_batch_generation",
        signatures=(
            "self, batch, forward_batch=, pp_proxy_tensors=, is_verify=, "
            "skip_attn_backend_init=, *, capture_hidden_mode=",
            "self, batch, forward_batch=, pp_proxy_tensors=, is_verify=, "
            "skip_attn_backend_init=, *, capture_hidden_mode=, return_kv_loc_plan=",
        ),
        replaces="the model's forward and the sampling",
        why="everything above it stays stock; below it are kernels, weights and logits",
        until="SGLang has a model runner that plays step times",
        reads=(
            f"{TP_WORKER}:TpModelWorker.enable_overlap",
            f"{TP_WORKER}:TpModelWorker.model_config",
            f"{TP_WORKER}:TpModelWorker.tokenizer",
            f"{SCHEDULE_BATCH}:ScheduleBatch.seq_lens",
            f"{SCHEDULE_BATCH}:ScheduleBatch.seq_lens_cpu",
            f"{SCHEDULE_BATCH}:ScheduleBatch.return_logprob",
            f"{SCHEDULE_BATCH}:Req.return_logprob",
            f"{SCHEDULE_BATCH}:Req.to_finish",
            f"{SCHEDULE_BATCH}:FINISH_ABORT",
            f"{UTILS}:GenerationBatchResult.copy_to_cpu",
            f"{UTILS}:GenerationBatchResult.copy_done",
            f"{UTILS}:GenerationBatchResult.next_token_ids",
            f"{LOGITS}:LogitsProcessorOutput.next_token_logits",
        ),
    ),
    Hook(
        target=f"{SCHEDULER}.Scheduler.on_idle",
        kind="around",
        function=f"{__name__}:on_idle",
        signatures=("self",),
        replaces="nothing: notes the call",
        why="a step after an idle spell starts when it is launched, not when the last one ended",
        until="SGLang tells the worker when it is idle",
    ),
    Hook(
        target=f"{SCHEDULER}.Scheduler.__init__",
        kind="after",
        function=f"{__name__}:scheduler_init",
        signatures=(),
        replaces="nothing",
        why="the proof that this engine's worker is the one that emulates",
        until="SGLang calls plug-ins when its scheduler is ready",
        reads=(f"{SCHEDULER}:Scheduler.tp_worker",),
    ),
    Hook(
        target=f"{SCHEDULER}.Scheduler.get_internal_state",
        kind="after",
        function=f"{__name__}:get_internal_state",
        signatures=("self, recv_req",),
        replaces="nothing: adds keys",
        why="/server_info must say EMULATED, also without any TWP hook",
        until="SGLang lets a plug-in add to the internal state",
        reads=("sglang.srt.managers.io_struct:GetInternalStateReqOutput.internal_state",),
    ),
)
