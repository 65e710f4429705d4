"""From the configuration to a law of controllers."""

from __future__ import annotations

import pytest
from scheduling_builders import config

from controllers.laws.base import LawSample
from controllers.laws.paper import PaperLaw
from twp_sglang.config import LawName
from twp_sglang.scheduling.laws import build_law, clamps_of


def test_the_papers_law_gets_every_parameter() -> None:
    law = build_law(config(gamma=0.3, queue_ref=5.0, h_min_tokens=90.0, h_max_tokens=900.0), 500.0)
    assert isinstance(law, PaperLaw)
    assert law.config.h0_tokens == 500.0
    assert law.config.gamma == 0.3
    assert law.config.queue_ref == 5.0
    assert clamps_of(law) == (90.0, 900.0)


@pytest.mark.parametrize("name", ["paper", "regulated", "gradient2", "vegas", "aimd", "fixed"])
def test_every_law_of_the_configuration_can_be_built_and_stepped(name: LawName) -> None:
    law = build_law(config(law=name), 400.0)
    low, high = clamps_of(law)
    window, _ = law.step(LawSample(1.5, 30.0, 30.0, 4, 400, 8), law.initial())
    assert low <= window <= high


def test_sigma_ref_and_k_reach_the_regulated_law() -> None:
    plain = build_law(config(law="regulated"), 400.0)
    other = build_law(config(law="regulated", sigma_ref=2.0, k=0.5), 400.0)
    busy = LawSample(1.5, 30.0, 30.0, 4, 400, 8)
    # Above the first reference, below the second: one closes, the other opens.
    assert plain.step(busy, plain.initial())[0] < 400.0 < other.step(busy, other.initial())[0]


def test_a_lower_clamp_above_an_automatic_h0_lifts_the_upper() -> None:
    assert clamps_of(build_law(config(h_min_tokens=1000.0), 400.0)) == (1000.0, 1000.0)


def test_a_lower_clamp_below_leaves_the_laws_own_upper() -> None:
    assert clamps_of(build_law(config(h_min_tokens=150.0), 400.0)) == (150.0, 800.0)
    assert clamps_of(build_law(config(law="aimd", h_min_tokens=1000.0), 400.0)) == (1000.0, 1600.0)


def test_an_upper_clamp_below_an_automatic_h0_lowers_the_lower() -> None:
    assert clamps_of(build_law(config(h_max_tokens=50.0), 400.0)) == (50.0, 50.0)
