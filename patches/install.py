"""Register the hooks with SGLang's registry, and prove that they are in force.

SGLang's plug-in loader logs exceptions and serves on, ignores a second registration on a
patched target, and can be told to skip plug-ins. None of that is relied on: the hooks are
registered by TWP's own scheduler entry, before SGLang loads other plug-ins, and afterwards
every target is looked at.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from patches.contract import Hook


class ProofError(Exception):
    """TWP does not decide in this process; the message says why."""


def function_of(hook: Hook) -> Callable[..., Any]:
    """Our function behind ``hook``."""
    module, _, name = hook.function.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def register(hooks: tuple[Hook, ...]) -> None:
    """Hand every hook to SGLang's registry; SGLang applies them when it loads plug-ins.

    Raises:
        ProofError: another plug-in of this process has been applied already.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

    patched = [hook for hook in hooks if hook.target in HookRegistry._patched]
    taken = [hook.target for hook in patched if not _in_force(hook)]
    if taken:
        raise ProofError(
            "another plug-in has patched " + ", ".join(taken) + " before TWP was asked; SGLang "
            "ignores a second registration: load TWP first or remove that plug-in"
        )
    source = HookSource(plugin_name="twp", dist_name="twp-sglang")
    for hook in hooks:
        if hook in patched:
            continue  # by an earlier call in this process
        HookRegistry.register(hook.target, function_of(hook), HookType(hook.kind), source=source)


def prove(hooks: tuple[Hook, ...], pretend_missing: str | None = None) -> None:
    """Check that every target is wrapped by our function.

    Raises:
        ProofError: a target is not; all of them are named.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    missing = [
        hook.target
        for hook in hooks
        if hook.target == pretend_missing
        or hook.target not in HookRegistry._patched
        or not _in_force(hook)
    ]
    if missing:
        raise ProofError("SGLang did not apply the hook on " + ", ".join(missing))


def prove_engine_uses(scheduler: Any, hooks: tuple[Hook, ...]) -> None:
    """Check that the objects of this engine reach the wrapped functions: a subclass that
    overrides one would pass it by.

    Raises:
        ProofError: such a subclass is in use.
    """
    adder = getattr(scheduler, "get_prefill_adder_class", None)
    owners: dict[str, type] = {
        "Scheduler": type(scheduler),
        "SchedulePolicy": type(scheduler.policy),
        "TpModelWorker": type(scheduler.tp_worker),
    }
    if adder is not None:
        owners["PrefillAdder"] = adder()
    for hook in hooks:
        _, owner, name = hook.target.rsplit(".", 2)
        used = owners.get(owner)
        if used is not None and not _wraps(getattr(used, name), function_of(hook)):
            raise ProofError(
                f"{used.__module__}.{used.__qualname__} overrides {name}, so the hook on "
                f"{hook.target} is passed by: run without the plug-in that installs that class"
            )


def _in_force(hook: Hook) -> bool:
    """Whether the target is wrapped by our function."""
    return _wraps(pkgutil.resolve_name(_colon(hook.target)), function_of(hook))


def _colon(target: str) -> str:
    """``package.module.Class.name`` in the form that resolve_name takes without guessing."""
    module, owner, name = target.rsplit(".", 2)
    return f"{module}:{owner}.{name}"


def _wraps(function: Any, ours: Callable[..., Any]) -> bool:
    """Whether ``ours`` is in the chain of wrappers around ``function``."""
    while function is not None:
        cells = getattr(function, "__closure__", None) or ()
        if any(cell.cell_contents is ours for cell in cells):
            return True
        function = getattr(function, "__wrapped__", None)
    return False
