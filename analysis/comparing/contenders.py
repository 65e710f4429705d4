"""Who takes part in a comparison, and what of each is tuned.

A contender is a configuration of the policy and of the engine, some of whose values are axes
with candidates. Besides fields of :class:`TwpConfig` and :class:`EngineSettings` there are
axes that follow the traffic or the objective, see :data:`DERIVED`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError, model_validator

from analysis.cells.machines import Machine
from analysis.comparing.told import told_fields
from controllers.laws.base import FrozenModel
from twp_sglang.benchmarking import slo_argument
from twp_sglang.benchmarking.slo_argument import parse_slos
from twp_sglang.config import TwpConfig
from twp_sglang.simulator.settings import EngineSettings

DERIVED = {
    "h0_batch": "h0_tokens: so many requests of the traffic's mean output length",
    "itl_target_share": "itl_target_ms: this share of the objective's ITL limit (of 100 ms "
    "where it has none)",
    "step_model": "of policy slo: 'machine' gives it the step model of the machine, as a full "
    "calibration would; 'learned' gives it nothing; see analysis.comparing.told for wrong ones",
}

CHUNKS = (64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Prompt tokens per step: from the paper's to one that fills 100 ms of an H100."""

CAPS = (8, 16, 32, 64, 128, 256, 2048)
"""Rows of the batch: from the paper's B0 to no cap."""

WINDOWS = (4, 8, 16, 32, 64, 128, 256)
"""Nominal windows in requests of mean length: from half the paper's to more than memory holds."""

INTERVALS = (1, 2, 4, 8, 16, 32)
"""Decode steps after each prefill step."""


def _known(key: str, fields: Mapping[str, Any], where: str) -> None:
    if key not in fields:
        raise ValueError(f"{where}.{key}: no such field; there are {', '.join(sorted(fields))}")


class Contender(FrozenModel):
    """One scheduler of a comparison.

    Attributes:
        name: in tables and files.
        title: in figures.
        about: one sentence.
        config: fixed fields of :class:`TwpConfig`.
        engine: fixed fields of :class:`EngineSettings`.
        axes: candidates of each tuned value, in order of size; empty: nothing is tuned.
    """

    name: str = Field(min_length=1)
    title: str = ""
    about: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    engine: dict[str, Any] = Field(default_factory=dict)
    axes: dict[str, tuple[Any, ...]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_known(self) -> Contender:
        for key in self.config:
            _known(key, TwpConfig.model_fields, f"{self.name}: config")
        for key in self.engine:
            _known(key, EngineSettings.model_fields, f"{self.name}: engine")
        for key, values in self.axes.items():
            axes = {**TwpConfig.model_fields, **EngineSettings.model_fields, **DERIVED}
            _known(key, axes, f"{self.name}: axes")
            if not values:
                raise ValueError(f"{self.name}: axis {key} has no candidate")
        TwpConfig.model_validate(self.config)
        return self

    @property
    def label(self) -> str:
        """Title, or name where there is none."""
        return self.title or self.name


class Setting(NamedTuple):
    """What a simulation is given."""

    config: dict[str, Any]
    engine: dict[str, Any]


def setting(
    contender: Contender,
    choice: Mapping[str, Any],
    machine: Machine,
    mean_output_tokens: float,
    slo: str,
) -> Setting:
    """``contender`` with one candidate of each axis.

    The knee and the baseline step time come from the machine's step model where it has
    them, as a calibrated server would have them.
    """
    config: dict[str, Any] = {}
    if machine.step is not None:
        config["l_min_ms"] = machine.step.l_min_ms
        if machine.step.b0 >= 1:
            config["b0"] = round(machine.step.b0)
    config.update(contender.config)
    if config.get("policy") == "slo":
        config.setdefault("itl_slo_ms", itl_limit_ms(slo))
        config.setdefault("ttft_slo_ms", ttft_limit_ms(slo))
        # Here a token is there when its step ends.
        config.setdefault("itl_delivery_ms", 0.0)
    engine = dict(contender.engine)
    for key, value in choice.items():
        if key == "h0_batch":
            config["h0_tokens"] = float(value * mean_output_tokens)
        elif key == "itl_target_share":
            config["itl_target_ms"] = float(value) * itl_limit_ms(slo)
        elif key == "step_model":
            for known in ("l_min_ms", "b0"):
                config.pop(known, None)
            config.update(told_fields(str(value), machine))
        elif key in EngineSettings.model_fields:
            # chunk_tokens is a field of both: the engine's is the one that a step obeys.
            engine[key] = value
        else:
            config[key] = value
    return Setting(config, engine)


def itl_limit_ms(slo: str) -> float:
    """The ITL limit of a list of objectives; 100 ms where it has none."""
    limit = slo_argument.itl_limit_ms(parse_slos(slo))
    return 100.0 if limit is None else limit


def ttft_limit_ms(slo: str) -> float:
    """The TTFT limit of a list of objectives; 2 s where it has none."""
    limit = slo_argument.ttft_limit_ms(parse_slos(slo))
    return 2000.0 if limit is None else limit


_MIXED = {"step_kind": "mixed"}


def _window_law(law: str, title: str, about: str) -> Contender:
    return Contender(
        name="twp" if law == "paper" else f"twp-{law}",
        title=title,
        about=about,
        config={"policy": "twp", "law": law},
        engine=_MIXED,
        axes={"chunk_tokens": CHUNKS, "h0_batch": WINDOWS},
    )


CATALOGUE: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender(
            name="stock",
            title="stock SGLang",
            about="waiting prompts first, in chunks of 8192, first come first served",
            config={"policy": "off"},
            engine={"step_kind": "prefill-first", "chunk_tokens": 8192},
        ),
        Contender(
            name="static",
            title="static chunk and cap",
            about="SGLang's mixed steps with the best chunk and cap on the batch",
            config={"policy": "off"},
            engine=_MIXED,
            axes={"chunk_tokens": CHUNKS, "max_running_requests": CAPS},
        ),
        Contender(
            name="static-spf",
            title="static, shortest prompt first",
            about="the same with the shortest waiting prompt first",
            config={"policy": "priority"},
            engine=_MIXED,
            axes={"chunk_tokens": CHUNKS, "max_running_requests": CAPS},
        ),
        Contender(
            name="sarathi",
            title="Sarathi-style token budget",
            about="a token budget per step, decoding rows first, prompts in what is left; "
            "no cap on the batch",
            config={"policy": "off"},
            engine=_MIXED,
            axes={"chunk_tokens": CHUNKS},
        ),
        Contender(
            name="interval",
            title="SGLang decode interval",
            about="a number of decode steps after each prefill step",
            config={"policy": "off"},
            engine={"step_kind": "interval"},
            axes={"chunk_tokens": CHUNKS, "prefill_decode_interval": INTERVALS},
        ),
        Contender(
            name="dynamic-batch",
            title="dynamic batch",
            about="no admission while the filtered ITL is above a target",
            config={"policy": "dynamic-batch"},
            engine=_MIXED,
            axes={"chunk_tokens": CHUNKS, "itl_target_share": (0.3, 0.5, 0.7, 0.9, 1.0)},
        ),
        Contender(
            name="twp-as-printed",
            title="TWP, the paper's constants",
            about="H0 = 400, gamma = 0.15, B0 = 8, C = 64, forced admission without limit",
            config={
                "policy": "twp",
                "h0_tokens": 400.0,
                "gamma": 0.15,
                "b0": 8,
                "forced_per_step": None,
            },
            engine={**_MIXED, "chunk_tokens": 64},
        ),
        _window_law("paper", "TWP, tuned", "the paper's law with the best H0 and chunk"),
        _window_law("regulated", "TWP, law regulated", "log-integral law, best H0 and chunk"),
        _window_law("gradient2", "Gradient2 window", "Gradient2 on the token window"),
        _window_law("vegas", "Vegas window", "Vegas on the token window"),
        _window_law("aimd", "AIMD window", "AIMD on the token window"),
        Contender(
            name="slo",
            title="policy slo",
            about="steps and first tokens held by prediction, with the machine's step model",
            config={"policy": "slo"},
            engine={**_MIXED, "chunk_tokens": 8192},
            axes={"step_model": ("machine",)},
        ),
        Contender(
            name="slo-uncalibrated",
            title="policy slo, no profile",
            about="the same from nothing: it learns the step model while serving",
            config={"policy": "slo"},
            engine={**_MIXED, "chunk_tokens": 8192},
            axes={"step_model": ("learned",)},
        ),
    )
}

