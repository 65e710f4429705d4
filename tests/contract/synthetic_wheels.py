"""Small wheels that hold as much of an SGLang as the hooks look at, and wrong ones."""

from __future__ import annotations

import zipfile
from collections import defaultdict
from pathlib import Path

from patches.contract import Hook


def modules_for(hooks: tuple[Hook, ...]) -> dict[str, str]:
    """Source text per module in which every hook of ``hooks`` fits."""
    functions: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    attributes: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for hook in hooks:
        module, owner, name = place_of(hook)
        arguments = hook.signatures[0] if hook.signatures else "self"
        functions[module][owner][name] = arguments.replace("=", "=None")
        for read in hook.reads:
            read_module, _, path = read.partition(":")
            read_owner, _, attribute = path.rpartition(".")
            attributes[read_module][read_owner].add(attribute)
    return {
        module: _module_text(functions[module], attributes[module])
        for module in {*functions, *attributes}
    }


def place_of(hook: Hook) -> tuple[str, str, str]:
    """Module, class (empty where there is none) and name of a hook's target."""
    module, owner, name = hook.target.rsplit(".", 2)
    return (module, owner, name) if owner[0].isupper() else (f"{module}.{owner}", "", name)


def _module_text(functions: dict[str, dict[str, str]], attributes: dict[str, set[str]]) -> str:
    lines = [f"{name} = None" for name in sorted(attributes.get("", ()))]
    lines += [f"def {name}({given}): ..." for name, given in functions.get("", {}).items()]
    for owner in sorted({*functions, *attributes} - {""}):
        lines.append(f"class {owner}:")
        methods = functions.get(owner, {})
        lines += [
            f"    {name} = None" for name in sorted(attributes.get(owner, set()) - {*methods})
        ]
        lines += [f"    def {name}({arguments}): ..." for name, arguments in methods.items()]
        lines.append("    pass")
    return "\n".join(lines) + "\n"


def write_wheel(path: Path, modules: dict[str, str], version: str = "0.5.99") -> Path:
    """A wheel of ``modules`` that calls itself sglang ``version``."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            f"sglang-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n",
        )
        for module, text in modules.items():
            archive.writestr(module.replace(".", "/") + ".py", text)
    return path
