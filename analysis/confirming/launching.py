"""A simulated setting as flags of ``launch_server``.

The server is stock SGLang with emulated step times; what the simulator calls chunk, cap and
kind of step are SGLang's own flags there.
"""

from __future__ import annotations

from pathlib import Path

from analysis.cells.machines import Machine, slug
from analysis.comparing.contenders import Setting
from analysis.sweeping.served import config_flags
from twp_sglang.config import TwpConfig
from twp_sglang.step_profiles import StepProfile

_STEP_FLAGS = {
    "prefill-first": (),
    "mixed": ("--enable-mixed-chunk",),
    "interval": ("--prefill-decode-interval",),
}
_NUMBERS = {
    "chunk_tokens": "--chunked-prefill-size",
    "max_running_requests": "--max-running-requests",
    "schedule_conservativeness": "--schedule-conservativeness",
}


def machine_flags(machine: Machine, folder: Path) -> list[str]:
    """Flags that make the emulated engine ``machine``; a changed model is written to ``folder``.

    Raises:
        OSError: the file cannot be written.
    """
    name, comma, _ = machine.name.partition(",")
    model = name
    if comma and machine.step is not None:
        path = folder / f"{slug(machine.name)}.json"
        profile = StepProfile(
            name=slug(machine.name), title=machine.name, step=machine.step,
            kv_tokens=machine.kv_tokens, chunk_tokens=machine.chunk_tokens,
        )  # fmt: skip
        path.write_text(profile.model_dump_json(indent=1) + "\n", encoding="utf-8")
        model = str(path)
    return ["--twp-emulate", model, "--max-total-tokens", str(machine.kv_tokens)]


def setting_flags(setting: Setting) -> list[str]:
    """Flags of launch_server for ``setting``.

    Raises:
        ValueError: the simulator's engine has a setting that no flag expresses here.
    """
    engine = dict(setting.engine)
    kind = engine.pop("step_kind", "prefill-first")
    flags = list(_STEP_FLAGS[kind])
    if kind == "interval":
        flags.append(str(engine.pop("prefill_decode_interval", 1)))
    for name, flag in _NUMBERS.items():
        if engine.get(name) is not None:
            flags += [flag, str(engine.pop(name))]
    if engine:
        raise ValueError(
            f"engine setting {', '.join(sorted(engine))}: cannot be told to the emulated engine "
            f"here; those that can are step_kind, prefill_decode_interval, {', '.join(_NUMBERS)}"
        )
    config = TwpConfig(**setting.config)
    if config.policy == "off":
        # Stock scheduling reads no field of TWP's.
        return ["--twp-policy", "off", *flags]
    return [*flags, "--twp-policy", config.policy, *config_flags(config)]
