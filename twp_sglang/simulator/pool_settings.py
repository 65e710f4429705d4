"""A serverless pool as numbers: machines, checkpoints, start-up, keep-alive, migration.

Orders of magnitude follow the published figures of ServerlessLLM (OSDI 2024, arXiv
2401.14351); a pool that is meant to be yours wants your own in a ``--pool`` file.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from controllers.laws.base import FrozenModel

Tier = Literal["dram", "nvme", "remote"]
"""Where a checkpoint lies, fastest first."""

TIERS: tuple[Tier, ...] = ("dram", "nvme", "remote")


class PoolModel(FrozenModel):
    """One model that the pool serves.

    ``in_dram`` and ``on_nvme`` name the nodes (counting from 0) that hold its checkpoint
    when the run begins; every node can fetch it from the remote store.
    """

    name: str = Field(min_length=1)
    checkpoint_gb: float = Field(
        default=6.4,
        gt=0,
        description="weights, 10^9 bytes; 3.2 billion parameters in 2 bytes, the paper's "
        "Llama-3.2-3B in FP16",
    )
    share: float = Field(
        default=1.0,
        ge=0,
        description="weight of the model among requests whose client no model names; equal "
        "until somebody knows better",
    )
    clients: tuple[str, ...] = Field(
        default=(), description="clients of the trace that ask for this model"
    )
    in_dram: tuple[int, ...] = Field(
        default=(), description="nodes with the checkpoint in memory; a fresh deployment has none"
    )
    on_nvme: tuple[int, ...] = Field(
        default=(), description="nodes with the checkpoint on disk; a fresh deployment has none"
    )


class LoadingRates(FrozenModel):
    """How fast a checkpoint reaches the GPU, and what starting adds."""

    remote_gb_per_s: float = Field(
        default=1.25,
        gt=0,
        description="object store over the 10 Gbit/s Ethernet of ServerlessLLM's cluster "
        "(its text reckons 5 GB/s for a cloud's best)",
    )
    nvme_gb_per_s: float = Field(
        default=6.0, gt=0, description="one PCIe 4.0 NVMe drive; ServerlessLLM's RAID 0 of two: 12"
    )
    dram_gb_per_s: float = Field(
        default=20.0, gt=0, description="pinned memory over PCIe 4.0 x16, of 32 nominal"
    )
    instance_start_ms: float = Field(
        default=500.0,
        ge=0,
        description="process and CUDA context with the image resident; half a second is its order",
    )
    ordinary_slowdown: float = Field(
        default=5.0,
        ge=1,
        description="factor on local loading under policies without ServerlessLLM's loader, "
        "which it measured 3.6 to 8.2 times faster than PyTorch and Safetensors; the remote "
        "store is bounded by the network either way",
    )

    def load_ms(self, checkpoint_gb: float, tier: Tier, *, fast: bool) -> float:
        """Start of a container from ``tier`` on an idle node, ms: start + size / rate."""
        rate = {
            "dram": self.dram_gb_per_s,
            "nvme": self.nvme_gb_per_s,
            "remote": self.remote_gb_per_s,
        }[tier]
        if not fast and tier != "remote":
            rate /= self.ordinary_slowdown
        if not fast and tier == "remote":
            # Fetched, then loaded like any local file: the slower of the two shows.
            rate = min(rate, self.nvme_gb_per_s / self.ordinary_slowdown)
        return self.instance_start_ms + checkpoint_gb / rate * 1e3


class MigrationSettings(FrozenModel):
    """Live migration of a container's requests, as token ids (ServerlessLLM, section 5)."""

    enabled: bool = Field(default=True, description="part of ServerlessLLM as published")
    network_gb_per_s: float = Field(
        default=1.25, gt=0, description="10 Gbit/s Ethernet, as for the remote store"
    )
    bytes_per_token: int = Field(default=4, ge=1, description="a token id is 32 bits wide")
    message_ms: float = Field(
        default=2.0, ge=0, description="round trip that every round costs; a data centre's order"
    )
    gap_tokens: int = Field(
        default=16,
        ge=1,
        description="tokens per request still to be computed at the other end when the source "
        "stops; small against a prompt, so that the last pause is about one step",
    )
    most_rounds: int = Field(
        default=8,
        ge=1,
        description="rounds after which the source stops anyway; each round shrinks the gap "
        "by the ratio of prefill to decode speed, so few are needed",
    )

    def transfer_ms(self, tokens: int) -> float:
        """One round's message and ``tokens`` token ids on the wire."""
        return self.message_ms + tokens * self.bytes_per_token / (self.network_gb_per_s * 1e6)


