"""The budget of forced prompt tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scheduling_builders import config, request, view

from twp_sglang.scheduling.forcing import ForcingBudget
from twp_sglang.scheduling.policies.twp import Twp


@given(
    rate=st.floats(0.1, 100.0),
    burst=st.floats(1.0, 500.0),
    passes=st.lists(st.lists(st.integers(1, 400), max_size=4), min_size=1, max_size=60),
)
def test_in_any_stretch_of_passes_no_more_than_burst_rate_and_one_prompt(
    rate: float, burst: float, passes: list[list[int]]
) -> None:
    budget = ForcingBudget(rate, burst)
    taken = []
    for index, wanted in enumerate(passes):
        spent = 0
        for prompt in wanted:
            credit = budget.credit(index)
            assert credit is not None
            if credit > 0:
                budget.spend(prompt, index)
                spent += prompt
        taken.append(spent)
    for start in range(len(taken)):
        for end in range(start + 1, len(taken) + 1):
            bound = burst + (end - start) * rate + 400
            assert sum(taken[start:end]) <= bound + 1e-6


def test_none_bounds_nothing() -> None:
    budget = ForcingBudget(None, 10.0)
    budget.spend(10**6, 3)
    assert budget.credit(4) is None


def test_a_debt_is_paid_off_before_the_next() -> None:
    budget = ForcingBudget(10.0, 50.0)
    budget.spend(200, 0)
    assert budget.credit(14) == -10.0
    assert budget.credit(16) == 10.0
    assert budget.credit(1000) == 50.0


def test_changed_while_serving() -> None:
    budget = ForcingBudget(10.0, 50.0)
    budget.reconfigure(5.0, 100.0)
    assert budget.credit(0) == 100.0, "a full bucket is full"
    budget.spend(300, 0)
    budget.reconfigure(5.0, 400.0)
    assert budget.credit(0) == -200.0, "a debt stays"
    budget.reconfigure(50.0, 20.0)
    assert budget.credit(5) == 20.0


def starved(**fields: object) -> Twp:
    policy = Twp(config(h0_tokens=10.0, t_max_steps=5, **fields))
    for seq in range(6):
        policy.enqueue(request(seq, prompt_tokens=100))
    return policy


def test_forcing_stops_where_its_tokens_are_used_up() -> None:
    policy = starved(forced_per_step=3, forced_tokens_per_step=20.0, forced_burst_tokens=150.0)
    decision = policy.decide(view(pass_index=10))
    assert [grant.reason for grant in decision.grants] == ["forced", "forced"]
    assert decision.closed == "forced-limit"
    for grant in decision.grants:
        policy.admitted(grant)
    assert policy.decide(view(pass_index=12)).grants == ()
    assert len(policy.decide(view(pass_index=13)).grants) == 1, "50 tokens of debt, 20 a pass"


def test_the_papers_forcing_is_one_flag_away() -> None:
    policy = starved(forced_per_step=None)
    assert len(policy.decide(view(pass_index=10)).grants) == 6
