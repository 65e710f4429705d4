"""``python -m analysis.compare``: schedulers side by side, each at its best.

:mod:`.contenders` says who takes part and what may be tuned, :mod:`.contest` tunes on one half
of the traffic and measures on the other, :mod:`.intervals` says how sure the numbers are,
:mod:`.rows` makes tables of them, :mod:`.figures` draws.
"""
