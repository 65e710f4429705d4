"""Two small simulations of the loop's model, to check the theory against.

fluid.py          real-valued admissions, the model of the closed forms
request_level.py  whole requests behind a head-of-line gate
"""
