"""From a name or a file on the command line to a step model."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import NamedTuple

from twp_sglang.simulator.step_models import Affine, AffineStep, StepModel, Table, TableStep
from twp_sglang.simulator.step_replay import Replay, replay_file
from twp_sglang.step_profiles import ProfileError, StepProfile, named_profile, read_profile

DATA_DIR_VARIABLE = "TWP_DATA_DIR"
_TABLES = "decode_step_tables/composed_decode_step.csv"
_RECORDS = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")


class StepSource(NamedTuple):
    """A step model ready for one run, and the profile it came from, if any."""

    name: str
    model: StepModel
    profile: StepProfile | None


def step_source(name: str) -> StepSource:
    """The step model that ``name`` means.

    ``name`` is a profile (``h100-llama31-8b``), ``table:MODEL/TABLE`` of the decode tables
    in the data folder (``table:llama31_8b/h100_sxm_sglang_0.5.14``), a step trace
    (``.jsonl``, replayed), or a JSON file. Ask once per run: a replay keeps its place.

    Raises:
        ValueError: there is no such model, or its file cannot be used.
    """
    if name.startswith("table:"):
        return StepSource(name, Table(read_table(name.removeprefix("table:"))), None)
    path = Path(name)
    if path.name.endswith(_RECORDS):
        return StepSource(name, replay_file(path), None)
    # os.path.exists, unlike pathlib's, takes a name that no file can have.
    is_file = path.suffix == ".json" or os.path.exists(name)
    profile = read_profile(path) if is_file else named_profile(name)
    return StepSource(profile.name, build(profile.step), profile)


def build(step: AffineStep | TableStep) -> StepModel:
    """The model that a profile describes.

    Raises:
        ValueError: a table that is no grid.
    """
    return Affine(step) if isinstance(step, AffineStep) else Table(step)


def data_dir() -> Path | None:
    """The data folder: ``TWP_DATA_DIR``, or ``../shared/data`` where that exists."""
    given = os.environ.get(DATA_DIR_VARIABLE)
    folder = Path(given) if given else Path("../shared/data")
    return folder if folder.is_dir() else None


def read_table(which: str) -> TableStep:
    """A decode table of the data folder as a step model, ``which`` being MODEL/TABLE.

    Prompt tokens cost what the profile of the same machine says, where there is one.

    Raises:
        ProfileError: no data folder, or no such table; the message lists those there are.
    """
    folder = data_dir()
    path = None if folder is None else folder / _TABLES
    if path is None or not path.is_file():
        raise ProfileError(
            f"step model table:{which}: the decode tables ({_TABLES}) are looked for in the "
            f"folder that {DATA_DIR_VARIABLE} names; set it, or use a profile by name"
        )
    with path.open(newline="", encoding="utf-8") as handle:
        lines = list(csv.DictReader(handle))
    names = sorted({f"{line['model']}/{line['table']}" for line in lines})
    if which not in names:
        raise ProfileError(f"step model table:{which}: no such table; there are {', '.join(names)}")
    found = {
        (int(line["B"]), int(line["ctx"])): float(line["sum_ms"])
        for line in lines
        if f"{line['model']}/{line['table']}" == which
    }
    contexts = sorted({context for _, context in found})
    # A batch measured at one context only has no slope of its own.
    rows = [
        row
        for row in sorted({row for row, _ in found})
        if sum((row, context) in found for context in contexts) > 1
    ]
    affine = _profile_like(which)
    return TableStep(
        rows=tuple(rows),
        context_tokens=tuple(contexts),
        decode_ms=tuple(tuple(found.get((row, c)) for c in contexts) for row in rows),
        prefill_ms_per_token=affine.prefill_ms_per_token if affine else 0.0,
        prefill_free_tokens=affine.prefill_free_tokens if affine else 0.0,
    )


def _profile_like(which: str) -> AffineStep | None:
    model, _, table = which.partition("/")
    name = f"{table.split('_')[0]}-{model.replace('_', '-')}"
    try:
        step = named_profile(name).step
    except ProfileError:
        return None
    return step if isinstance(step, AffineStep) else None


def off_record(model: StepModel) -> int | None:
    """Steps whose time a replay did not hold; None for other models."""
    return model.off_record if isinstance(model, Replay) else None
