"""``python -m analysis.gain_sweep``: the loop's gains over a grid, beside the theory.

:mod:`.grid` says which configurations, :mod:`.backends` and :mod:`.served` measure one,
:mod:`.theory` says where the loop should become unstable, :mod:`.figures` draws both.
"""
