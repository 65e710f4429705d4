"""A folder that is whole or absent: prepared once, under a lock, checked before use.

A preparation writes into a partial folder beside its goal and renames it at the end, so a
killed one leaves nothing that could be taken for a model. The lock belongs to the process
and dies with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from controllers.laws.base import FrozenModel

MANIFEST = "twp-manifest.json"
_PARTIAL = ".partial-"
_BLOCK_BYTES = 1 << 20


class FileEntry(FrozenModel):
    """One file as it was written."""

    size_bytes: int
    sha256: str


class Manifest(FrozenModel):
    """What a prepared folder holds, written last."""

    source: str
    files: dict[str, FileEntry]


def cache_root() -> Path:
    """TWP_CACHE_DIR, else ``twp-sglang`` in the user's cache folder (XDG base directories)."""
    named = os.environ.get("TWP_CACHE_DIR")
    if named:
        return Path(named).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is invalid and must be ignored.
    base = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache"
    return base / "twp-sglang"


def fault_of(folder: Path) -> str | None:
    """Why ``folder`` cannot be used, or None when every byte is as it was written."""
    if not folder.is_dir():
        return "not there yet"
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError):
        return f"{MANIFEST} is missing or unreadable"
    for name, entry in manifest.files.items():
        path = folder / name
        try:
            if path.stat().st_size != entry.size_bytes:
                return f"{name} has {path.stat().st_size} bytes, not {entry.size_bytes}"
            if _sha256(path) != entry.sha256:
                return f"{name} was changed (checksum)"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror or error})"
    return None


def prepared(
    folder: Path,
    source: str,
    build: Callable[[Path], None],
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """``folder``, built by ``build`` unless it is there and whole.

    Args:
        folder: the goal; its parents are made.
        source: what it is made from, for the manifest.
        build: writes the files into the empty folder it is given.
        say: told what takes time.

    Raises:
        OSError: the cache cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f".{folder.name}.lock"), say):
        fault = fault_of(folder)
        if fault is None:
            return folder
        _remove_leftovers(folder)
        if folder.exists():
            say(f"{folder} is damaged ({fault}) and is prepared anew")
        partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}{_PARTIAL}"))
        try:
            build(partial)
            _write_manifest(partial, source)
            if folder.exists():
                # A folder cannot be renamed onto a filled one: move the damaged one away.
                folder.rename(Path(f"{partial}-old"))
            partial.rename(folder)
        finally:
            _remove_leftovers(folder)
        return folder


def _write_manifest(folder: Path, source: str) -> None:
    files = {
        path.name: FileEntry(size_bytes=path.stat().st_size, sha256=_sha256(path))
        for path in sorted(folder.iterdir())
    }
    text = json.dumps(Manifest(source=source, files=files).model_dump(), indent=1)
    (folder / MANIFEST).write_text(text + "\n", "utf-8")
    folder.chmod(0o755)  # mkdtemp and safetensors make private ones
    for path in folder.iterdir():
        path.chmod(0o644)
        # Or a power cut after the rename could leave the name without the bytes.
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove_leftovers(folder: Path) -> None:
    """Partial folders of killed preparations; safe, because the lock is held."""
    for path in folder.parent.glob(f".{folder.name}{_PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[IO[str]]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is preparing the model; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
