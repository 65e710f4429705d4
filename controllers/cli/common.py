"""What the commands share: the loop's arguments, errors in one line, and output."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from controllers.models import LoopModel
from controllers.settings import Settings, SettingsError, jsonable, load_settings


class CommandError(Exception):
    """Bad input: the dispatcher prints the message and exits with 2."""


def fail(message: str) -> NoReturn:
    """Stop the command with one line and exit code 2."""
    raise CommandError(message)


def keys_help() -> str:
    """One line per key that ``--set`` takes."""
    lines = [f"  {key:22} {field.description}" for key, field in Settings.model_fields.items()]
    return "keys of --set and --config:\n" + "\n".join(lines)


def new_parser(sub: Any, name: str, summary: str) -> argparse.ArgumentParser:
    """Parser of one command with the arguments that all commands take."""
    parser: argparse.ArgumentParser = sub.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=keys_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML or JSON file of keys")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="assignments",
        metavar="KEY=VALUE",
        help="set one key, over the file; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    return parser


def settings_of(args: argparse.Namespace) -> Settings:
    """Settings from ``--config`` and ``--set``; keys the law does not use go to stderr."""
    try:
        settings = load_settings(args.config, args.assignments)
    except SettingsError as error:
        fail(str(error))
    if unused := settings.unused():
        print(f"note: law = {settings.law!r} does not use {', '.join(unused)}", file=sys.stderr)
    missing = [key for key in ("lengths", "delay_steps") if getattr(settings, key) is None]
    if args.config is not None and missing:
        # A server's configuration, tune's included, does not know its traffic.
        print(
            f"note: {args.config} does not state {' and '.join(missing)}: the defaults are "
            "assumed, not those of the trace that the file may come from; state them with --set",
            file=sys.stderr,
        )
    return settings


def loop_of(args: argparse.Namespace) -> LoopModel:
    """The loop that the command line describes."""
    settings = settings_of(args)
    try:
        return settings.loop()
    except SettingsError as error:
        fail(str(error))


def emit(args: argparse.Namespace, data: Mapping[str, Any], text: Callable[[], str]) -> int:
    """Print ``data`` as JSON or ``text()`` for people; the exit code."""
    print(json.dumps(jsonable(data), allow_nan=False) if args.json else text())
    return 0


def number(value: float | None, digits: int = 4) -> str:
    """``value`` for a table; None, which stands for infinite, as 'inf'."""
    return "inf" if value is None else f"{value:.{digits}g}"
