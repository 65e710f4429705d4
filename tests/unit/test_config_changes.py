"""Changes of a configuration while serving."""

from __future__ import annotations

from typing import Any

import pytest

from twp_sglang.config import TwpConfig
from twp_sglang.config_changes import FIXED, changed, difference
from twp_sglang.config_values import OptionsError, build


def test_several_fields_change_at_once_and_null_unsets() -> None:
    old = TwpConfig(l_min_ms=20.0)
    new = changed(old, {"gamma": 0.3, "l_min_ms": None, "itl_slo": "60ms"})
    assert difference(old, new) == {
        "gamma": (0.15, 0.3),
        "itl_slo_ms": (50.0, 60.0),
        "l_min_ms": (20.0, None),
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"gamma": 7},
        {"gamma": "0.3"},
        {"gamma": None},
        {"gama": 0.3},
        {"w_balance": 0.9},
        {"itl_slo": "fast"},
        {"itl_slo": "50ms", "itl_slo_ms": 50},
        {"h0_tokens": 100, "h_min_tokens": 300},
    ],
)
def test_the_messages_are_those_of_the_launch(changes: dict[str, Any]) -> None:
    with pytest.raises(OptionsError) as refused:
        changed(TwpConfig(), changes)
    with pytest.raises(OptionsError) as at_launch:
        build(changes, dict.fromkeys(changes, "PATCH"))
    # A duration is folded before the launch's own check, which then names its source.
    assert str(refused.value).removesuffix(" (PATCH)") == str(at_launch.value)


@pytest.mark.parametrize("name", FIXED)
def test_fixed_fields_are_refused_with_the_reason(name: str) -> None:
    value = {"policy": "twp", "evidence": {"a": 1}}.get(name, 99)
    with pytest.raises(OptionsError, match=f"^{name} = .*cannot change while serving; "):
        changed(TwpConfig(), {name: value, "gamma": 0.2})
    same = getattr(TwpConfig(), name)
    assert changed(TwpConfig(), {name: same, "gamma": 0.2}).gamma == 0.2


def test_nothing_given_is_said() -> None:
    with pytest.raises(OptionsError, match="no field given"):
        changed(TwpConfig(), {})
