"""Anything at all as configuration: a configuration comes out, or a message for a person.

No exception but ``OptionsError``, and every value that was taken can be used: policies are
built from it and say their state.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from twp_sglang.config import POLICY_NAMES, TwpConfig
from twp_sglang.config_changes import changed
from twp_sglang.config_values import OptionsError
from twp_sglang.scheduling.policies import build_policy
from twp_sglang.scheduling.request_terms import RequestTerms, terms_of
from twp_sglang.serving import options

SOME = settings(max_examples=150, deadline=None)

FIELDS = sorted(TwpConfig.model_fields)

numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(0, 300),
    st.floats(0, 3),
    st.floats(allow_nan=True, allow_infinity=True),
)
words = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        (
            "none",
            "unset",
            "auto",
            "true",
            "1e999",
            "-inf",
            "nan",
            "0x10",
            "1_0",
            "50ms",
            "2s",
            "-5s",
        )
    ),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, words, st.sampled_from(POLICY_NAMES))
json_values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
names = st.one_of(st.sampled_from(FIELDS), st.text(max_size=10))
tables = st.dictionaries(names, json_values, max_size=4)


def usable(config: TwpConfig) -> None:
    """A configuration that was taken builds its policy, whose state is JSON."""
    if config.policy != "off":
        json.dumps(build_policy(config).snapshot(), allow_nan=False)
    assert TwpConfig.model_validate(config.model_dump()) == config
    assert TwpConfig.model_validate_json(config.model_dump_json()) == config


def for_a_person(error: OptionsError) -> None:
    """The message says something, and is not a dump of what went wrong inside."""
    said = str(error)
    assert said.strip()
    assert "Traceback" not in said
    assert "pydantic" not in said


def parse(argv: list[str]) -> None:
    try:
        asked = options.parse(argv)
    except OptionsError as error:
        for_a_person(error)
        return
    usable(asked.config)


@contextmanager
def file(name: str, content: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        yield path


@SOME
@given(st.lists(st.tuples(st.sampled_from(FIELDS), words | numbers.map(str)), max_size=4))
@example([("h0_tokens", "1" * 5000)])
@example([("itl_slo_ms", "1" * 400)])
def test_flags(flags: list[tuple[str, str]]) -> None:
    argv = [word for name, text in flags for word in (options.flag_of(name), text)]
    parse(argv)
    parse([f"{options.flag_of(name)}={text}" for name, text in flags])


@SOME
@given(
    st.lists(st.one_of(words, st.text(max_size=8).map(lambda text: f"--twp-{text}")), max_size=5)
)
def test_command_lines(argv: list[str]) -> None:
    # --twp-trace would make folders of any name.
    parse([word for word in argv if not word.startswith("--twp-t")])


@SOME
@given(tables)
@example({"h0_tokens": 10**400})
@example({"itl_slo_ms": 10**400})
@example({"ttft_slo": 10**400})
@example({"twp": {"b0": None}})
@example({"twp": []})
def test_json_files(table: dict[str, Any]) -> None:
    content = json.dumps(table).encode(errors="surrogatepass")
    with file("c.json", content) as path:
        parse(["--twp-config", str(path)])
        parse(["--twp-profile", str(path)])
        parse(["--twp-emulate", str(path)])


@SOME
@given(st.binary(max_size=60), st.sampled_from(("c.json", "c.toml", "c.jsonl")))
@example(b"[" * 100_000, "c.json")
@example(b"a=" + b"[" * 3000, "c.toml")
@example(b"\xff\xfe", "c.toml")
@example(b"[" * 3000, "c.jsonl")
@example(b"", "c.jsonl")
@example(b"h0_tokens = " + b"9" * 5000, "c.toml")
@example(b'{"b0": ' + b"9" * 5000 + b"}", "c.json")
@example(b"b0 = 1979-05-27", "c.toml")
@example(b"b0 = inf", "c.toml")
@example(b'{"b0": Infinity, "b0": 1}', "c.json")
def test_bytes_as_files(content: bytes, name: str) -> None:
    with file(name, content) as path:
        parse(["--twp-config", str(path)])
        parse(["--twp-profile", str(path)])
        parse(["--twp-emulate", str(path)])


@SOME
@given(st.sampled_from(FIELDS), scalars)
def test_toml_values(field: str, value: Any) -> None:
    if value is None:
        return
    text = json.dumps(value) if not isinstance(value, float) else repr(value)
    with file("c.toml", f"{field} = {text}\n".encode(errors="surrogatepass")) as path:
        parse(["--twp-config", str(path)])


def test_files_that_are_none() -> None:
    for flag in ("--twp-config", "--twp-profile", "--twp-emulate"):
        for path in ("", ".", "/no/such/file", "/no/such.jsonl", "\0", "x" * 5000):
            parse([flag, path])


@SOME
@given(tables, st.sampled_from([name for name in POLICY_NAMES if name != "off"]))
@example({"policy": "slo"}, "twp")
@example({"gamma": True}, "twp")
@example({"ttft_slo_ms": 10**400}, "slo")
@example({"b0": 10**400}, "slo")
def test_changes_while_serving(table: dict[str, Any], policy: Any) -> None:
    config = TwpConfig(policy=policy)
    serving = build_policy(config)
    try:
        new = changed(config, table)
    except OptionsError as error:
        for_a_person(error)
        return
    serving.reconfigure(new)
    json.dumps(serving.snapshot(), allow_nan=False)
    assert changed(new, {name: getattr(config, name) for name in table}) == config


@SOME
@given(
    st.one_of(
        json_values,
        st.fixed_dictionaries(
            {
                "twp": st.one_of(
                    json_values,
                    st.dictionaries(st.sampled_from(RequestTerms._fields), json_values, max_size=5),
                )
            }
        ),
    )
)
@example({"twp": {"ttft_slo_ms": 10**400}})
def test_terms_of_a_request(params: Any) -> None:
    terms = terms_of(params)
    assert isinstance(terms.client, str)
    for objective in (terms.itl_slo_ms, terms.ttft_slo_ms):
        assert objective is None or (math.isfinite(objective) and objective > 0)
