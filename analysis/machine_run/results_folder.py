"""What a run has on disk: one folder and one JSON file per finished stage.

``run.json`` says what the run is, so that going on cannot mix two machines or models.
``stages/NAME/stage.json`` is written, whole, when stage NAME has ended; a stage without one
was cut, and its folder is emptied before it is tried again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from controllers.laws.base import FrozenModel
from twp_sglang.atomic_write import write_text

SCHEMA = "twp-machine-run/1"


class FolderError(ValueError):
    """The folder cannot be used; the message says why and what to do."""


class RunRecord(FrozenModel):
    """What must stay the same when a run goes on."""

    schema_version: str = SCHEMA
    model: str
    platform: str
    attention_backend: str
    seed: int
    engine_flags: tuple[str, ...]


class StageResult(FrozenModel):
    """How a stage ended.

    Attributes:
        name: of the stage.
        ok: it succeeded; ``error`` says why not.
        seconds: it took, from start to end.
        content: what it found, plain JSON.
    """

    name: str
    ok: bool
    seconds: float
    error: str = ""
    content: dict[str, Any] = Field(default_factory=dict)


class ResultsFolder:
    """The folder ``--out``."""

    def __init__(self, root: Path, record: RunRecord, *, resume: bool) -> None:
        """Begin a folder, or go on in one.

        Raises:
            FolderError: it holds a run and ``resume`` is not asked for, or another run, or
                nothing to resume.
            OSError: it cannot be written.
        """
        self.root = root
        path = root / "run.json"
        if path.exists():
            if not resume:
                raise FolderError(
                    f"--out {root}: holds a run already; go on with --resume, or name another "
                    "folder"
                )
            _same(path, record)
        elif resume:
            raise FolderError(f"--out {root}: holds no run to go on with; leave out --resume")
        else:
            write_text(path, record.model_dump_json(indent=1) + "\n")

    def stage_folder(self, name: str) -> Path:
        """The folder of stage ``name``."""
        return self.root / "stages" / name

    def fresh(self, name: str) -> Path:
        """An empty folder for stage ``name``."""
        folder = self.stage_folder(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def finish(self, result: StageResult) -> None:
        """Put the result of a stage on disk, whole."""
        path = self.stage_folder(result.name) / "stage.json"
        write_text(path, result.model_dump_json(indent=1) + "\n")

    def result(self, name: str) -> StageResult | None:
        """The result of stage ``name``; None while it has not ended.

        Raises:
            FolderError: its file holds something else.
        """
        path = self.stage_folder(name) / "stage.json"
        if not path.exists():
            return None
        try:
            return StageResult.model_validate_json(path.read_text("utf-8"))
        except (OSError, ValidationError) as error:
            raise FolderError(f"{path}: is no result of a stage ({error})") from None

    def ok(self, name: str) -> bool | None:
        """Whether stage ``name`` succeeded; None while it has not ended."""
        found = self.result(name)
        return None if found is None else found.ok

    def forget_failures(self) -> None:
        """Stages that failed are tried again."""
        for path in (self.root / "stages").glob("*/stage.json"):
            result = self.result(path.parent.name)
            if result is not None and not result.ok:
                path.unlink()


def _same(path: Path, record: RunRecord) -> None:
    try:
        before = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise FolderError(f"{path}: cannot be read ({error}); name another folder") from None
    for name, value in record.model_dump(mode="json").items():
        if not isinstance(before, dict) or before.get(name) != value:
            was = before.get(name) if isinstance(before, dict) else None
            raise FolderError(
                f"{path}: the run that is there has {name} = {was!r}, asked for is {value!r}; name "
                "another --out"
            )
