"""What of a signature a caller can see."""

from __future__ import annotations

import ast

import pytest

from patches.contract import normal_form


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("def f(): ...", ""),
        ("def f(self, a): ...", "self, a"),
        ("def f(a, b=1): ...", "a, b="),
        ("def f(a: int, b: str = 'x') -> None: ...", "a, b="),
        ("def f(a, /, b): ...", "a, b"),
        ("def f(a=1, /, b=2): ...", "a=, b="),
        ("def f(*args): ...", "*args"),
        ("def f(a, *, b, c=2): ...", "a, *, b, c="),
        ("def f(a, *rest, b=None, **more): ...", "a, *rest, b=, **more"),
        ("async def f(a, **more): ...", "a, **more"),
    ],
)
def test_names_order_kinds_and_defaults(source: str, form: str) -> None:
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    assert normal_form(node.args) == form


def test_another_default_value_is_no_change() -> None:
    one = ast.parse("def f(a=1): ...").body[0]
    other = ast.parse("def f(a: float = 2.0): ...").body[0]
    assert isinstance(one, ast.FunctionDef)
    assert isinstance(other, ast.FunctionDef)
    assert normal_form(one.args) == normal_form(other.args)