class PoolSettings(FrozenModel):
    """Everything about the pool. Each default has its reason in the description."""

    nodes: int = Field(
        default=2, ge=1, description="servers; the fewest between which locality can be chosen"
    )
    gpus_per_node: int = Field(default=2, ge=1, description="one container each")
    models: tuple[PoolModel, ...] = Field(
        default=(PoolModel(name="model", on_nvme=(0,)),),
        min_length=1,
        description="one model, whose checkpoint lies on the disk of the first node",
    )
    dram_gb: float = Field(
        default=64.0,
        ge=0,
        description="memory per node that keeps checkpoints (least recently used go); a "
        "quarter of an ordinary GPU server's",
    )
    nvme_gb: float = Field(
        default=2000.0, ge=0, description="disk per node; ServerlessLLM's cluster has 2 TB drives"
    )
    keep_alive_s: float = Field(
        default=60.0,
        ge=0,
        description="idle time after which a container goes; between ServerlessLLM's (as long "
        "as loading takes) and a public cloud's ten minutes",
    )
    target_ongoing_requests: int = Field(
        default=8,
        ge=1,
        description="unfinished requests per container beyond which another one is started if "
        "a GPU is free; the paper's saturation batch B0",
    )
    rates: LoadingRates = LoadingRates()
    migration: MigrationSettings = MigrationSettings()

    @model_validator(mode="after")
    def _consistent(self) -> PoolSettings:
        names = [model.name for model in self.models]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"models: '{name}' stands twice; give each model its own name")
        clients = [client for model in self.models for client in model.clients]
        for client in clients:
            if clients.count(client) > 1:
                raise ValueError(f"models: client '{client}' is claimed twice; name it once")
        if not any(model.share for model in self.models):
            raise ValueError("models: every share is 0; give at least one model a share above 0")
        for model in self.models:
            for field in ("in_dram", "on_nvme"):
                for node in getattr(model, field):
                    if not 0 <= node < self.nodes:
                        raise ValueError(
                            f"models: {model.name}.{field} names node {node}; nodes are "
                            f"0 to {self.nodes - 1}"
                        )
        for node in range(self.nodes):
            for field, limit in (("in_dram", self.dram_gb), ("on_nvme", self.nvme_gb)):
                held = sum(m.checkpoint_gb for m in self.models if node in getattr(m, field))
                if held > limit:
                    raise ValueError(
                        f"models: {field} puts {held:g} GB on node {node}, which holds {limit:g}"
                    )
        return self


class PoolFileError(ValueError):
    """A pool file that cannot be used; the message names file, field and mend."""


def read_pool(path: Path) -> PoolSettings:
    """The pool in a TOML file, or a ``.json`` one.

    Raises:
        PoolFileError: the file cannot be read, or a field is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
        loaded = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return PoolSettings.model_validate(loaded)
    except (OSError, UnicodeDecodeError) as error:
        raise PoolFileError(f"--pool {path}: cannot be read ({error})") from None
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise PoolFileError(f"--pool {path}: is neither TOML nor .json ({error})") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        told = f"{place} = {first.get('input')!r}: {message}" if place else message
        raise PoolFileError(f"--pool {path}: {told}") from None
