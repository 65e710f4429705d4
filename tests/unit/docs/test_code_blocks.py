"""Code in the documents is code: it compiles, and commands have the flags they are shown with."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from typing import Any

import pytest
from documents import NAMES, SHELL, Block, Call, blocks, call, commands, inline_code, read

from tools.command_lines import COMMANDS, UsageError, check, parser_of
from tools.structure import ROOT

OWN = ("twp_sglang", "controllers", "patches", "analysis", "benchmarks", "tools")
FOREIGN = {"sglang.launch_server"}
"""Commands of others that the documents name."""

ALL = [(name, block) for name in NAMES for block in blocks(read(name))]


def of_language(*languages: str) -> list[Any]:
    return [
        pytest.param(block, id=f"{name}:{block.line}")
        for name, block in ALL
        if block.language in languages
    ]


def shell_lines() -> list[Any]:
    return [
        pytest.param(line, id=f"{name}:{block.line}: {line[:60]}")
        for name, block in ALL
        if block.language in SHELL
        for line in commands(block.text)
        if call(line) is not None
    ]


def inline_calls() -> list[Any]:
    found = {code for name in NAMES for code in inline_code(read(name)) if call(code) is not None}
    return [pytest.param(code, id=code[:80]) for code in sorted(found)]


def known_flags(found: Call) -> set[str]:
    subs = [word for word in found.words if word in COMMANDS[found.module]]
    parsers = [parser_of(found.module, sub) for sub in subs[:1] or (None,)]
    return {flag for p in parsers for action in p._actions for flag in action.option_strings}


def check_flags(found: Call) -> None:
    """Every flag before ``--`` is one of the command's."""
    own = found.words[: found.words.index("--")] if "--" in found.words else found.words
    flags = {word.partition("=")[0] for word in own if word.startswith("--")}
    if found.module == "twp_sglang.launch_server":
        flags = {flag for flag in flags if flag.startswith("--twp-")}
    assert flags - known_flags(found) - {"--help"} == set()


def importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@pytest.mark.parametrize("block", of_language("python"))
def test_python_compiles(block: Block) -> None:
    compile(block.text, "<document>", "exec")


@pytest.mark.parametrize("block", of_language("toml"))
def test_toml_parses(block: Block) -> None:
    assert tomllib.loads(block.text)


@pytest.mark.parametrize("block", of_language("json"))
def test_json_parses(block: Block) -> None:
    assert json.loads(block.text)


def test_the_documents_have_commands_to_check() -> None:
    assert len(shell_lines()) > 20
    assert len(inline_calls()) > 20


@pytest.mark.parametrize("line", shell_lines())
def test_a_command_in_a_block_is_taken_by_its_own_parser(line: str) -> None:
    found = call(line)
    assert found is not None
    if found.module in FOREIGN:
        return
    assert importable(found.module)
    assert found.module.split(".")[0] in OWN
    if found.module not in COMMANDS:
        return
    if found.partial:
        check_flags(found)
        return
    try:
        check(found.module, found.words)
    except UsageError as error:
        pytest.fail(f"{line}\n{error}")


@pytest.mark.parametrize("code", inline_calls())
def test_a_command_in_a_sentence_has_the_flags_it_is_shown_with(code: str) -> None:
    found = call(code)
    assert found is not None
    module = found.module.rstrip(",.")
    if module in FOREIGN or not re.fullmatch(r"[\w.]+", module):
        return
    assert importable(module)
    if module in COMMANDS:
        check_flags(found._replace(module=module))


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))


@pytest.mark.parametrize("name", NAMES)
def test_make_targets_exist(name: str) -> None:
    text = read(name)
    lines = [line for b in blocks(text) if b.language in SHELL for line in commands(b.text)]
    named = {
        match[1]
        for line in (*lines, *inline_code(text))
        if (match := re.match(r"make ([a-z-]+)", line))
    }
    assert named - make_targets() == set()


def test_a_wrong_flag_and_a_missing_argument_would_be_found() -> None:
    run = ["run", "--url", "http://h:1", "--workload", "gsm8k", "--json", "o.json"]
    check("twp_sglang.bench", run)
    with pytest.raises(UsageError, match="--batch"):
        check("twp_sglang.bench", [*run, "--batch", "3"])
    with pytest.raises(UsageError, match="TRACE"):
        check("controllers", ["tune", "--out", "x.toml"])
    with pytest.raises(UsageError, match="no such flag: --twp-gama"):
        check("twp_sglang.launch_server", ["--model-path", "m", "--twp-gama", "3"])
    with pytest.raises(AssertionError):
        check_flags(Call("twp_sglang.simulate", ["--polici", "twp"], True))
