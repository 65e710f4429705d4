"""A run from start to end, and on again where it was cut."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from analysis.machine_run.commands import run_module
from analysis.machine_run.engine_set_up import (
    EngineSetUp,
    SetUpError,
    engine_missing,
    engine_set_up,
    on_gpu,
)
from analysis.machine_run.learning import TraceError, learn
from analysis.machine_run.report import write_report
from analysis.machine_run.results_folder import ResultsFolder, RunRecord, StageResult
from analysis.machine_run.serving_stage import Orders, Served, StageFailed, serve
from analysis.machine_run.settings import RunSettings
from analysis.machine_run.stages import (
    LEARN,
    PROFILE,
    STAGES,
    STOCK,
    Costs,
    Planned,
    Stage,
    plan,
)
from analysis.machine_run.traffic import Traffic
from twp_sglang.benchmarking.slo_argument import parse_slos

EXIT_GOOD, EXIT_UNUSABLE = 0, 2

_RESERVE_S = 5.0
"""For the last report."""

Say = Callable[[str], None]


async def run(settings: RunSettings, console: Console, say: Say) -> int:
    """Do what fits, write the report after every stage; the exit status.

    Raises:
        SetUpError, FolderError, ShapeError: something has to change first.
        OSError: the folder cannot be written.
    """
    begun = time.monotonic()
    gpu = on_gpu(settings)
    record = RunRecord(
        model=settings.model,
        platform="gpu" if gpu else "cpu",
        attention_backend=settings.attention_backend if gpu else "torch_native",
        seed=settings.seed,
        engine_flags=settings.engine_flags,
    )
    folder = ResultsFolder(settings.out, record, resume=settings.resume)
    if settings.resume:
        folder.forget_failures()
    set_up = engine_set_up(settings, folder.root, gpu=gpu)
    kit = _Kit(settings, folder, set_up, console, say)
    missing = engine_missing(settings, gpu=gpu)
    if missing is not None:
        say(missing)
        await kit.only_profile(missing)
        return EXIT_UNUSABLE
    seconds = settings.minutes * 60.0
    while True:
        planned = kit.plan(seconds - _RESERVE_S - (time.monotonic() - begun))
        kit.report(planned)
        if not planned.run:
            break
        say(
            f"to do: {', '.join(planned.run)}"
            + (f"; left out: {', '.join(planned.left_out)}" if planned.left_out else "")
        )
        await kit.do(next(stage for stage in STAGES if stage.name == planned.run[0]))
    for name, why in planned.left_out.items():
        say(f"left out: {name} ({why})")
    stock = folder.result(STOCK.name)
    return EXIT_UNUSABLE if stock is not None and not stock.ok else EXIT_GOOD


class _Kit:
    """The stages of one run."""

    def __init__(
        self,
        settings: RunSettings,
        folder: ResultsFolder,
        set_up: EngineSetUp,
        console: Console,
        say: Say,
    ) -> None:
        self._settings, self._folder, self._set_up = settings, folder, set_up
        self._console, self._say = console, say
        total_s = settings.minutes * 60.0
        self._traffic_s = min(max(0.06 * total_s, 10.0), 60.0)
        self._calibrate_s = min(max(0.12 * total_s, 15.0), 120.0)
        self._profile_s = min(max(0.1 * total_s, 8.0), 120.0)
        self._costs = Costs(
            # Start-up of the profiler, of FlashInfer's kernels, and of the engine: guesses
            # until one was seen.
            profile_s=self._profile_s + (30.0 if set_up.gpu else 10.0),
            start_s=75.0 if set_up.gpu else 35.0,
            calibrate_s=self._calibrate_s + 5.0,
            # Drains after the burst, and the server's end.
            traffic_s=1.6 * self._traffic_s + 5.0,
            learn_s=10.0,
        )
        self._learn_costs_from_disk()

    def plan(self, seconds_left: float) -> Planned:
        """What fits."""
        stages = [stage for stage in STAGES if stage != PROFILE or self._set_up.shape is not None]
        return plan(stages, self._folder.ok, self._costs, seconds_left)

    def report(self, planned: Planned) -> None:
        """Write the report of what there is."""
        results = {s.name: r for s in STAGES if (r := self._folder.result(s.name)) is not None}
        write_report(self._folder.root, self._settings, self._set_up, results, planned)

    async def only_profile(self, why: str) -> None:
        """Without an engine: the profile, and a report that says so."""
        rest = {stage.name: why for stage in STAGES if stage != PROFILE}
        if self._set_up.shape is not None and not self._folder.ok(PROFILE.name):
            await self.do(PROFILE)
        self.report(Planned(run=(), left_out=rest))

    async def do(self, stage: Stage) -> None:
        """One stage, and its result on disk however it ends."""
        self._say(f"{stage.name}: {stage.title}")
        folder = self._folder.fresh(stage.name)
        begun = time.monotonic()
        content: dict[str, Any] = {}
        error = ""
        try:
            if stage.kind == "profile":
                content = await self._profile(folder)
            elif stage.kind == "learn":
                content = self._learn(folder)
            else:
                content = await self._serve(stage, folder)
        except StageFailed as failure:
            error, content = str(failure), failure.content
            self._say(f"{stage.name} failed: {error}")
        seconds = time.monotonic() - begun
        self._folder.finish(
            StageResult(
                name=stage.name, ok=not error, seconds=seconds, error=error, content=content
            )
        )
        self._say(f"{stage.name}: {seconds:.0f} s")

    async def _profile(self, folder: Path) -> dict[str, Any]:
        out = folder / "step.json"
        words = [
            *self._set_up.profile_words,
            *("--out", str(out), "--seed", str(self._settings.seed)),
            *("--budget-s", f"{self._profile_s:g}"),
        ]
        if not self._set_up.gpu:
            # Enough steps for a fit in seconds; on a CPU the profile checks the path only.
            words += ["--batches", "1,2,4,8", "--contexts", "32,128", "--chunks", "16,64"]
        try:
            ended = await run_module(
                "twp_sglang.profile_step",
                words,
                folder / "profile.log",
                4.0 * self._profile_s + 300.0,  # FlashInfer may compile its kernels first
            )
        except TimeoutError:
            raise StageFailed(f"profile_step did not end; see {folder / 'profile.log'}") from None
        content: dict[str, Any] = {"status": ended.status}
        if out.exists():
            content["profile"] = json.loads(out.read_text("utf-8"))
        if ended.status == 2 or not out.exists():
            raise StageFailed(ended.last_line.removeprefix("profile_step: "))
        return content

    def _learn(self, folder: Path) -> dict[str, Any]:
        first, last = self._content(STOCK.name)["passes"]
        try:
            content = learn(self._folder.stage_folder(STOCK.name), (first, last), folder)
        except TraceError as error:
            raise StageFailed(str(error)) from None
        if "refusals" in content:
            # The model is kept and shown; what rests on the tuning is left out.
            (folder / "identified.json").write_text(
                json.dumps(content["identified"], indent=1), "utf-8"
            )
            raise StageFailed("not tuned: " + " ".join(content["refusals"]), content)
        return content

    async def _serve(self, stage: Stage, folder: Path) -> dict[str, Any]:
        stock = None if stage == STOCK else self._content(STOCK.name)
        orders = Orders(
            flags=self._flags(stage),
            traffic=None if stock is None else Traffic.model_validate(stock["traffic"]),
            calibrate_s=self._calibrate_s,
            traffic_s=self._traffic_s,
        )
        served = await serve(
            self._set_up,
            orders,
            folder,
            self._console,
            load=self._settings.load,
            burst_factor=self._settings.burst_factor,
            seed=self._settings.seed,
            slo=self._settings.slo,
        )
        self._took(served)
        timing = {"start_s": served.start_s, "traffic_s": served.traffic_s}
        return {**served.content, "timing": timing}

    def _flags(self, stage: Stage) -> tuple[str, ...]:
        """The flags of launch_server that make the setting of ``stage``."""
        if stage == STOCK:
            return ("--twp-policy", "observe")
        return (*self._steering(stage), *(("--enable-mixed-chunk",) if self._set_up.gpu else ()))

    def _steering(self, stage: Stage) -> tuple[str, ...]:
        """The same without what every setting but stock has on a GPU: chunks in decode steps,
        which SGLang 0.5.17 takes on its command line only."""
        if stage.name in ("tuned", "neighbour"):
            file = self._folder.stage_folder(LEARN.name) / f"{stage.name}.toml"
            return ("--twp-policy", "twp", "--twp-config", str(file))
        calibration = self._content(STOCK.name)["calibration"]
        if stage.name.startswith("static"):
            cap = {"static-b0": 1, "static-2b0": 2}.get(stage.name)
            b0 = max(int(calibration["b0"] or 8), 1)
            limit = () if cap is None else ("--max-running-requests", str(cap * b0))
            return ("--twp-policy", "fcfs", *limit)
        profile = self._folder.stage_folder(STOCK.name) / "profile.json"
        known = ("--twp-profile", str(profile)) if calibration["l_min_ms"] else ()
        if stage.name == "slo":
            return ("--twp-policy", "slo", *objectives(self._settings.slo), *known)
        law = "regulated" if stage.name == "regulated" else "paper"
        return ("--twp-policy", "twp", "--twp-law", law, *known)

    def _content(self, name: str) -> dict[str, Any]:
        found = self._folder.result(name)
        if found is None or not found.ok:
            raise StageFailed(f"stage {name} is missing")
        return found.content

    def _took(self, served: Served) -> None:
        self._costs = self._costs.model_copy(
            update={"start_s": served.start_s + 2.0, "traffic_s": served.traffic_s + 5.0}
        )

    def _learn_costs_from_disk(self) -> None:
        for stage in STAGES:
            found = self._folder.result(stage.name)
            timing = None if found is None else found.content.get("timing")
            if timing:
                self._took(Served({}, timing["start_s"], 0.0, timing["traffic_s"]))


def objectives(slo: str) -> tuple[str, ...]:
    """The goals of ``--slo`` that policy slo can hold, as its flags; its defaults for others."""
    flags: list[str] = []
    for goal in parse_slos(slo) if slo else ():
        if goal.metric == "ttft":
            flags += ["--twp-ttft-slo", f"{goal.limit_ms:g}ms"]
        elif goal.metric == "itl_p99":
            flags += ["--twp-itl-slo", f"{goal.limit_ms:g}ms"]
    return tuple(flags)


def run_to_end(settings: RunSettings, console: Console, say: Say) -> int:
    """See :func:`run`."""
    return asyncio.run(run(settings, console, say))


__all__ = ["EXIT_GOOD", "EXIT_UNUSABLE", "SetUpError", "run_to_end"]
