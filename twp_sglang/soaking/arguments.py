"""The command line of ``python -m twp_sglang.soak``, made from the settings' fields."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from twp_sglang.soaking.settings import Mix, SoakSettings

_NUMBERS = (
    "minutes", "seed", "rate_rps", "measure_s", "measure_clients", "base_load", "burst_load",
    "burst_s", "burst_every_s", "longest_prompt_tokens", "longest_output_tokens", "vocabulary",
    "reply_bound_s", "poll_s", "settle_s", "warm_up_share", "memory_growth_mib", "handle_growth",
    "launcher_pid",
)  # fmt: skip


class SettingsError(Exception):
    """The command line asks for something that cannot be; the message says what and why."""


class Asked(NamedTuple):
    """What the command line asks for."""

    settings: SoakSettings
    serve: list[str] | None
    """Flags of the server to start, or None for one that runs already."""
    log: Path


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="python -m twp_sglang.soak",
        description="Soak a server: mixed requests for hours, in bursts above what it can carry, "
        "with clients that go, aborts, bad bodies and configuration changes, and judge its "
        "invariants. Exit code 0 when all that could be judged held, 1 when one was violated, "
        "2 when the soak could not be run.",
        epilog="example: python -m twp_sglang.soak --minutes 30 -- --model-path MODEL",
        argument_default=argparse.SUPPRESS,
    )
    result.add_argument(
        "--url", help="the running server; its processes are watched where it is local"
    )
    for name in _NUMBERS:
        field = SoakSettings.model_fields[name]
        default = "unset" if field.default is None else field.default
        result.add_argument(
            "--" + name.replace("_", "-"),
            metavar="VALUE",
            help=f"{(field.description or '').replace('%', '%%')} [{default}]".strip(),
        )
    result.add_argument(
        "--mix",
        metavar="KIND=WEIGHT,...",
        help="what is sent, for example serve=1,abort=0.5; the other kinds get 0. Kinds: "
        + ", ".join(Mix.model_fields),
    )
    result.add_argument(
        "--no-changes",
        dest="changes",
        action="store_false",
        help="leave the configuration alone, where the server would let one change it",
    )
    result.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable that holds the server's API key"
    )
    result.add_argument("--json", dest="json_path", type=Path, metavar="FILE", help="full result")
    result.add_argument(
        "--log",
        type=Path,
        default=Path("soak-server.log"),
        metavar="FILE",
        help="log of the server started here [soak-server.log]",
    )
    return result


def parse(argv: Sequence[str]) -> Asked:
    """What ``argv`` asks for; after ``--`` stand the flags of a server to start.

    Raises:
        SettingsError: it cannot be done.
    """
    words, serve = list(argv), None
    if "--" in words:
        cut = words.index("--")
        words, serve = words[:cut], words[cut + 1 :]
    given = vars(parser().parse_args(words))
    log = given.pop("log")
    variable = given.pop("api_key_env", None)
    if variable is not None:
        if not os.environ.get(variable):
            raise SettingsError(f"--api-key-env {variable}: is not set; export the key under it")
        given["api_key"] = os.environ[variable]
    if serve is None and "url" not in given:
        raise SettingsError("--url: missing; give it, or the flags of a server to start after --")
    if serve is not None:
        if "url" in given:
            raise SettingsError(
                f"--url {given['url']}: a server is also to be started (flags after --); leave one"
            )
        given["url"] = "http://127.0.0.1:0"
    if "mix" in given:
        given["mix"] = _mix(given["mix"])
    given["url"] = given["url"].rstrip("/")
    try:
        return Asked(SoakSettings.model_validate(given), serve, log)
    except ValidationError as error:
        raise SettingsError(_said(error)) from None


def _mix(text: str) -> Mix:
    weights: dict[str, str] = dict.fromkeys(Mix.model_fields, "0")
    for entry in text.split(","):
        name, _, weight = entry.partition("=")
        if name not in weights or not weight:
            raise SettingsError(
                f"--mix {text}: {entry!r} is not KIND=WEIGHT; kinds: {', '.join(weights)}"
            )
        weights[name] = weight
    try:
        return Mix.model_validate(weights)
    except ValidationError as error:
        raise SettingsError(f"--mix {text}: {_said(error)}") from None


def _said(error: ValidationError) -> str:
    problems = []
    for item in error.errors():
        name = "--" + str(item["loc"][0]).replace("_", "-") if item["loc"] else ""
        message = item["msg"].removeprefix("Value error, ")
        problems.append(f"{name} {item['input']}: {message}" if name else message)
    return "; ".join(problems)
