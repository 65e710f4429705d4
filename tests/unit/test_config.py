"""The configuration: what it refuses, and that each refusal names field, value and mend."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from twp_sglang.config import POLICY_NAMES, TwpConfig


def refusal(**fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        TwpConfig.model_validate(fields)
    return str(caught.value)


def test_the_defaults_are_valid_and_the_papers_where_it_gives_them() -> None:
    config = TwpConfig()
    assert (config.policy, config.law, config.gamma, config.b0) == ("slo", "paper", 0.15, 8)


def test_every_field_says_what_it_means() -> None:
    for name, field in TwpConfig.model_fields.items():
        assert field.description, name


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_policy_name_is_taken(name: str) -> None:
    assert TwpConfig.model_validate({"policy": name}).policy == name


def test_it_is_frozen() -> None:
    config = TwpConfig()
    with pytest.raises(ValidationError, match="frozen"):
        config.gamma = 0.2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gamma", -0.15),
        ("gamma", 0),
        ("gamma", 1.01),
        ("beta", 0),
        ("beta", 2),
        ("h0_tokens", 0),
        ("h0_tokens", -5),
        ("h_min_tokens", 0),
        ("h_max_tokens", -1),
        ("queue_ref", 0),
        ("l_min_ms", 0),
        ("l_min_ms", 1e-7),
        ("h0_tokens", 1e300),
        ("kv_horizon_steps", 10**400),
        ("b0", 0),
        ("alpha_ms", -0.1),
        ("sigma_ref", 1),
        ("k", 0),
        ("chunk_tokens", 0),
        ("t_max_steps", 0),
        ("forced_per_step", 0),
        ("kv_headroom_min", -0.1),
        ("kv_headroom_min", 1),
        ("kv_headroom_max", 1),
        ("kv_horizon_steps", 0),
        ("kv_relax", 0),
        ("kv_relax", 1.5),
        ("w_fairness", 0),
        ("warmup_steps", -1),
        ("itl_target_ms", 0),
    ],
)
def test_values_outside_their_range_are_refused(field: str, value: float) -> None:
    assert field in refusal(**{field: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["gamma", "h0_tokens", "l_min_ms", "w_balance", "queue_ref"])
def test_numbers_that_are_none_are_refused(field: str, value: float) -> None:
    assert field in refusal(**{field: value})


@pytest.mark.parametrize("value", ["0.15", "fast", True, False, [1], {"a": 1}])
@pytest.mark.parametrize("field", ["gamma", "b0", "h0_tokens", "forced_per_step"])
def test_wrong_types_are_refused(field: str, value: Any) -> None:
    assert field in refusal(**{field: value})


def test_a_fraction_is_no_number_of_steps() -> None:
    assert "t_max_steps" in refusal(t_max_steps=2.5)


def test_a_whole_number_may_be_written_as_a_float() -> None:
    assert TwpConfig.model_validate({"t_max_steps": 200.0}).t_max_steps == 200


@pytest.mark.parametrize("field", ["policy", "law"])
@pytest.mark.parametrize("value", ["fastest", 3, True, None])
def test_unknown_names_are_refused(field: str, value: Any) -> None:
    assert field in refusal(**{field: value})


def test_unknown_keys_are_refused() -> None:
    assert "gama" in refusal(gama=0.2)


@pytest.mark.parametrize("optional", ["h0_tokens", "h_min_tokens", "l_min_ms", "forced_per_step"])
def test_optional_fields_can_be_unset(optional: str) -> None:
    assert getattr(TwpConfig.model_validate({optional: None}), optional) is None


def test_a_required_field_cannot_be_unset() -> None:
    assert "gamma" in refusal(gamma=None)


@pytest.mark.parametrize("weights", [(0.3, 0.3, 0.1), (0.6, 0.1, 0.3), (0.1, 0.3, 0.6)])
def test_weights_must_descend(weights: tuple[float, float, float]) -> None:
    w1, w2, w3 = weights
    message = refusal(w_starvation=w1, w_balance=w2, w_fairness=w3)
    assert f"w_starvation = {w1:g}, w_balance = {w2:g}, w_fairness = {w3:g}" in message
    assert "strictly descending" in message


def test_the_headroom_bounds_must_not_cross() -> None:
    message = refusal(kv_headroom_min=0.4, kv_headroom_max=0.2)
    assert "kv_headroom_min = 0.4 is above kv_headroom_max = 0.2" in message
    assert "lower the first" in message


@pytest.mark.parametrize(
    ("fields", "low", "high"),
    [
        ({"h_min_tokens": 500, "h_max_tokens": 400}, 500, 400),
        ({"h0_tokens": 100, "h_min_tokens": 300}, 300, 200),
        ({"h0_tokens": 100, "h_max_tokens": 20}, 25, 20),
        ({"law": "aimd", "h0_tokens": 100, "h_min_tokens": 500}, 500, 400),
    ],
)
def test_crossed_clamps_are_refused(fields: dict[str, Any], low: int, high: int) -> None:
    message = refusal(**fields)
    assert f"h_min_tokens = {low} is above h_max_tokens = {high}" in message
    assert "lower h_min_tokens or raise h_max_tokens" in message


def test_clamps_that_the_chosen_law_allows_are_taken() -> None:
    # 4 H0 is the upper clamp of the laws that look for their window themselves.
    assert TwpConfig(law="aimd", h0_tokens=100, h_min_tokens=300).h_min_tokens == 300


def test_it_survives_the_way_to_another_process() -> None:
    config = TwpConfig(gamma=0.2, h0_tokens=500.0, forced_per_step=None, evidence={"a": [1]})
    assert TwpConfig.model_validate_json(config.model_dump_json()) == config


def test_an_unusable_step_model_is_refused_with_the_configuration() -> None:
    with pytest.raises(ValidationError, match=r"step model cannot be used: c_ms = 2e\+12"):
        TwpConfig(c_ms=2e12, prefill_ms_per_token=0.02)
