"""The stages of a run: what each does, what it needs, and which matter most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from controllers.laws.base import FrozenModel

Kind = Literal["profile", "serve", "learn"]


class Stage(NamedTuple):
    """One piece of work whose result is worth having alone.

    Attributes:
        name: of its folder, and in the report.
        needs: stages that must have succeeded before.
        title: what it is, for people.
    """

    name: str
    kind: Kind
    needs: tuple[str, ...]
    title: str


PROFILE = Stage("profile", "profile", (), "step times without an engine")
STOCK = Stage("stock", "serve", (), "stock decisions (policy observe), and the calibration")
PAPER = Stage("paper", "serve", ("stock",), "the paper's law, calibrated")
LEARN = Stage("learn", "learn", ("stock",), "identify the engine, tune gain and clamps")
TUNED = Stage("tuned", "serve", ("learn",), "the tuned setting")
STATIC_B0 = Stage("static-b0", "serve", ("stock",), "static: chunks, and a cap at the knee")
NEIGHBOUR = Stage("neighbour", "serve", ("learn",), "the grid point next to the tuned gain")
STATIC_2B0 = Stage("static-2b0", "serve", ("stock",), "static: chunks, and a cap at twice the knee")
STATIC_CHUNK = Stage("static-chunk", "serve", ("stock",), "static: chunks and no cap")
SLO = Stage("slo", "serve", ("stock",), "policy slo: the step predicted, objectives held")
REGULATED = Stage("regulated", "serve", ("stock",), "law regulated, calibrated")

STAGES = (
    PROFILE,
    STOCK,
    LEARN,
    PAPER,
    TUNED,
    STATIC_B0,
    SLO,
    NEIGHBOUR,
    STATIC_2B0,
    REGULATED,
    STATIC_CHUNK,
)
"""In the order of their worth when time is short: what the tuning rests on, the tuning, which
takes seconds, the paper's law, the tuned setting, and only then more rivals."""

STATIC = ("static-b0", "static-2b0", "static-chunk")
"""Of these the best is the rival."""


class Costs(FrozenModel):
    """Seconds that stages take; what a finished stage took replaces the guess."""

    profile_s: float
    start_s: float
    calibrate_s: float
    traffic_s: float
    learn_s: float

    def of(self, stage: Stage) -> float:
        """Expected seconds of ``stage``."""
        if stage.kind == "profile":
            return self.profile_s
        if stage.kind == "learn":
            return self.learn_s
        extra = self.calibrate_s if stage.name == STOCK.name else 0.0
        return self.start_s + self.traffic_s + extra


class Planned(FrozenModel):
    """What will be done, and what not and why."""

    run: tuple[str, ...]
    left_out: dict[str, str]


def plan(
    stages: Sequence[Stage],
    settled: Callable[[str], bool | None],
    costs: Costs,
    seconds_left: float,
) -> Planned:
    """The stages that fit, in their order.

    Args:
        stages: by worth.
        settled: whether a stage succeeded (True) or failed (False); None if not yet run.
        costs: expected seconds.
        seconds_left: to spend on them.
    """
    run: list[str] = []
    left_out: dict[str, str] = {}
    spent = 0.0
    for stage in stages:
        if settled(stage.name) is not None:
            continue
        missing = [need for need in stage.needs if settled(need) is not True and need not in run]
        if missing:
            state = "failed" if settled(missing[0]) is False else "is left out"
            left_out[stage.name] = f"needs {missing[0]}, which {state}"
            continue
        cost = costs.of(stage)
        if spent + cost > seconds_left:
            left_out[stage.name] = (
                f"takes about {cost:.0f} s, of which {max(seconds_left - spent, 0):.0f} s are left"
            )
            continue
        run.append(stage.name)
        spent += cost
    return Planned(run=tuple(run), left_out=left_out)
