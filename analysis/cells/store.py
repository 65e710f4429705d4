"""Results on disk as JSON lines, so that a stopped run goes on where it was.

A result belongs to its task and to the code that made it: the key holds both, and a result
of other code is not taken for an answer.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import controllers
import twp_sglang
from analysis.cells.measure import Metrics, Task
from analysis.cells.traffic import files
from twp_sglang.line_file import LineFile

_CODE = (
    (controllers, ("laws", "models")),
    (
        twp_sglang,
        (
            "scheduling",
            "simulator",
            "workloads",
            "step_profiles",
            "config.py",
            "latency_metrics.py",
        ),
    ),
)
_OWN = ("machines.py", "traffic.py", "utilisation.py", "measure.py")


@functools.cache
def code_fingerprint() -> str:
    """Hash of everything that decides a simulation's outcome."""
    digest = hashlib.sha256()
    own = Path(__file__).parent
    for path in _sources([own / name for name in _OWN]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for package, names in _CODE:
        root = Path(str(package.__file__)).parent
        for path in _sources([root / name for name in names]):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _sources(places: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            found += [p for p in place.rglob("*") if p.suffix in (".py", ".json")]
        else:
            found.append(place)
    return sorted(found)


@functools.cache
def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def task_key(task: Task) -> str:
    """Key of the result of ``task`` by this code on these files."""
    content = {
        "code": code_fingerprint(),
        "files": [_file_hash(path) for path in files(task.traffic)],
        "task": task.model_dump(mode="json"),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


class ResultFile(LineFile):
    """Appends results and knows those of earlier runs. A context manager."""

    def __init__(self, path: Path) -> None:
        """Read ``path`` where it exists; a torn last line, as a kill leaves it, is dropped.

        Raises:
            ValueError: the file holds something else.
            OSError: it cannot be read or written.
        """
        self.known: dict[str, Metrics] = {}
        whole = b""
        if path.exists():
            content = path.read_bytes()
            end = content.rfind(b"\n") + 1
            whole = content[:end]
            for number, line in enumerate(whole.splitlines(), start=1):
                try:
                    row = json.loads(line)
                    self.known[row["key"]] = row["metrics"]
                except (ValueError, KeyError, TypeError):
                    raise ValueError(
                        f"{path} line {number}: is no result of this command; give another folder"
                    ) from None
            if end != len(content):
                path.write_bytes(whole)
        super().__init__(path, "a")

    def add(self, key: str, what: dict[str, Any], metrics: Metrics) -> None:
        """Keep a result; it is on disk when this returns."""
        self.known[key] = metrics
        row = {"key": key, **what, "metrics": metrics}
        self._write(json.dumps(row, allow_nan=False))
        self._file.flush()
