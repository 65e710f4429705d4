"""The paper beside the simulator: every printed number, every claim, and a verdict.

:mod:`.published` is what the paper prints, :mod:`.contradictions` what follows from that by
arithmetic alone; :mod:`.experiment` simulates, :mod:`.runs` spreads and keeps the simulations;
:mod:`.statements` and :mod:`.printed` set the two side by side by the rules of :mod:`.verdict`;
:mod:`.figures` and :mod:`.report` show it.
"""
