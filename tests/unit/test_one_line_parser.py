"""Bad arguments, told in one line by every command that has its own parser."""

from __future__ import annotations

import argparse

import pytest

from tools.command_lines import COMMANDS, parser_of
from twp_sglang.one_line_parser import EXIT_BAD_ARGUMENTS, OneLineParser

PARSERS = [
    (command, sub)
    for command, subs in COMMANDS.items()
    for sub in subs or (None,)
    if isinstance(parser_of(command, sub), OneLineParser)
]


def refusal(
    parser: argparse.ArgumentParser, words: list[str], capsys: pytest.CaptureFixture[str]
) -> str:
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert ended.value.code == EXIT_BAD_ARGUMENTS
    return capsys.readouterr().err


@pytest.mark.parametrize(("command", "sub"), PARSERS)
def test_a_command_tells_its_name_and_where_to_look(
    command: str, sub: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refusal(parser_of(command, sub), ["--no-such-flag"], capsys)
    name = command.rpartition(".")[2]
    assert told.startswith(f"{name} {sub}: error: " if sub else f"{name}: error: ")
    assert told.endswith(f"(see python -m {command}{f' {sub}' if sub else ''} --help)\n")
    assert told.count("\n") == 1


def test_what_was_given_cannot_make_it_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    parser = OneLineParser(prog="python -m twp_sglang.some")
    told = refusal(parser, ["a\nTWP audit: forged\x1b[2J" + "x" * 5000], capsys)
    assert told.count("\n") == 1
    assert "\x1b" not in told
    assert len(told) < 1200
