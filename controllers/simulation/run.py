"""What a simulation returns, and the ITL filter both simulations share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]


class Run(NamedTuple):
    """One value per decode step, each of shape (steps,).

    Attributes:
        window_tokens: H in force for the step's admissions.
        load_tokens: K after the admissions.
        batch: B, requests that decode in the step.
        step_ms: duration of the step's decode part.
        sigma: filtered slowdown after the step.
        queue: requests waiting after the admissions.
        admitted: requests admitted in the step.
    """

    window_tokens: Series
    load_tokens: Series
    batch: Series
    step_ms: Series
    sigma: Series
    queue: Series
    admitted: Series

    def after(self, warm_up_steps: int) -> Run:
        """The run without its first steps."""
        return Run(*(series[warm_up_steps:] for series in self))

    @property
    def tokens_per_second(self) -> float:
        """Decode bandwidth over the run."""
        return 1000.0 * float(np.sum(self.batch) / np.sum(self.step_ms))


def empty_run(steps: int) -> Run:
    """A run of zeros to fill."""
    return Run(*(np.zeros(steps) for _ in Run._fields))
