"""First derivatives of a window law, the form in which the analysis reads any law.

A law is a small discrete-time system: next_state = f(state, sample), and by convention of
every law here the first entry of the state is the window in tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from controllers.laws.base import Law, LawSample

Row = tuple[float, ...]

SAMPLE_FIELDS = LawSample._fields


class LawJacobian(NamedTuple):
    """Derivatives of f at one point, away from kinks (at a kink: the branch that f takes).

    Attributes:
        state: d next_state[i] / d state[j], n rows of n.
        sample: d next_state[i] / d sample[j], n rows in the order of ``LawSample``.
    """

    state: tuple[Row, ...]
    sample: tuple[Row, ...]

    def window_by(self, field: str) -> float:
        """d next window / d ``field`` of the sample, tokens per unit of the field."""
        return self.sample[0][SAMPLE_FIELDS.index(field)]

    @property
    def d_window_d_sigma(self) -> float:
        """Tokens per unit of slowdown."""
        return self.window_by("sigma")

    @property
    def d_window_d_queue(self) -> float:
        """Tokens per waiting request."""
        return self.window_by("queue")

    @property
    def d_window_d_window(self) -> float:
        """d next window / d window."""
        return self.state[0][0]


class AnalysedLaw(Law, Protocol):
    """A law that also gives its derivatives."""

    config: Any

    def jacobian(self, sample: LawSample, state: Any) -> LawJacobian:
        """Analytic derivatives of ``step`` at (sample, state)."""


def sample_row(derivatives: Mapping[str, float]) -> Row:
    """Row of ``LawJacobian.sample`` from the few fields that are not zero."""
    return tuple(derivatives.get(field, 0.0) for field in SAMPLE_FIELDS)
