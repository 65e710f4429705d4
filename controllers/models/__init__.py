"""Frozen models of the token-window loop: latency, output lengths, timing, uncertainty.

latency.py   how long one engine step takes        (:class:`LatencyModel`)
lengths.py   how long requests stay                (:class:`LengthLaw`)
loop.py      what closes the loop around them      (:class:`LoopModel`, ...)
"""

from controllers.models.latency import LatencyModel
from controllers.models.lengths import LengthLaw
from controllers.models.loop import LoopModel, LoopTiming, UncertaintySet

__all__ = ["LatencyModel", "LengthLaw", "LoopModel", "LoopTiming", "UncertaintySet"]
