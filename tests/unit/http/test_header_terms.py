"""Terms from headers and bodies: what is read, what is refused and in which words."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.http.body_terms import checked, merged
from patches.http.header_terms import HeaderError, key_client, terms_in
from twp_sglang.scheduling.request_terms import (
    CLIENT_MAX_CHARACTERS,
    NO_TERMS,
    RequestTerms,
    terms_of,
)


def headers(**values: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in values.items()]


def test_durations_have_units_and_names_are_kept() -> None:
    read = terms_in(
        headers(x_twp_client="team-a", x_twp_itl_slo="50ms", x_twp_ttft_slo="2s", accept="*/*")
    )
    assert read == RequestTerms("team-a", 50.0, 2000.0)
    assert terms_in(headers(accept="*/*")) == NO_TERMS


@pytest.mark.parametrize(
    ("given_headers", "words"),
    [
        (headers(x_twp_itl_slo="50"), ["X-TWP-ITL-SLO", "'50'", "unit"]),
        (headers(x_twp_ttft_slo="-2s"), ["X-TWP-TTFT-SLO", "'-2s'", "above 0"]),
        (headers(x_twp_ttft_slo="1e999s"), ["X-TWP-TTFT-SLO", "finite"]),
        (headers(x_twp_client=""), ["X-TWP-Client", "empty"]),
        (headers(x_twp_client="a" * 200), ["X-TWP-Client", "128"]),
        (headers(x_twp_client="a\tb"), ["X-TWP-Client", "printable"]),
        (headers(x_twp_ttft="2s"), ["x-twp-ttft", "did you mean X-TWP-TTFT-SLO"]),
        (headers(x_twp_weather="2s"), ["x-twp-weather", "no such header"]),
        (headers(x_twp_client="a") * 2, ["X-TWP-Client", "once"]),
    ],
)
def test_a_header_that_cannot_be_used_is_named_with_its_value_and_the_mend(
    given_headers: list[tuple[bytes, bytes]], words: list[str]
) -> None:
    with pytest.raises(HeaderError) as caught:
        terms_in(given_headers)
    for word in words:
        assert word in str(caught.value)


@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=30)), max_size=6))
def test_no_header_ends_the_process(found: list[tuple[bytes, bytes]]) -> None:
    named = [(b"x-twp-" + name, value) for name, value in found]
    for some in (found, named):
        with suppress(HeaderError):
            terms_in(some)
        assert isinstance(key_client(some), str)


def test_a_key_becomes_a_name_that_does_not_tell_it() -> None:
    name = key_client(headers(authorization="Bearer sk-very-secret"))
    assert name.startswith("key-")
    assert "secret" not in name
    assert name == key_client(headers(authorization="bearer  sk-very-secret "))
    assert name != key_client(headers(authorization="Bearer sk-other"))
    assert key_client(headers(authorization="Basic abc")) == ""
    assert key_client(headers(authorization="Bearer ")) == ""
    assert key_client([]) == ""


def test_headers_win_over_the_body_and_names_stay_inside_the_key() -> None:
    body = {"temperature": 0, "custom_params": {"mine": 1, "twp": {"client": "b", "itl_slo_ms": 9}}}
    out = merged(body, RequestTerms("h", None, 500.0), "key-1")
    assert out["custom_params"]["twp"] == {
        "client": "key-1/h",
        "itl_slo_ms": 9,
        "ttft_slo_ms": 500.0,
    }
    assert out["custom_params"]["mine"] == 1
    assert out["temperature"] == 0
    assert body["custom_params"]["twp"] == {"client": "b", "itl_slo_ms": 9}, (
        "the body is not touched"
    )
    assert client_of(body, "", "key-1") == "key-1/b"
    assert client_of({}, "", "key-1") == "key-1"
    assert client_of(body, "", "") == "b"
    assert client_of(body, "h", "") == "h"


def client_of(body: Any, header: str, key: str) -> str:
    return terms_of(merged(body, RequestTerms(header), key)["custom_params"]).client


@given(
    st.sampled_from(["", "sk-mine", "sk-other"]),
    st.sampled_from(["header", "body"]),
    st.sampled_from(["", "/", "//"]),
    st.sampled_from(["", "/", "/team", "x"]),
)
def test_no_name_charges_another_keys_client(key: str, where: str, before: str, after: str) -> None:
    victim = key_client(headers(authorization="Bearer sk-victim"))
    own = key_client(headers(authorization=f"Bearer {key}")) if key else ""
    said = f"{before}{victim}{after}"
    body = {"custom_params": {"twp": {"client": said}}} if where == "body" else {}
    charged = client_of(body, said if where == "header" else "", own)
    assert charged != victim
    assert not charged.startswith(f"{victim}/")
    assert charged.startswith(f"{own}/") or after == "x"


def test_the_longest_names_inside_a_key_stay_apart() -> None:
    key = key_client(headers(authorization="Bearer sk-mine"))
    one, other = ("n" * (CLIENT_MAX_CHARACTERS - 1) + end for end in "ab")
    assert client_of({}, one, key) != client_of({}, other, key)


def test_what_is_merged_is_what_the_scheduler_reads() -> None:
    terms = RequestTerms("team", 40.0, 900.0)
    assert terms_of(merged(None, terms, "")["custom_params"]) == terms


@pytest.mark.parametrize("untouched", [None, {}, {"temperature": 1}, "text", 7, [None, {}]])
def test_without_terms_nothing_changes(untouched: Any) -> None:
    out = merged(untouched, NO_TERMS, "")
    # None stands for an empty table, of which nothing is made either.
    assert out == ([{}, {}] if untouched == [None, {}] else untouched or {})


def test_every_prompt_of_a_batch_gets_them() -> None:
    out = merged([{"temperature": 0}, None], RequestTerms("h"), "")
    assert [item["custom_params"]["twp"]["client"] for item in out] == ["h", "h"]


def test_custom_params_of_another_shape_are_left_for_sglang() -> None:
    odd = {"custom_params": [1, 2]}
    assert merged(odd, RequestTerms("h"), "") == odd


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ("fast", ["custom_params.twp", "table"]),
        ({"itl_slo_ms": "50ms"}, ["itl_slo_ms", "'50ms'", "milliseconds"]),
        ({"itl_slo_ms": True}, ["itl_slo_ms", "milliseconds"]),
        ({"ttft_slo_ms": 0}, ["ttft_slo_ms", "above 0"]),
        ({"ttft_slo_ms": 10**400}, ["ttft_slo_ms", "above 0"]),
        ({"ttft_slo": 5}, ["ttft_slo", "did you mean ttft_slo_ms"]),
        ({"client": 5}, ["client", "text"]),
        ({"client": "x" * 200}, ["client", "128"]),
        ({"client": "a\nb\x1b[2J\ud800"}, ["client", r"'a\nb\x1b[2J\ud800'", "printable"]),
        ({"a\nb": 1}, [r"a\nb"]),
        ([0] * 9000, ["more)"]),
    ],
)
def test_terms_in_the_body_are_checked_too(terms: Any, words: list[str]) -> None:
    with pytest.raises(ValueError, match="custom_params") as caught:
        checked(terms)
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
