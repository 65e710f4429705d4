"""A policy takes another configuration while it serves."""

from __future__ import annotations

from typing import Any

import pytest
from same_object import differences
from scheduling_builders import config, request, sample, view

from twp_sglang.config import PolicyName, TwpConfig
from twp_sglang.config_changes import FIXED
from twp_sglang.policy_fields import unread
from twp_sglang.scheduling.policies import build_policy
from twp_sglang.scheduling.policies.slo import Slo
from twp_sglang.scheduling.policies.twp import Twp

POLICIES = ("twp", "observe", "slo", "fcfs", "priority", "dynamic-batch")

STATE = (".window.tokens", ".window._state", ".headroom.threshold")
"""What goes on from where it is, instead of from where a fresh policy starts."""

NEEDS: dict[str, dict[str, Any]] = {
    # A clamp means something only beside a nominal window, a slope beside a whole model.
    "h_min_tokens": {"h0_tokens": 400.0},
    "h_max_tokens": {"h0_tokens": 400.0},
    "alpha_ms": {"l_min_ms": 20.0, "prefill_ms_per_token": 0.1},
    "a_ms": {"l_min_ms": 20.0, "prefill_ms_per_token": 0.1},
    "kappa_ms_per_token": {"l_min_ms": 20.0, "prefill_ms_per_token": 0.1},
    "prefill_ms_per_token": {"l_min_ms": 20.0},
    "itl_auto_multiple": {"itl_slo_ms": "auto", "l_min_ms": 20.0, "prefill_ms_per_token": 0.1},
    "ttft_auto_multiple": {"ttft_slo_ms": "auto", "l_min_ms": 20.0, "prefill_ms_per_token": 0.1},
}


def another(name: str, base: TwpConfig) -> Any:
    """A valid value of field ``name`` that is not that of ``base``."""
    present = getattr(base, name)
    for value in (
        7,
        0.5,
        0.04,
        0.011,
        300.0,
        900.0,
        1.5,
        0.35,
        0.31,
        0.25,
        0.0011,
        25.0,
        "aimd",
        "refuse",
        True,
        False,
    ):
        if value == present or isinstance(value, bool) != isinstance(present, bool):
            continue
        try:
            TwpConfig.model_validate({**base.model_dump(), name: value})
        except ValueError:
            continue
        return value
    raise AssertionError(f"no other value of {name} found: add one to the list")


CHANGEABLE = [name for name in TwpConfig.model_fields if name not in FIXED]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", CHANGEABLE)
def test_every_field_reaches_what_it_decides(policy: str, name: str) -> None:
    """Changed on a fresh policy, a field leaves the policy that it would have built. A field
    that is missing in ``reconfigure`` fails here; one that cannot change belongs into FIXED of
    twp_sglang/config_changes.py, with the reason."""
    base = config(policy=policy, **NEEDS.get(name, {}))
    wanted = TwpConfig.model_validate({**base.model_dump(), name: another(name, base)})
    changed = build_policy(base)
    changed.reconfigure(wanted)
    found = differences(changed, build_policy(wanted))
    assert [line for line in found if not line.startswith(STATE)] == []


def test_the_fields_above_are_seen_by_a_policy() -> None:
    """The comparison is not blind: most fields change some policy, and are named here if none."""
    unseen = {
        name
        for name in CHANGEABLE
        if all(
            not differences(
                build_policy(base := config(policy=policy, **NEEDS.get(name, {}))),
                build_policy(
                    TwpConfig.model_validate({**base.model_dump(), name: another(name, base)})
                ),
                "",
            )
            for policy in POLICIES
        )
    }
    # Twp keeps its whole configuration beside the window, so nothing is unseen.
    assert unseen == set()


def test_the_window_stays_where_it_is_and_moves_by_the_new_gain() -> None:
    policy = build_policy(config(policy="twp", h0_tokens=400.0, l_min_ms=20.0, gamma=0.1))
    assert isinstance(policy, Twp)
    for step in range(5):
        policy.observe(sample(40.0, step=step))
    before = policy.window.tokens
    assert before < 400.0
    policy.reconfigure(config(policy="twp", h0_tokens=400.0, l_min_ms=20.0, gamma=1.0))
    assert policy.window.tokens == before
    assert policy.monitor.itl_ms == 40.0
    policy.observe(sample(40.0, step=6))
    # gamma = 1 goes all the way to H* = H0 / sigma.
    assert policy.window.tokens == pytest.approx(200.0)


def test_another_law_starts_from_the_present_window() -> None:
    policy = build_policy(config(policy="twp", h0_tokens=400.0, l_min_ms=20.0))
    assert isinstance(policy, Twp)
    for step in range(5):
        policy.observe(sample(40.0, step=step))
    before = policy.window.tokens
    for law in ("regulated", "gradient2", "vegas", "aimd", "fixed", "paper"):
        policy.reconfigure(config(policy="twp", h0_tokens=400.0, l_min_ms=20.0, law=law))
        assert policy.window.tokens == before
        assert policy.window.law.window(policy.window._state) == before


