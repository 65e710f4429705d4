"""The command lines of this repository, and the argument parser that each really uses.

The parser is taken from the command itself: its ``main`` runs until it parses, and goes no
further. So the flags reference and the check of the documentation see what a person sees.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

LAUNCHER = "twp_sglang.launch_server"

COMMANDS: dict[str, tuple[str, ...]] = {
    LAUNCHER: (),
    "twp_sglang.calibrate": (),
    "twp_sglang.simulate": (),
    "twp_sglang.bench": ("run", "compare"),
    "twp_sglang.audit": (),
    "twp_sglang.doctor": (),
    "twp_sglang.demo": (),
    "twp_sglang.demo_model": (),
    "twp_sglang.soak": (),
    "twp_sglang.top": (),
    "twp_sglang.profile_step": (),
    "controllers": (
        *("identify", "tune", "report", "margins", "step", "equilibrium", "stability-map"),
    ),
    "patches": ("check",),
    "analysis.paper": (),
    "analysis.compare": (),
    "analysis.gain_sweep": (),
    "analysis.fidelity": ("decisions", "latency"),
    "tools.structure": (),
    "tools.flags_reference": (),
    "tools.metrics_reference": (),
    "tools.pictures": (),
}
"""Modules for ``python -m``, with their sub-commands."""


class UsageError(Exception):
    """A command line that its command refuses; the message is the command's own."""


class _Reached(BaseException):
    """The command has come to its parser."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def parser_of(command: str, sub: str | None = None) -> argparse.ArgumentParser:
    """The parser of ``python -m command``, or of its sub-command ``sub``."""
    if command == LAUNCHER:
        from twp_sglang.serving import options

        return options.parser()
    with _stopping(parses=False):
        parser = _reach(command, [sub] if sub else [])
    if sub is None:
        return parser
    actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    found: argparse.ArgumentParser = actions[0].choices[sub]
    return found


def check(command: str, words: Sequence[str]) -> None:
    """Let ``command`` parse ``words``.

    Raises:
        UsageError: it refuses them.
    """
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
            if command == LAUNCHER:
                _check_launcher(list(words))
                return
            with _stopping(parses=True):
                _reach(command, list(words))
    except SystemExit as leaving:
        if leaving.code not in (0, None):
            raise UsageError(told.getvalue().strip() or f"exit status {leaving.code}") from None


def _check_launcher(words: list[str]) -> None:
    """TWP's flags by TWP's parser; SGLang's, where it is installed, by SGLang's."""
    from twp_sglang.serving import options

    parser = options.parser()
    flags = {word for action in parser._actions for word in action.option_strings}
    _, engine = parser.parse_known_args(options._bound(words, flags))
    unknown = [word for word in engine if word.startswith(options.PREFIX)]
    if unknown:
        raise UsageError(f"no such flag: {unknown[0]}")
    sglang = _sglang_parser()
    if sglang is None:
        return
    if engine and not any(word.startswith(("--model-path", "--model")) for word in engine):
        engine = ["--model-path", "MODEL", *engine]
    if engine:
        sglang.parse_args(engine)


@functools.cache
def _sglang_parser() -> argparse.ArgumentParser | None:
    try:
        from sglang.srt.server_args import ServerArgs
    except ImportError:
        return None
    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    return parser


def _reach(command: str, words: list[str]) -> argparse.ArgumentParser:
    name = f"{command}.__main__" if command in ("controllers", "patches") else command
    main: Any = importlib.import_module(name).main
    try:
        main(words)
    except _Reached as reached:
        return reached.parser
    raise UsageError(f"python -m {command} {' '.join(words)}: came to no parser")


@contextlib.contextmanager
def _stopping(*, parses: bool) -> Iterator[None]:
    """Every parser stops its command, after parsing the words or before."""
    original = argparse.ArgumentParser.parse_args

    def stop(
        self: argparse.ArgumentParser, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        if parses:
            original(self, args, namespace)
        raise _Reached(self)

    with patch.object(argparse.ArgumentParser, "parse_args", stop):
        yield
