"""The simulate command: reads, runs, writes, tells."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from twp_sglang.benchmarking.slo_argument import parse_slos
from twp_sglang.config import TwpConfig
from twp_sglang.config_values import OptionsError
from twp_sglang.latency_metrics import Slo
from twp_sglang.simulator.arguments import (
    admission_policy,
    build_parser,
    configuration,
    engine_settings,
    pool_of,
    with_objectives,
)
from twp_sglang.simulator.engine import SimulationStalled
from twp_sglang.simulator.pool_report import pool_json, print_pool
from twp_sglang.simulator.report import as_json, print_table, write_json
from twp_sglang.simulator.serverless import PoolRun, simulate_pool
from twp_sglang.simulator.settings import EngineSettings
from twp_sglang.simulator.simulate import Run, simulate
from twp_sglang.simulator.step_models import StepModel
from twp_sglang.simulator.step_sources import StepSource, off_record, step_source
from twp_sglang.simulator.steps import StepFile, header_for, replica_path
from twp_sglang.workloads.read import read_workload
from twp_sglang.workloads.workload import Workload, summarise

_PROGRESS_EVERY = 64
"""Requests between two updates of the bar."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status (2 for bad input)."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        return _run(arguments)
    except ValidationError as error:
        message = "; ".join(_problem(item) for item in error.errors())
    except (OptionsError, ValueError, OSError, SimulationStalled) as error:
        message = str(error)
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted, nothing written", file=sys.stderr)
        return 130
    print(f"{parser.prog}: error: {message}", file=sys.stderr)
    return 2


def _run(arguments: argparse.Namespace) -> int:
    console = Console(stderr=True)
    config = configuration(admission_policy(arguments.policy), arguments.config, arguments.set)
    pool = pool_of(arguments)
    slos = parse_slos(arguments.slo) if arguments.slo else ()
    config, taken = with_objectives(config, slos)
    source = step_source(arguments.step_model)
    settings = engine_settings(arguments, config, source.profile)
    _writable(arguments.json, "--json")
    if arguments.steps is not None:
        _two_files(arguments)
    workload = read_workload(
        arguments.trace,
        arguments.format,
        limit=arguments.limit,
        time_stretch=arguments.time_stretch,
        rate_rps=arguments.rate,
        seed=arguments.seed,
    )
    if arguments.max_new_tokens is not None:
        workload = _declared(workload, arguments.max_new_tokens)
    summary = summarise(workload)
    console.print(f"{workload.name}: {summary.line()}", highlight=False)
    for note in workload.notes:
        console.print(f"note: {note}", highlight=False)
    if taken:
        console.print(f"note: {taken}", highlight=False, soft_wrap=True)
    models: list[StepModel] = []
    pooled: PoolRun | None = None
    if pool is None:
        run = _simulate(arguments, workload, settings, config, source, slos, models, console)
    else:
        with _bar(console, len(workload.requests), _shown(arguments, console)) as progress:
            pooled = simulate_pool(
                workload.requests,
                settings,
                _maker(arguments, source, models),
                config,
                *pool,
                noise=arguments.noise,
                seed=arguments.seed,
                slos=slos,
                progress=progress,
            )
        run = pooled.run
    asked = {
        "step_model": source.name,
        "seed": arguments.seed,
        "replicas": arguments.replicas,
        "router": arguments.router,
        "time_stretch": arguments.time_stretch,
        "noise": arguments.noise,
        "steps_off_record": sum(off_record(model) or 0 for model in models),
    }
    told = as_json(run.result, workload, summary, config, settings, asked, slos)
    told["policy"] = arguments.policy
    if pooled is not None:
        told["pool"] = pool_json(pooled.stats, pooled.pool.settings)
    write_json(told, arguments.json)
    print_table(Console(), f"{arguments.policy} on {source.name}, simulated", run.result)
    if pooled is not None:
        print_pool(Console(), pooled.stats)
    return 0


def _shown(arguments: argparse.Namespace, console: Console) -> bool:
    return console.is_terminal and not arguments.no_progress


def _maker(
    arguments: argparse.Namespace, source: StepSource, models: list[StepModel]
) -> Callable[[], StepModel]:
    """Makes step models, one per engine, and notes them in ``models``."""

    def model() -> StepModel:
        # A replay keeps its place, so every engine needs its own.
        models.append(step_source(arguments.step_model).model if models else source.model)
        return models[-1]

    return model


def _simulate(
    arguments: argparse.Namespace,
    workload: Workload,
    settings: EngineSettings,
    config: TwpConfig,
    source: StepSource,
    slos: Sequence[Slo],
    models: list[StepModel],
    console: Console,
) -> Run:
    with contextlib.ExitStack() as stack:
        sinks = []
        if arguments.steps is not None:
            _writable(arguments.steps, "--steps")
            header = header_for(settings, config, source.name)
            sinks = [
                stack.enter_context(
                    StepFile(replica_path(arguments.steps, index, arguments.replicas), header)
                )
                for index in range(arguments.replicas)
            ]
        shown = _shown(arguments, console)
        progress = stack.enter_context(_bar(console, len(workload.requests), shown))
        return simulate(
            workload.requests,
            settings,
            _maker(arguments, source, models),
            config,
            replicas=arguments.replicas,
            router=arguments.router,
            report_every_ms=arguments.load_report_ms,
            noise=arguments.noise,
            seed=arguments.seed,
            slos=slos,
            sinks=sinks,
            progress=progress,
        )


@contextlib.contextmanager
def _bar(console: Console, total: int, shown: bool) -> Iterator[Callable[[int], None] | None]:
    if not shown:
        yield None
        return
    with Progress(
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        task = progress.add_task("requests", total=total)

        def left(count: int) -> None:
            if count % _PROGRESS_EVERY == 0 or count == total:
                progress.update(task, completed=count)

        yield left


def _declared(workload: Workload, limit: int) -> Workload:
    """Every client declares ``limit``; longer answers are cut there, as a server would."""
    cut = sum(request.output_tokens > limit for request in workload.requests)
    notes = workload.notes + (
        (f"{cut} answers are longer than --max-new-tokens {limit} and are cut",) if cut else ()
    )
    return workload._replace(
        requests=tuple(r._replace(max_new_tokens=limit) for r in workload.requests), notes=notes
    )


def _writable(path: Path, flag: str) -> None:
    if path.is_dir():
        raise OptionsError(f"{flag} {path}: is a folder; name a file")
    if not path.absolute().parent.is_dir():
        raise OptionsError(f"{flag} {path}: its folder does not exist; make it first")


def _two_files(arguments: argparse.Namespace) -> None:
    """One file for both results would hold only the one that is written last."""
    for index in range(arguments.replicas):
        path = replica_path(arguments.steps, index, arguments.replicas)
        if path.resolve() == arguments.json.resolve():
            raise OptionsError(
                f"--steps {arguments.steps}: would write over --json {arguments.json}; name two "
                "files"
            )


def _problem(error: object) -> str:
    assert isinstance(error, dict)
    place = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{place} = {error.get('input')!r}: {message}" if place else message