def test_clamps_move_the_window_at_once() -> None:
    policy = build_policy(config(policy="twp", h0_tokens=400.0))
    assert isinstance(policy, Twp)
    policy.reconfigure(
        config(policy="twp", h0_tokens=400.0, h_max_tokens=100.0, h_min_tokens=50.0, law="fixed")
    )
    assert policy.window.tokens == 100.0


def test_an_automatic_h0_goes_on_from_the_lengths_seen() -> None:
    policy = build_policy(config(policy="twp"))
    assert isinstance(policy, Twp)
    for seq in range(300):
        policy.enqueue(request(seq, expected_tokens=200))
    learned = policy.window.h0_tokens
    assert learned > 1500
    policy.reconfigure(config(policy="twp", gamma=0.3))
    assert policy.window.h0_tokens == pytest.approx(learned, rel=0.06)


def test_a_learned_baseline_stays_and_a_given_one_is_learned_anew_when_unset() -> None:
    policy = build_policy(config(policy="twp"))
    assert isinstance(policy, Twp)
    for step in range(40):
        policy.observe(sample(30.0, step=step))
    policy.reconfigure(config(policy="twp", gamma=0.3))
    assert (policy.monitor.baseline.l_min_ms, policy.monitor.baseline.source) == (30.0, "learned")
    policy.reconfigure(config(policy="twp", l_min_ms=12.0))
    assert policy.monitor.sigma == pytest.approx(30.0 / 12.0)
    policy.reconfigure(config(policy="twp"))
    assert (policy.monitor.baseline.l_min_ms, policy.monitor.baseline.source) == (None, "learning")


def test_the_queue_and_the_counts_stay() -> None:
    policy = build_policy(config(policy="twp", h0_tokens=50.0))
    waiting = [request(seq) for seq in range(6)]
    for one in waiting:
        policy.enqueue(one)
    first = policy.decide(view())
    assert len(first.grants) == 1
    policy.admitted(first.grants[0])
    policy.reconfigure(config(policy="twp", h0_tokens=1000.0, h_min_tokens=900.0))
    assert (len(policy.queue), policy.admitted_total) == (5, 1)
    assert len(policy.decide(view()).grants) == 5


def test_what_the_law_refuses_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build_policy(config(policy="twp", h0_tokens=400.0, beta=0.25))
    twin = build_policy(config(policy="twp", h0_tokens=400.0, beta=0.25))

    def refuses(*args: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr("twp_sglang.scheduling.window.build_law", refuses)
    with pytest.raises(ValueError, match="no"):
        policy.reconfigure(config(policy="twp", h0_tokens=800.0, beta=0.9))
    assert differences(policy, twin) == []


def test_slo_keeps_what_it_learned_under_another_objective() -> None:
    policy = build_policy(config(policy="slo", itl_slo_ms=100.0))
    assert isinstance(policy, Slo)
    for step in range(64):
        batch = 1 + step % 30
        policy.observe(sample(10.0 + batch, step=step, batch=batch, kv_tokens=100 * batch))
    learned = policy.model.model
    assert policy.model.source == "learned"
    policy.reconfigure(config(policy="slo", itl_slo_ms=25.0))
    assert policy.model.model == learned
    assert policy.snapshot()["itl_slo_ms"] == 25.0
    assert policy.model.admits(4, 400)
    assert not policy.model.admits(29, 2900)


NOT_SEEN_ALONE = {
    "itl_target_ms",  # of a third policy
    "oversized",  # an overload rule keeps the whole configuration
    "l_min_ms",  # these two mean something only beside a prompt's cost
    "c_ms",
}


@pytest.mark.parametrize("policy", ["slo", "twp", "fcfs", "priority"])
@pytest.mark.parametrize("name", CHANGEABLE)
def test_a_field_said_to_change_nothing_changes_nothing(policy: PolicyName, name: str) -> None:
    """And one that the user is not warned of changes the policy, where the policy is slo."""
    base = config(policy=policy, **NEEDS.get(name, {}))
    wanted = TwpConfig.model_validate({**base.model_dump(), name: another(name, base)})
    found = differences(build_policy(base), build_policy(wanted), "")
    # A part may keep the whole configuration and look at two fields of it.
    changes = [line for line in found if "_config:" not in line]
    if unread(policy, [name]):
        assert not changes
    elif policy == "slo" and name not in NOT_SEEN_ALONE:
        assert changes


@pytest.mark.parametrize("place", ["step_model.PredictiveLaw", "step_model.first_guess"])
def test_what_the_step_model_refuses_changes_nothing(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = config(policy="slo", itl_slo_ms=50.0, graph_ceiling_rows=16)
    policy, twin = build_policy(base), build_policy(base)

    def refuses(*args: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(f"twp_sglang.scheduling.{place}", refuses)
    other = config(policy="slo", itl_slo_ms=20.0, graph_ceiling_rows=8, late_share=0.5, b0=3)
    for take in (policy.try_out, policy.reconfigure):
        with pytest.raises(ValueError, match="no"):
            take(other)
        assert differences(policy, twin) == []
