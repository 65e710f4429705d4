"""The plan of a soak and its bodies: repeatable, in bursts, and never a bad body by chance."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twp_sglang.soaking.settings import Mix, SoakSettings
from twp_sglang.soaking.traffic import APIS, Act, acts
from twp_sglang.soaking.wire import Facts, body, request_id

SETTINGS = SoakSettings(url="http://x", seed=3)
FACTS = Facts(text=True, context_tokens=4096, vocabulary=250)


def test_one_seed_is_one_plan() -> None:
    first = list(islice(acts(SETTINGS, 8.0, APIS), 300))
    assert first == list(islice(acts(SETTINGS, 8.0, APIS), 300))
    other = SETTINGS.model_copy(update={"seed": 4})
    assert first != list(islice(acts(other, 8.0, APIS), 300))


def test_the_rate_follows_the_load_of_the_moment() -> None:
    span = 40 * SETTINGS.burst_every_s
    calm_s = SETTINGS.burst_every_s - SETTINGS.burst_s
    in_burst = Counter(
        act.at_s % SETTINGS.burst_every_s >= calm_s
        for act in takewhile(lambda act: act.at_s < span, acts(SETTINGS, 10.0, APIS))
    )
    # Five standard deviations of a Poisson count are about 0.08 of either.
    expected = 40 * SETTINGS.burst_s * SETTINGS.burst_load * 10.0
    assert in_burst[True] == pytest.approx(expected, rel=0.08)
    assert in_burst[False] == pytest.approx(40 * calm_s * SETTINGS.base_load * 10.0, rel=0.08)


def test_every_kind_and_interface_comes() -> None:
    plan = list(islice(acts(SETTINGS, 8.0, APIS), 2000))
    assert {act.kind for act in plan} == set(Mix.model_fields)
    assert {act.api for act in plan} == set(APIS)
    assert {act.answers for act in plan} == {1, 2, 3}
    assert all(act.stream for act in plan if act.kind == "leave_streaming")
    assert not any(act.stream for act in plan if act.kind == "leave_waiting")
    assert all(1 <= act.prompt_tokens <= SETTINGS.longest_prompt_tokens for act in plan)
    assert all(1 <= act.output_tokens <= SETTINGS.longest_output_tokens for act in plan)


def test_a_kind_of_weight_zero_never_comes() -> None:
    mix = Mix(serve=1, leave_streaming=0, leave_waiting=0, abort=0, malformed=0, too_long=0)
    only = SETTINGS.model_copy(update={"mix": mix})
    assert {act.kind for act in islice(acts(only, 8.0, APIS), 500)} == {"serve"}


def test_no_request_id_begins_with_another() -> None:
    """SGLang aborts every request whose id begins with the one it is told."""
    ids = {request_id(_act(number=n), "run") for n in (1, 10, 12, 100, 99_999_999)}
    assert not any(a != b and a.startswith(b) for a in ids for b in ids)


@given(seed=st.integers(0, 2**32))
def test_bodies_are_json_with_ids_inside_the_vocabulary(seed: int) -> None:
    for act in islice(acts(SETTINGS.model_copy(update={"seed": seed}), 8.0, APIS), 20):
        sent = body(act, FACTS, "run")
        if isinstance(sent, str):
            with pytest.raises(ValueError):  # noqa: PT011 - the decoder's own
                json.loads(sent)
            continue
        json.dumps(sent)
        if act.kind == "malformed":
            continue
        ids = sent.get("input_ids") or sent.get("prompt")
        if isinstance(ids, list):
            assert all(3 <= token < FACTS.vocabulary for token in ids)
            longer = act.kind == "too_long"
            assert len(ids) == act.prompt_tokens or (longer and len(ids) > FACTS.context_tokens)


def test_a_server_without_a_tokenizer_is_never_sent_text() -> None:
    ids_only = FACTS._replace(text=False)
    for act in islice(acts(SETTINGS, 8.0, APIS[:1]), 300):
        if act.kind != "malformed":
            assert "text" not in body(act, ids_only, "run")


def _act(number: int) -> Act:
    return Act(number, 0.0, "serve", "generate", False, 5, 5, 1, 0.0, 0.9)