LEFT_OUT = {
    "prefill delayer": "SGLang's --enable-prefill-delayer agrees over data-parallel ranks when to "
    "prefill (and holds prompts back until a batch of them is ready); the simulator's engine has "
    "no such ranks and no such hold",
    "min-free-slots delay": "SGLang's --min-free-slots-delay is not in the simulator's engine",
}
"""Peers that the simulator cannot express, with why."""


def read_contenders(path: Path) -> list[Contender]:
    """Contenders from a TOML file with one table each.

    ::

        [mine]
        title = "my settings"
        config = { policy = "twp", law = "regulated", k = 0.1 }
        engine = { step_kind = "mixed" }
        axes = { chunk_tokens = [256, 512], h0_batch = [16, 32] }

    Raises:
        ValueError: the file cannot be read, or a field is wrong.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--contenders {path}: cannot be read ({error})") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"--contenders {path}: is not TOML ({error})") from None
    found = []
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ValueError(f"--contenders {path}: {name} must be a table, written [{name}]")
        try:
            found.append(Contender(name=name, **table))
        except (ValidationError, TypeError) as error:
            raise ValueError(f"--contenders {path}: {_first(error)}") from None
    return found


def choose(names: Sequence[str], extra: Sequence[Contender]) -> list[Contender]:
    """Contenders by name, those of ``extra`` before those that come with the package.

    Raises:
        ValueError: there is no such contender.
    """
    there = {**CATALOGUE, **{contender.name: contender for contender in extra}}
    wanted = names or list(there)
    unknown = [name for name in wanted if name not in there]
    if unknown:
        raise ValueError(
            f"--contender {unknown[0]}: no such contender; there are {', '.join(there)}"
        )
    return [there[name] for name in dict.fromkeys(wanted)]


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        return f"{place}: {message}" if place else message
    return str(error)
