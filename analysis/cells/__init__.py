"""One cell: a machine under some traffic at some load, measured in the simulator.

:mod:`.machines` and :mod:`.traffic` say what is simulated, :mod:`.utilisation` what a load
means, :mod:`.measure` runs one simulation, :mod:`.store` keeps results so that a run can go on
where it was stopped, :mod:`.workers` spreads simulations over processes.
"""
