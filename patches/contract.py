"""What a hook relies on in SGLang, and the check of it against SGLang's source.

Signatures decide, the version only warns: a release in which every target still takes the
arguments that the hook passes on, and every attribute that it reads is still there, is
served; one that changed either is refused, whatever its number.
"""

from __future__ import annotations

import ast
from typing import Literal, NamedTuple

from patches.sources import Source


class Hook(NamedTuple):
    """One place where SGLang's behaviour is wrapped.

    Attributes:
        target: dotted path in SGLang.
        kind: how SGLang's hook registry combines the two.
        function: dotted path of ours, ``module:name``.
        signatures: argument lists under which the hook is known to work; empty where it
            neither reads nor changes the arguments.
        replaces: what stock SGLang does there.
        why: what TWP needs there.
        until: when the hook can go.
        reads: what the hook uses of SGLang's objects, as ``module:Class.attribute`` or
            ``module:name``.
    """

    target: str
    kind: Literal["before", "after", "around"]
    function: str
    signatures: tuple[str, ...]
    replaces: str
    why: str
    until: str
    reads: tuple[str, ...] = ()


class Finding(NamedTuple):
    """One thing that a check found about a hook."""

    target: str
    ok: bool
    detail: str


def check(hooks: tuple[Hook, ...], source: Source) -> list[Finding]:
    """Judge every hook against ``source``; one finding per hook."""
    return [_check_hook(hook, source) for hook in hooks]


def _check_hook(hook: Hook, source: Source) -> Finding:
    problems: list[str] = []
    found = signature_of(hook.target, source)
    if found is None:
        problems.append("no such function")
    elif hook.signatures and found not in hook.signatures:
        problems.append(f"takes ({found}), known to work with ({' | '.join(hook.signatures)})")
    problems += [f"{name} is gone" for name in hook.reads if not _exists(name, source)]
    return Finding(hook.target, not problems, "; ".join(problems) or (found or ""))


def signature_of(target: str, source: Source) -> str | None:
    """Argument list of ``target`` as :func:`normal_form` writes it; None if it is missing."""
    node = _find(target, source)
    return (
        normal_form(node.args) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
    )


def normal_form(arguments: ast.arguments) -> str:
    """Names, order, kinds and whether there is a default: what a caller can see.

    Annotations and default values are left out; they change between releases without
    changing how the function is called.
    """
    plain = arguments.posonlyargs + arguments.args
    first_default = len(plain) - len(arguments.defaults)
    parts = [
        argument.arg + ("=" if index >= first_default else "")
        for index, argument in enumerate(plain)
    ]
    if arguments.vararg:
        parts.append("*" + arguments.vararg.arg)
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [
        argument.arg + ("" if default is None else "=")
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        parts.append("**" + arguments.kwarg.arg)
    return ", ".join(parts)


def _find(target: str, source: Source) -> ast.AST | None:
    """The definition behind a dotted path: the longest prefix that is a module, then names."""
    parts = target.split(".")
    for split in range(len(parts) - 1, 0, -1):
        tree = source.parse(".".join(parts[:split]))
        if tree is not None:
            return _descend(tree, parts[split:])
    return None


def _descend(tree: ast.Module, names: list[str]) -> ast.AST | None:
    node: ast.AST = tree
    for name in names:
        # The last definition of a name is the one that a caller meets.
        inner = [
            child
            for child in getattr(node, "body", ())
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and child.name == name
        ]
        if not inner:
            return None
        node = inner[-1]
    return node


def _exists(name: str, source: Source) -> bool:
    """Whether ``module:Class.attribute`` or ``module:name`` is still defined."""
    module, _, path = name.partition(":")
    tree = source.parse(module)
    if tree is None:
        return False
    owner, _, attribute = path.rpartition(".")
    if not owner:
        return path in _names_bound(tree)
    node = _descend(tree, owner.split("."))
    return isinstance(node, ast.ClassDef) and attribute in _names_bound(node)


def _names_bound(scope: ast.Module | ast.ClassDef) -> set[str]:
    """Names that a module or class defines, attributes set on ``self`` included."""
    names: set[str] = set()
    for child in scope.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(child.name)
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            names.add(child.target.id)
        elif isinstance(child, ast.Assign):
            names |= {target.id for target in child.targets if isinstance(target, ast.Name)}
    if isinstance(scope, ast.ClassDef):
        names |= {
            node.attr
            for node in ast.walk(scope)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
    return names
