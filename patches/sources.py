"""SGLang's source text, installed or in a wheel, read without importing it."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import Protocol


class SourceError(Exception):
    """There is no SGLang source to judge; the message says where it was looked for."""


class Source(Protocol):
    """Where module texts come from."""

    version: str

    def parse(self, module: str) -> ast.Module | None:
        """Syntax tree of ``module`` (dotted), or None if there is no such module.

        Raises:
            SourceError: the module is there and cannot be read.
        """


class InstalledSource:
    """The SGLang that this interpreter would import."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("sglang")
        if spec is None or not spec.submodule_search_locations:
            raise SourceError(
                "sglang is not installed: install the engine-cpu or engine-cuda extra"
            )
        self._root = Path(spec.submodule_search_locations[0]).parent
        try:
            self.version = importlib.metadata.version("sglang")
        except importlib.metadata.PackageNotFoundError:
            # A source tree on the path; the number only warns, the signatures decide.
            self.version = "unknown"

    @cache  # noqa: B019 - one source per check, and it lives as long
    def parse(self, module: str) -> ast.Module | None:
        """See :class:`Source`."""
        for path in _candidates(module):
            file = self._root / path
            if file.is_file():
                try:
                    data = file.read_bytes()
                except OSError as error:
                    raise SourceError(f"{file}: cannot be read ({error.strerror})") from None
                return _tree(data, str(file))
        return None


class WheelSource:
    """An SGLang wheel file, not installed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise SourceError(f"{path}: not a readable wheel ({error})") from None
        self._names = set(self._archive.namelist())
        metadata = next(
            (
                name
                for name in self._names
                if re.fullmatch(r"sglang-[^/]+\.dist-info/METADATA", name)
            ),
            None,
        )
        if metadata is None:
            raise SourceError(f"{path}: not a wheel of sglang")
        text = self._read(metadata).decode("utf-8", errors="replace")
        found = re.search(r"^Version: (\S+)$", text, re.MULTILINE)
        if found is None:
            raise SourceError(f"{path}: its METADATA names no version")
        self.version = found.group(1)

    def _read(self, name: str) -> bytes:
        try:
            return self._archive.read(name)
        except (OSError, zipfile.BadZipFile, zlib.error) as error:
            raise SourceError(f"{self._path}: {name} is damaged ({error})") from None

    @cache  # noqa: B019 - one source per check, and it lives as long
    def parse(self, module: str) -> ast.Module | None:
        """See :class:`Source`."""
        for path in _candidates(module):
            if path in self._names:
                return _tree(self._read(path), f"{self._path}: {path}")
        return None


def _tree(data: bytes, name: str) -> ast.Module:
    try:
        return ast.parse(data)
    except (SyntaxError, ValueError) as error:
        raise SourceError(f"{name}: this Python cannot parse it ({error})") from None


def _candidates(module: str) -> tuple[str, str]:
    base = module.replace(".", "/")
    return f"{base}.py", f"{base}/__init__.py"
