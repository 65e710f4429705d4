"""Calibration: what the step time of this engine on this machine is, as a profile.

settings.py      what was asked             arguments.py    the command line
errors.py        why it ended               server.py       what the server is, and refusals
launched.py      a server of our own        machine.py      what it runs on
plan.py          which points, in order     load.py         requests held in the engine
samples.py       what a point yields        sources.py      step times, from trace or streams
sweep.py         the measuring              progress.py     its live view
decode_fit.py    l_min, B0, alpha           prefill_fit.py  ms per prompt token
window.py        H0                         profile.py      the JSON file
assemble.py      all of it into a profile   figure.py       the PNG
run.py           one run from start to end
"""
