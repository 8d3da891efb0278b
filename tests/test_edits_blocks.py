"""Edits that put statements under a condition and elements into lists, and how long ones are laid out."""

from __future__ import annotations

import ast

import pytest

from rewriter.edits import Chain, Edit, Guard, Prepend, Wrap
from tests.test_edits import call, edit, find


def guard(*starts: str):  # type: ignore[no-untyped-def]
    def make(tree: ast.Module) -> list[Edit]:
        statements = [n for n in ast.walk(tree) if isinstance(n, ast.stmt)]
        return [Guard(s, "a == 0") for s in statements if ast.unparse(s).startswith(starts)]

    return make


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("p(1)\n", "if a == 0:\n    p(1)\n"),
        ("p(1)\np(2)\n", "if a == 0:\n    p(1)\n    p(2)\n"),
        ("p(1)\n\n# two\np(2)  # end\n", "if a == 0:\n    p(1)\n\n    # two\n    p(2)  # end\n"),
        ("p(1)\nx\np(2)\n", "if a == 0:\n    p(1)\nx\nif a == 0:\n    p(2)\n"),
        ("x; p(1); y  # end\n", "x\nif a == 0:\n    p(1)\ny  # end\n"),
        ("# one\np(1,\n  2)\n", "# one\nif a == 0:\n    p(1,\n      2)\n"),
        ("if b: p(1)\nelse: p(2)\n", "if b:\n    if a == 0:\n        p(1)\nelse:\n    if a == 0:\n        p(2)\n"),
        ("if b:\n\tp(1)\n", "if b:\n\tif a == 0:\n\t\tp(1)\n"),
        ('p("""x\ny""")\n', 'if a == 0:\n    p("""x\ny""")\n'),
        ("with p() as f:\n    # in\n    f()\nx\n", "if a == 0:\n    with p() as f:\n        # in\n        f()\nx\n"),
    ],
)
def test_guard(before: str, after: str) -> None:
    assert edit(before, guard("p(", "with p(")) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = []\n", "x = [a, b]\n"),
        ("x = [1, 2]\n", "x = [a, b, 1, 2]\n"),
        ("x = [1,2]\n", "x = [a, b, 1,2]\n"),
        ("x = [\n    1,  # one\n    2,\n]\n", "x = [\n    a,\n    b,\n    1,  # one\n    2,\n]\n"),
        ("x = [1,\n     2]\n", "x = [a,\n     b,\n     1,\n     2]\n"),
    ],
)
def test_prepend(before: str, after: str) -> None:
    assert edit(before, lambda tree: [Prepend(find(tree, ast.List), "a, b")]) == after  # type: ignore[arg-type]


def test_two_calls_at_once() -> None:
    assert edit("d = f(x).g()\n", lambda tree: [Chain(call(tree, "f"), "a(1).b(2)")]) == "d = f(x).a(1).b(2).g()\n"


def test_parentheses_of_a_template() -> None:
    assert edit("f(a + b)\n", lambda tree: [Wrap(find(tree, ast.BinOp), "(...) * 2")]) == "f((a + b) * 2)\n"  # type: ignore[arg-type]


def test_long_lists_are_spread() -> None:
    long = ", ".join(["abcdefghij()"] * 8)
    after = edit("x = [1, 2]\n", lambda tree: [Prepend(find(tree, ast.List), long)])  # type: ignore[arg-type]
    assert after == "x = [\n" + "    abcdefghij(),\n" * 8 + "    1,\n    2,\n]\n"


def test_a_call_in_several_lines_is_laid_out_anew() -> None:
    before = "f(a, b=1,\n  c=2)\n"
    after = edit(before, lambda tree: [Wrap(call(tree, "f").args[0], f"{'g' * 100}(...)")])
    assert after == f"f(\n    {'g' * 100}(\n        a\n    ),\n    b=1,\n    c=2,\n)\n"
