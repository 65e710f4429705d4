"""The Markdown files of the repository, their links and their blocks of code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from tools.structure import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]

SHELL = ("", "text", "bash", "sh", "shell", "console")
"""Languages of blocks that may hold commands."""

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n`]*\n(?P<text>.*?)^ *```", re.M | re.S
)


class Block(NamedTuple):
    """A fenced block: where it starts, its language, its text."""

    line: int
    language: str
    text: str


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str) -> list[Block]:
    return [
        Block(text.count("\n", 0, match.start()) + 1, match["language"], match["text"])
        for match in _FENCE.finditer(text)
    ]


def prose(text: str) -> str:
    """``text`` without its fenced blocks."""
    return _FENCE.sub("", text)


def links(text: str) -> list[str]:
    """Targets of links and pictures outside code, as written."""
    plain = re.sub(r"`[^`\n]*`", "", prose(text))
    return re.findall(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)", plain)


def inline_code(text: str) -> list[str]:
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(text))]


def commands(block: str) -> list[str]:
    """The lines of a shell block, continued lines joined, prompts and comments taken off."""
    joined = re.sub(r"\\\n\s*", " ", block)
    lines = [re.sub(r"(^|\s)#.*$", "", line).strip() for line in joined.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line]


class Call(NamedTuple):
    """A call of ``python -m``: the module, its words, and whether something was left out."""

    module: str
    words: list[str]
    partial: bool


def call(line: str) -> Call | None:
    """The call of ``python -m`` in a command line, if it is one."""
    optional = re.sub(r"\[[^\]]* [^\]]*\]|\[--[^\]]*\]|\[\.\.\.[^\]]*\]", "", line)
    try:
        words = shlex.split(optional)
    except ValueError:
        return None
    if "python" not in words[:3]:
        return None
    words = words[words.index("python") + 1 :]
    if len(words) < 2 or words[0] != "-m":
        return None
    end = next(
        (i for i, word in enumerate(words) if re.fullmatch(r"\||>|>>|&&|;|&|2>&1", word)), None
    )
    words = words[:end]
    partial = any("..." in word for word in words)
    kept = [word for word in words[2:] if "..." not in word]
    return Call(words[1], kept, partial)


def exists(page: Path) -> bool:
    return page.is_file() or page.is_dir()
