"""The entry of every SGLang scheduler process under TWP.

The launcher hands :func:`run_scheduler_process`, with the configuration bound to it, to
SGLang in the place of its own; SGLang pickles it into each process it starts, data-parallel
controllers included. So no process can serve without passing through here.
"""

from __future__ import annotations

import inspect
import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from controllers.step_trace import Header
from patches import active, fault_injection
from patches.install import ProofError, prove, prove_engine_uses, register
from patches.runtime import Ranks, Runtime
from patches.sglang_0_5 import emulation, engine_view
from patches.sglang_0_5.construction import when_constructed
from patches.sglang_0_5.observability import exporter_of
from patches.sglang_0_5.versions import EMULATION_TABLES, TABLES, HookTable, judge
from patches.sources import InstalledSource
from twp_sglang.config import TwpConfig
from twp_sglang.simulator.step_sources import step_source

logger = logging.getLogger(__name__)

EXIT_NOT_PROVED = 3
"""Exit code of a scheduler process in which TWP does not decide."""


class Payload(NamedTuple):
    """What a scheduler process is told."""

    config_json: str
    trace_dir: str | None
    model: str
    chunk_tokens: int | None
    """Prompt tokens per step while somebody decodes; None where the person set SGLang's."""
    emulate: str | None = None
    """Step model that stands in for the accelerator, as --twp-emulate has it."""


def entry_for(payload: Payload) -> Callable[..., None]:
    """The function to give SGLang as ``run_scheduler_process_func``."""
    return partial(run_scheduler_process, payload)


def run_scheduler_process(payload: Payload, *args: Any, **kwargs: Any) -> None:
    """Install and prove the hooks, then run SGLang's own scheduler process.

    Exits with :data:`EXIT_NOT_PROVED` and the reason where TWP would not decide.
    """
    try:
        config = TwpConfig.model_validate_json(payload.config_json)
        # "off" is stock scheduling with no hook of TWP; an emulated engine may ask for it.
        steering = None if config.policy == "off" else _fitting(TABLES)
        emulating = None if payload.emulate is None else _fitting(EMULATION_TABLES)
        _install((steering, emulating))
        if payload.emulate is not None and emulating is not None:
            emulation.install(
                step_source(payload.emulate), partial(_prove_emulation, payload.emulate, emulating)
            )
        if steering is not None:
            ranks = _ranks(args, kwargs)
            when_constructed(partial(_steer, payload, config, ranks, steering))
    except Exception as error:
        _refuse(error)
    from sglang.srt.managers.scheduler import run_scheduler_process as stock

    stock(*args, **kwargs)


def _fitting(tables: tuple[HookTable, ...]) -> HookTable:
    verdict = judge(InstalledSource(), tables)
    if not verdict.ok:
        raise ProofError(
            f"sglang {verdict.version} does not fit the hooks: " + "; ".join(verdict.reasons())
        )
    return verdict.table


def _install(tables: tuple[HookTable | None, ...]) -> None:
    from sglang.srt.plugins import load_plugins

    hooks = tuple(hook for table in tables if table is not None for hook in table.hooks)
    register(hooks)
    load_plugins()
    prove(hooks, fault_injection.requested().missing_hook)


def _prove_emulation(name: str, table: HookTable, scheduler: Any) -> None:
    """The scheduler stands: its worker must be the one that emulates, or no word is true."""
    try:
        prove_engine_uses(scheduler, table.hooks)
    except Exception as error:
        _refuse(error)
    logger.warning(
        "EMULATED engine in this scheduler process: step times come from %s, no model runs and "
        "tokens mean nothing; %d of %d hooks proved",
        name,
        len(table.hooks),
        len(table.hooks),
    )


def _ranks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ranks:
    from sglang.srt.managers.scheduler import run_scheduler_process as stock

    bound = inspect.signature(stock).bind(*args, **kwargs).arguments
    return Ranks(int(bound["tp_rank"]), bound.get("dp_rank"))


def _steer(
    payload: Payload, config: TwpConfig, ranks: Ranks, table: HookTable, scheduler: Any
) -> None:
    """The scheduler stands: build the runtime and say so in one line."""
    try:
        if not scheduler.is_generation:
            raise ProofError(
                "the model does not generate (embedding or reward model), so there is no "
                "inter-token latency to pace: serve it with --twp-policy off"
            )
        prove_engine_uses(scheduler, table.hooks)
        runtime = Runtime(
            config,
            scheduler,
            ranks,
            None if payload.trace_dir is None else Path(payload.trace_dir),
            _header(payload, config, scheduler),
            None
            if payload.chunk_tokens is None
            else engine_view.aligned_chunk(payload.chunk_tokens, scheduler),
            exporter_of(ranks.tp_rank, ranks.dp_rank),
        )
        active.install(runtime)
    except Exception as error:
        _refuse(error)
    logger.warning(
        "TWP %s in this scheduler process (tp rank %d%s): policy %s, %d of %d hooks proved",
        "decides admissions" if runtime.policy.enforces else "observes and decides nothing",
        ranks.tp_rank,
        "" if ranks.dp_rank is None else f", dp rank {ranks.dp_rank}",
        config.policy,
        len(table.hooks),
        len(table.hooks),
    )


def _header(payload: Payload, config: TwpConfig, scheduler: Any) -> Header:
    return Header(
        engine="sglang",
        engine_version=InstalledSource().version,
        model=payload.model,
        kv_capacity_tokens=int(scheduler.max_total_num_tokens),
        page_size=int(scheduler.page_size),
        overlap=bool(scheduler.enable_overlap),
        created_unix_s=time.time(),
        emulated=payload.emulate is not None,
        emulated_profile=emulation.profile(),
        config=config.model_dump(mode="json"),
    )


def _refuse(error: Exception) -> NoReturn:
    """Never serve as if TWP decided."""
    reason = str(error) if isinstance(error, ProofError) else f"{type(error).__name__}: {error}"
    if not isinstance(error, ProofError):
        logger.error("TWP cannot be installed", exc_info=error)
    print(f"twp: TWP does not decide in this scheduler process: {reason}", file=sys.stderr)
    sys.stderr.flush()
    sys.exit(EXIT_NOT_PROVED)
