"""The nominal window H0 from the knee and the output lengths.

The paper's rule (section V) is H0 = B0 Lbar. Saturated, it lets in about
4 B0/(1 + CV^2) requests, because a running request has on average only
rbar = (Lbar (1 + CV^2) + 1)/2 tokens left (renewal theory, length-biased sampling), and
the window doubles at full queue. H0 <= (B0 + 1) rbar/2 keeps the batch at the knee.
"""

from __future__ import annotations

from pydantic import Field

from controllers.laws.base import FrozenModel
from twp_sglang.calibration.settings import CalibrationSettings, H0Rule


class NominalWindow(FrozenModel):
    """H0 by both rules, and which one the profile hands on."""

    rule: H0Rule | None = Field(description="rule behind h0_tokens; None while unset")
    mean_output_tokens: float | None
    residual_tokens: float | None = Field(description="rbar used for safe_h0_tokens")
    paper_h0_tokens: float | None = Field(description="B0 Lbar")
    safe_h0_tokens: float | None = Field(description="(B0 + 1) rbar/2")
    explanation: str

    @property
    def h0_tokens(self) -> float | None:
        """The one that ``rule`` names."""
        if self.rule is None:
            return None
        return self.paper_h0_tokens if self.rule == "paper" else self.safe_h0_tokens


def nominal_window(b0: int | None, settings: CalibrationSettings) -> NominalWindow:
    """H0 for the knee ``b0`` and the output lengths of ``settings``.

    With a mean alone, rbar is taken for constant lengths, (Lbar + 1)/2: no length law with
    that mean has a smaller one, so the safe start holds for all of them.
    """
    mean, law = settings.mean_length, settings.output_lengths
    if b0 is None or mean is None:
        missing = "the knee" if b0 is None else "output lengths (--mean-output-tokens)"
        return NominalWindow(
            rule=None,
            mean_output_tokens=mean,
            residual_tokens=None,
            paper_h0_tokens=None,
            safe_h0_tokens=None,
            explanation=f"h0_tokens is left unset for want of {missing}: launch_server then "
            "takes b0 times the mean expected output length of the requests it sees",
        )
    residual = law.residual_mean if law is not None else (mean + 1.0) / 2.0
    known = f"law {law.name}" if law is not None else "constant lengths, the worst case"
    paper, safe = b0 * mean, (b0 + 1) * residual / 2.0
    chosen = "B0 Lbar (the paper's)" if settings.h0_rule == "paper" else "(B0 + 1) rbar/2 (safe)"
    return NominalWindow(
        rule=settings.h0_rule,
        mean_output_tokens=mean,
        residual_tokens=residual,
        paper_h0_tokens=paper,
        safe_h0_tokens=safe,
        explanation=f"h0_tokens is {chosen}. B0 Lbar = {b0} x {mean:g} = {paper:.0f} lets the "
        f"saturated batch rise to about {2 * paper / residual - 1:.0f}; "
        f"(B0 + 1) rbar/2 = {safe:.0f} with rbar = {residual:.1f} ({known}) keeps it at B0",
    )
