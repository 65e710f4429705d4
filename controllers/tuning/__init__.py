"""Tuning: gain, filter weight, nominal window and clamps with guarantees.

goals.py             what must hold             operating_choice.py  H0, sigma_ref and clamps
problem.py           uncertainty and worst case gains.py             gain and filter weight
loop_set.py          margins of many loops      tune.py              both halves and the check
configuration.py     the file                   search.py            trials in the safe region
"""

from controllers.tuning.configuration import write_configuration
from controllers.tuning.goals import TuningGoals
from controllers.tuning.operating_choice import Infeasible
from controllers.tuning.problem import TuningProblem, WorstCase
from controllers.tuning.search import SafeRegion, SearchResult, Trial, safe_region, search
from controllers.tuning.tune import TuningRefused, TuningResult, evidence, tune, tuning_problem

__all__ = [
    "Infeasible",
    "SafeRegion",
    "SearchResult",
    "Trial",
    "TuningGoals",
    "TuningProblem",
    "TuningRefused",
    "TuningResult",
    "WorstCase",
    "evidence",
    "safe_region",
    "search",
    "tune",
    "tuning_problem",
    "write_configuration",
]
