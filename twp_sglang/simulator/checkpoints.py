"""Where checkpoints lie on each node, and how long loading one takes there.

A node loads one checkpoint at a time: start-up = queue + start + size / rate, with the rate
of the fastest tier that holds it (ServerlessLLM, section 6). What was loaded stays in
memory and on disk until room is wanted, least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from twp_sglang.simulator.pool_settings import LoadingRates, PoolModel, PoolSettings, Tier


class Load(NamedTuple):
    """One loading of a checkpoint."""

    tier: Tier
    queued_ms: float
    """Wait behind other loads of the node."""
    load_ms: float
    ready_ms: float


class Shelf:
    """Checkpoints in one tier of one node, in order of last use."""

    def __init__(self, capacity_gb: float) -> None:
        self.capacity_gb = capacity_gb
        self._held: OrderedDict[str, float] = OrderedDict()

    def __contains__(self, model: str) -> bool:
        return model in self._held

    @property
    def held_gb(self) -> float:
        """Size of all that is there."""
        return sum(self._held.values())

    def put(self, model: PoolModel) -> None:
        """Use or add ``model``; others go where room is wanted. One that can never fit is
        not kept."""
        if model.checkpoint_gb > self.capacity_gb:
            return
        self._held[model.name] = model.checkpoint_gb
        self._held.move_to_end(model.name)
        while self.held_gb > self.capacity_gb:
            self._held.popitem(last=False)


class Node:
    """Storage of one server and the queue of its loads."""

    def __init__(self, index: int, settings: PoolSettings) -> None:
        self.index = index
        self.dram = Shelf(settings.dram_gb)
        self.nvme = Shelf(settings.nvme_gb)
        self.loading_until_ms = 0.0
        self._rates: LoadingRates = settings.rates
        for model in settings.models:
            if index in model.in_dram:
                self.dram.put(model)
            if index in model.on_nvme:
                self.nvme.put(model)

    def tier(self, model: PoolModel) -> Tier:
        """The fastest tier that holds the checkpoint."""
        if model.name in self.dram:
            return "dram"
        return "nvme" if model.name in self.nvme else "remote"

    def estimate(self, model: PoolModel, now_ms: float, *, fast: bool) -> Load:
        """What loading ``model`` would come to if it were asked for now."""
        tier = self.tier(model)
        begin = max(now_ms, self.loading_until_ms)
        load_ms = self._rates.load_ms(model.checkpoint_gb, tier, fast=fast)
        return Load(tier, begin - now_ms, load_ms, begin + load_ms)

    def load(self, model: PoolModel, now_ms: float, *, fast: bool) -> Load:
        """Load ``model``; it is kept in memory and on disk from then on."""
        load = self.estimate(model, now_ms, fast=fast)
        self.loading_until_ms = load.ready_ms
        self.dram.put(model)
        self.nvme.put(model)
        return load
