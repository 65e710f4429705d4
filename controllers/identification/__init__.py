"""Identification of the loop from recorded steps.

l = c + a B + alpha (B - B0)+ + kappa KV + p prefill_tokens, fitted robustly with a
profile likelihood over B0, wild block bootstrap intervals that hold jointly, an
excitation check that refuses what the data cannot carry, and held-out validation.

samples.py        which steps count              knee_moments.py  least squares at any knee
segmented.py      robust fit                     selection.py     which terms
bootstrap.py      intervals                      excitation.py    refusals
validation.py     held-out fit                   correlation.py   whiteness
length_law.py     output lengths                 delay.py         delay and filter weight
prefill_only.py   prefill cost without mixing    identify.py      all of it in order
"""

from controllers.identification.identify import identify
from controllers.identification.result import (
    PARAMETERS,
    Estimate,
    Identification,
    IdentificationSummary,
    Refusal,
)

__all__ = [
    "PARAMETERS",
    "Estimate",
    "Identification",
    "IdentificationSummary",
    "Refusal",
    "identify",
]
