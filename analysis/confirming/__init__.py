"""Simulated cells confirmed on the emulated engine with real clients.

:mod:`.launching` tells a server what the simulator was told, :mod:`.measuring` runs one
contender against one stretch of traffic, :mod:`.report` writes both beside each other.
"""
