"""Edits that put statements under a condition and elements into lists, and how long ones are laid out."""

from __future__ import annotations

import ast

import pytest

from rewriter.edits import Chain, Edit, Guard, Insert, Prepend, SetKeyword, Within, Wrap
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


def within(*ranges: str):  # type: ignore[no-untyped-def]
    """Ranges "first..last" of calls, each under `with s():`."""

    def make(tree: ast.Module) -> list[Edit]:
        statements = {ast.unparse(n): n for n in ast.walk(tree) if isinstance(n, ast.stmt)}
        named = {name.partition("(")[0]: s for name, s in statements.items()}
        ends = [r.partition("..")[::2] for r in ranges]
        return [Within(named[first], named[last or first], "with s():") for first, last in ends]

    return make


@pytest.mark.parametrize(
    ("ranges", "before", "after"),
    [
        (["a"], "a()\n", "with s():\n    a()\n"),
        (["a..b"], "x\na()\nb()\ny\n", "x\nwith s():\n    a()\n    b()\ny\n"),
        (["a", "b"], "a()\nb()\n", "with s():\n    a()\n    b()\n"),
        (["a", "b"], "a()\nx\nb()\n", "with s():\n    a()\nx\nwith s():\n    b()\n"),
        (["a..b"], "# one\na()\n\n\n# two\nb()  # end\n", "# one\nwith s():\n    a()\n\n\n    # two\n    b()  # end\n"),
        (["b"], "a()\n\n# one\n\n# two\nb()\n", "a()\n\n# one\n\n# two\nwith s():\n    b()\n"),
        (
            ["a..c"],
            "a()\nif x:\n  # in\n  b()\n\n  y\nc()\n",
            "with s():\n  a()\n  if x:\n    # in\n    b()\n\n    y\n  c()\n",
        ),
        (
            ["a..b"],
            "if x:\n\ta()\n\n\t# two\n\tb(1,\n\t\t2)\n",
            "if x:\n\twith s():\n\t\ta()\n\n\t\t# two\n\t\tb(1,\n\t\t\t2)\n",
        ),
        (["a..b"], 'a("""x\ny""")\nb(\n\n  1)\n', 'with s():\n    a("""x\ny""")\n    b(\n\n      1)\n'),
        (["a..b"], "x; a(); b(); y  # end\n", "x\nwith s():\n    a(); b()\ny  # end\n"),
        (["a..b"], "x; a()\nb(); y\n", "x\nwith s():\n    a()\n    b()\ny\n"),
        (["a"], "if x: a(); y\n", "if x:\n    with s():\n        a()\n    y\n"),
        (
            ["a..b"],
            "def f():\n    a()\n    # two\n    b()\n    # end\n",
            "def f():\n    with s():\n        a()\n        # two\n        b()\n    # end\n",
        ),
    ],
)
def test_within(ranges: list[str], before: str, after: str) -> None:
    assert edit(before, within(*ranges)) == after


def test_within_other_edits() -> None:
    """What is inserted above the range stays above it; other edits are made in it."""

    def make(tree: ast.Module) -> list[Edit]:
        _, first, second = tree.body
        assert isinstance(first, ast.stmt) and isinstance(second, ast.stmt)
        return [
            Insert(first, "s = t()", after=False),
            *within("a..b")(tree),
            SetKeyword(call(tree, "a"), "k", "1"),
            Guard(second, "c"),
            Insert(second, "d()"),
        ]

    after = "x\ns = t()\n# one\nwith s():\n    a(k=1)\n    if c:\n        b()\n    d()\n"
    assert edit("x\n# one\na()\nb()\n", make) == after


def test_guards_across_ranges_are_not_joined() -> None:
    def make(tree: ast.Module) -> list[Edit]:
        return [*within("a..b")(tree), *guard("b(", "c(")(tree)]

    after = "with s():\n    a()\n    if a == 0:\n        b()\nif a == 0:\n    c()\n"
    assert edit("a()\nb()\nc()\n", make) == after


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
