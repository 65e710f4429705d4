"""``--twp-*`` flags, profile and file, merged into one :class:`TwpConfig`.

The flags are made from the configuration's fields, so that a field, its flag and its help
text cannot drift apart. Errors name the field, the value, where it came from and what to
do; nothing here imports SGLang or torch, so they come before any model is looked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from twp_sglang.config import TwpConfig
from twp_sglang.config_values import (
    OptionsError,
    build,
    closest,
    load_table,
    one_spelling,
    reason_of,
    value_of,
)
from twp_sglang.objective_values import SPELLINGS
from twp_sglang.step_profiles import profile_names

PREFIX = "--twp-"

# Written by calibrate and by tune beside the fields; kept with them, decide nothing.
_NOT_FLAGS = frozenset({"evidence"})

PROFILE_FIELDS = (
    *("l_min_ms", "b0", "alpha_ms", "h0_tokens"),
    *("c_ms", "a_ms", "kappa_ms_per_token", "prefill_ms_per_token", "prefill_free_tokens"),
)
"""What a profile gives to the configuration; the second line is policy slo's model."""


class Options(NamedTuple):
    """What the command line asks of TWP, and the arguments left for SGLang."""

    config: TwpConfig
    given: dict[str, str]
    """Fields that somebody set, with where."""
    trace_dir: Path | None
    engine_argv: list[str]
    help_wanted: bool
    emulate: str | None = None
    """Step model that stands in for the accelerator: a name, or an absolute path."""


def parser() -> argparse.ArgumentParser:
    """The ``--twp-*`` part of the command line."""
    result = argparse.ArgumentParser(
        prog="python -m twp_sglang.launch_server",
        description="Serve with stock SGLang under Token Window Pacing. Every SGLang flag is "
        "taken as it is; its own help follows this one.",
        allow_abbrev=False,
        add_help=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    group = result.add_argument_group("Token Window Pacing")
    group.add_argument(
        "--twp-config", type=Path, metavar="FILE", help="TOML or JSON file of the fields below"
    )
    group.add_argument(
        "--twp-profile",
        type=Path,
        metavar="FILE",
        help="JSON written by python -m twp_sglang.calibrate: gives baseline, knee, window and "
        f"step model ({', '.join(PROFILE_FIELDS)}); file and flags override it",
    )
    group.add_argument(
        "--twp-trace", type=Path, metavar="DIR", help="write one JSON line per step into DIR"
    )
    group.add_argument(
        "--twp-emulate",
        metavar="NAME|MODEL.json",
        help="EMULATED engine: stock SGLang, no model and no GPU; each step takes the time that "
        f"this step model predicts, and tokens mean nothing. Names: {', '.join(profile_names())}",
    )
    for name, field in TwpConfig.model_fields.items():
        if name in _NOT_FLAGS:
            continue
        default = "unset" if field.default is None else field.default
        group.add_argument(
            flag_of(name),
            dest=name,
            metavar="VALUE",
            help=f"{(field.description or '').replace('%', '%%')} [{default}]",
        )
    for spelling, name in SPELLINGS.items():
        group.add_argument(
            flag_of(spelling),
            dest=spelling,
            metavar="DURATION",
            help=f"the same as {flag_of(name)}, with its unit: 50ms, 0.05s, 2s; or auto",
        )
    return result


def flag_of(field: str) -> str:
    """Command-line flag of a configuration field."""
    return PREFIX + field.replace("_", "-")


def parse(argv: list[str]) -> Options:
    """Split ``argv`` into TWP's options and SGLang's arguments.

    Raises:
        OptionsError: a file cannot be read, or a value cannot be used.
    """
    known = parser()
    known.error = _raise  # type: ignore[method-assign, assignment]  # no exit from a library
    flags_known = {word for action in known._actions for word in action.option_strings}
    namespace, engine_argv = known.parse_known_args(_bound(argv, flags_known))
    unknown = next((word for word in engine_argv if word.startswith(PREFIX)), None)
    if unknown is not None:
        close = closest(unknown.partition("=")[0], flags_known)
        hint = f"did you mean {close}?" if close else "--help lists those there are"
        raise OptionsError(f"{unknown}: no such flag; {hint}")
    flags = vars(namespace)
    config_file: Path | None = flags.pop("twp_config", None)
    profile: Path | None = flags.pop("twp_profile", None)
    trace: Path | None = flags.pop("twp_trace", None)
    emulate: str | None = flags.pop("twp_emulate", None)
    values: dict[str, Any] = {}
    given: dict[str, str] = {}
    if profile is not None:
        loaded = load_table(profile, "--twp-profile")
        _merge(values, given, _profile_values(loaded, profile), f"profile {profile}")
    if config_file is not None:
        _merge(values, given, load_table(config_file, "--twp-config"), f"file {config_file}")
    stated = {name: value_of(text) for name, text in flags.items()}
    objectives = [n for n in stated if n in SPELLINGS or n in SPELLINGS.values()]
    values.update(one_spelling(stated, "flag " + " and ".join(map(flag_of, objectives))))
    given.update({SPELLINGS.get(name, name): f"flag {flag_of(name)}" for name in stated})
    return Options(
        build(values, given),
        given,
        None if trace is None else _usable_directory(trace),
        engine_argv,
        any(word in ("-h", "--help") for word in engine_argv),
        None if emulate is None else _usable_step_model(emulate),
    )


def _bound(argv: list[str], flags: Collection[str]) -> list[str]:
    """``--flag value`` of our flags as ``--flag=value``: argparse takes a value such as
    -1e-3 or -inf for a flag and complains of a missing value instead of a wrong one."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] in flags and not word.startswith("--"):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def _merge(
    values: dict[str, Any], given: dict[str, str], new: Mapping[str, Any], source: str
) -> None:
    fields = one_spelling(new, source)
    values.update(fields)
    given.update(dict.fromkeys(fields, source))


def _profile_values(loaded: Mapping[str, Any], path: Path) -> dict[str, Any]:
    section = loaded.get("twp", loaded)
    if not isinstance(section, Mapping):
        raise OptionsError(f"--twp-profile {path}: twp = {section!r} must be a table of fields")
    found = {name: section[name] for name in PROFILE_FIELDS if section.get(name) is not None}
    if not found:
        raise OptionsError(
            f"--twp-profile {path}: holds none of {', '.join(PROFILE_FIELDS)}; make it with "
            "python -m twp_sglang.calibrate"
        )
    return found


def _usable_step_model(name: str) -> str:
    from twp_sglang.simulator.step_sources import step_source

    try:
        step_source(name)
    except ValueError as error:
        raise OptionsError(f"--twp-emulate {name}: {error}") from None
    path = Path(name)
    # The scheduler processes read it again, wherever they run.
    return str(path.resolve()) if path.is_file() else name


def _usable_directory(path: Path) -> Path:
    probe = path / ".twp-writable"
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OptionsError(f"--twp-trace {path}: cannot be written ({reason_of(error)})") from None
    return path.resolve()


def _raise(message: str) -> None:
    raise OptionsError(message)
