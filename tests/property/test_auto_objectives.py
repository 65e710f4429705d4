"""``auto`` never loosens an objective, whatever the steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twp_sglang.config import TwpConfig
from twp_sglang.scheduling.objectives import LOW_ROWS, WINDOW_STEPS, Objectives
from twp_sglang.scheduling.sample import StepSample

SPELLS = st.lists(
    st.tuples(
        st.floats(0.1, 1e4),
        st.sampled_from([0, 1, 3, 4, 5, 60]),
        st.sampled_from([0, 0, 16, 64, 700, 5000]),
        st.integers(1, 3 * WINDOW_STEPS),
    ),
    max_size=30,
)


@given(spells=SPELLS)
def test_once_learned_an_objective_only_falls_and_saturation_moves_none(
    spells: list[tuple[float, int, int, int]],
) -> None:
    objectives = Objectives(TwpConfig(itl_slo_ms="auto", ttft_slo_ms="auto"))
    learned: tuple[list[float], list[float]] = ([], [])
    for step_ms, batch, prompt, count in spells:
        for _ in range(count):
            before = (objectives.itl_ms, objectives.ttft_ms)
            changed = objectives.observe(
                StepSample(1, "mixed" if prompt else "decode", step_ms, batch, prompt, 0)
            )
            after = (objectives.itl_ms, objectives.ttft_ms)
            assert changed == (before != after)
            assert not (changed and batch > LOW_ROWS)
            for values, old, new in zip(learned, before, after, strict=True):
                if old != new:
                    values.append(new)
    for values in learned:
        assert values == sorted(values, reverse=True)
