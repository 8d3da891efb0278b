"""Every edit as before and after text, applied to real files' bytes through LibCST."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from rewriter.cst import Tree
from rewriter.edits import (
    CallAs,
    Chain,
    Decorate,
    Delete,
    DropKeyword,
    Edit,
    Insert,
    NameArgument,
    Rename,
    Replace,
    SetKeyword,
    Wrap,
)
from rewriter.source import SourceError, parse


def edit(text: str | bytes, make: Callable[[ast.Module], list[Edit]]) -> str:
    data = text if isinstance(text, bytes) else textwrap.dedent(text).lstrip("\n").encode()
    source = parse(data, Path("train.py"))
    edits = make(source.tree)
    result = Tree(source, [n for e in edits for n in e.nodes]).apply(edits)
    parse(result, Path("train.py"))
    return result.decode()


def find(tree: ast.Module, kind: type, containing: str = "") -> ast.AST:
    return next(n for n in ast.walk(tree) if isinstance(n, kind) and containing in ast.unparse(n))


def call(tree: ast.Module, name: str) -> ast.Call:
    return next(n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func).endswith(name))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f()\n", "f(k=1)\n"),
        ("f(a)\n", "f(a, k=1)\n"),
        ("f(a,b)\n", "f(a,b,k=1)\n"),
        ("f(a, b,)\n", "f(a, b, k=1,)\n"),
        ("f(a, k=2)\n", "f(a, k=1)\n"),
        ("f(x = 3)\n", "f(x = 3, k = 1)\n"),
        ("f(*a, **b)\n", "f(*a, **b, k=1)\n"),
        ("f(x for x in y)\n", "f((x for x in y), k=1)\n"),
        ("f(a,\n  b)\n", "f(a,\n  b,\n  k=1)\n"),
        ("f(\n    a,\n    b,\n)\n", "f(\n    a,\n    b,\n    k=1,\n)\n"),
        ("f(\n    a,\n    b\n)\n", "f(\n    a,\n    b,\n    k=1\n)\n"),
        ("f(\n    a\n)\n", "f(\n    a,\n    k=1\n)\n"),
        ("f(\n    a,\n)\n", "f(\n    a,\n    k=1,\n)\n"),
        ("f(\n    a,  # why\n    b,  # because\n)\n", "f(\n    a,  # why\n    b,  # because\n    k=1,\n)\n"),
        ("f(\n    a,\n    b  # because\n)\n", "f(\n    a,\n    b,  # because\n    k=1\n)\n"),
        ("f(a,  # one\n  b)  # two\n", "f(a,  # one\n  b,\n  k=1)  # two\n"),
        ("f(\n    a, b,\n    c, d\n)\n", "f(\n    a, b,\n    c, d, k=1\n)\n"),
        ("f(\n\ta,\n\tb,\n\t)\n", "f(\n\ta,\n\tb,\n\tk=1,\n\t)\n"),
        ("f(a\n  ,b)\n", "f(a\n  ,b,k=1)\n"),
        ("f(a, \\\n  b)\n", "f(a, \\\n  b, k=1)\n"),
    ],
)
def test_set_keyword(before: str, after: str) -> None:
    assert edit(before, lambda t: [SetKeyword(call(t, "f"), "k", "1")]) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(a, k=2)\n", "f(a)\n"),
        ("f(k=2, a=1)\n", "f(a=1)\n"),
        ("f(k=2)\n", "f()\n"),
        ("f(\n    a,\n    k=2,\n)\n", "f(\n    a,\n)\n"),
    ],
)
def test_drop_keyword(before: str, after: str) -> None:
    assert edit(before, lambda t: [DropKeyword(call(t, "f"), "k")]) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("d = e.batch(3)\n", "d = e.batch(3).prefetch(1)\n"),
        ("d = (e.batch(3))\n", "d = (e.batch(3).prefetch(1))\n"),
        ("d = (\n    e\n    .batch(3)\n)\n", "d = (\n    e\n    .batch(3)\n    .prefetch(1)\n)\n"),
        ("d = (\n    e\n    .batch(3)  # three\n)\n", "d = (\n    e\n    .batch(3)  # three\n    .prefetch(1)\n)\n"),
        ("d = e \\\n    .batch(3)\n", "d = e \\\n    .batch(3) \\\n    .prefetch(1)\n"),
        ("d = e.batch(\n    3\n)\n", "d = e.batch(\n    3\n).prefetch(1)\n"),
        ("g(e.batch(3), 1)\n", "g(e.batch(3).prefetch(1), 1)\n"),
        ("return_ = [e.batch(3)]\n", "return_ = [e.batch(3).prefetch(1)]\n"),
    ],
)
def test_chain(before: str, after: str) -> None:
    assert edit(before, lambda t: [Chain(call(t, "batch"), "prefetch(1)")]) == after


def test_edits_of_one_node_stack() -> None:
    assert (
        edit(
            "d = e.batch(3)\n",
            lambda t: [
                Chain(call(t, "batch"), "prefetch(1)"),
                SetKeyword(call(t, "batch"), "drop_remainder", "True"),
                Wrap(call(t, "batch"), "g(..., 2)"),
            ],
        )
        == "d = g(e.batch(3, drop_remainder=True).prefetch(1), 2)\n"
    )


def test_edits_of_nested_nodes() -> None:
    assert (
        edit(
            "m.compile(Adam(1), 'mse')\n",
            lambda t: [
                Wrap(call(t, "Adam"), "hvd.DistributedOptimizer(...)"),
                SetKeyword(call(t, "Adam"), "epsilon", "1e-7"),
                SetKeyword(call(t, "compile"), "jit_compile", "True"),
            ],
        )
        == "m.compile(hvd.DistributedOptimizer(Adam(1, epsilon=1e-7)), 'mse', jit_compile=True)\n"
    )


def test_name_argument() -> None:
    assert (
        edit(
            "m.fit(g, 10,\n      generator = h)\n",
            lambda t: [
                NameArgument(call(t, "fit"), 1, "steps_per_epoch"),
                NameArgument(call(t, "fit"), "generator", "x"),
            ],
        )
        == "m.fit(g, steps_per_epoch = 10,\n      x = h)\n"
    )


def test_rename_and_replace() -> None:
    assert (
        edit("m . fit_generator(g)  # train\n", lambda t: [Rename(find(t, ast.Attribute), "fit")])
        == "m . fit(g)  # train\n"
    )  # type: ignore[arg-type]
    assert (
        edit("m.compile('adam', loss)\n", lambda t: [Replace(find(t, ast.Constant), "Lamb(0.001)")])
        == "m.compile(Lamb(0.001), loss)\n"
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("m.fit_generator(a,\n                k=1)\n", "m.fit(a,\n      k=1)\n"),
        ("if x:\n    m.fit_generator(a,  # why\n                    # that\n                    f(1,\n"
         "                      2),\n                    )\n",
         "if x:\n    m.fit(a,  # why\n          # that\n          f(1,\n            2),\n          )\n"),
        ("if x:\n\tm.fit_generator(a,\n\t                k=1)\n", "if x:\n\tm.fit(a,\n\t      k=1)\n"),
        ("if x:\n\tm.fit_generator(a,\n\t\t\tk=1)\n", "if x:\n\tm.fit(a,\n\t\t\tk=1)\n"),
        ("m.fit_generator(a,\n    k=1)\n", "m.fit(a,\n    k=1)\n"),
        ("m.fit_generator(\n                    a)\n", "m.fit(\n                    a)\n"),
        ('m.fit_generator("""a\n                b""",\n                k=1)\n',
         'm.fit("""a\n                b""",\n      k=1)\n'),
        ("é = m.fit_generator(a,\n                    k=1)\n", "é = m.fit(a,\n          k=1)\n"),
        ("r = g(m.fit_generator(a,\n                      k=1),\n      b)\n", "r = g(m.fit(a,\n            k=1),\n      b)\n"),
    ],
)  # fmt: skip
def test_lines_aligned_with_a_bracket_move_with_it(before: str, after: str) -> None:
    assert edit(before, lambda t: [Rename(call(t, "fit_generator").func, "fit")]) == after


def test_lines_aligned_with_a_bracket_move_with_any_edit_before_it() -> None:
    before = "ds = x.map(f).batch(8,\n                    k=1)\n"
    grown = "ds = x.map(f, n=2).batch(8,\n                         k=1)\n"
    assert edit(before, lambda t: [SetKeyword(call(t, "map"), "n", "2")]) == grown
    wrapped = "ds = W(x.map(f).batch(8,\n                      k=1))\n"
    assert edit(before, lambda t: [Wrap(call(t, "batch"), "W(...)")]) == wrapped


def after(statement: str, text: str, **more: object) -> Callable[[ast.Module], list[Edit]]:
    def make(tree: ast.Module) -> list[Edit]:
        node = next(n for n in ast.walk(tree) if isinstance(n, ast.stmt) and ast.unparse(n).startswith(statement))
        return [Insert(node, text, **more)]  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize(
    ("before", "change", "expected"),
    [
        ("import a\nimport b\n", after("import a", "p()"), "import a\np()\nimport b\n"),
        ("import a  # one\n\nimport b\n", after("import a", "p()"), "import a  # one\np()\n\nimport b\n"),
        ("import a\n\nx = 1\n", after("import a", "p()", blank_lines=1), "import a\n\np()\n\nx = 1\n"),
        ("'''doc'''; import a\nx = 1\n", after("import a", "p()"), "'''doc'''; import a\np()\nx = 1\n"),
        ("import a; x = 1  # both\n", after("import a", "p()"), "import a\np()\nx = 1  # both\n"),
        ("# head\nimport a; x = 1;\n", after("x = 1", "p()", after=False), "# head\nimport a\np()\nx = 1;\n"),
        ("# head\nx = 1\n", after("x = 1", "p()", after=False), "# head\np()\nx = 1\n"),
        ("a\n\n# why\nx = 1\n", after("x = 1", "p()", after=False), "a\n\np()\n# why\nx = 1\n"),
        ("for i in y: f(i); g(i)\nh()\n", after("f(i)", "p(i)"), "for i in y:\n    f(i)\n    p(i)\n    g(i)\nh()\n"),
        ("if a: f()\nelse: g()\n", after("g()", "p()"), "if a: f()\nelse:\n    g()\n    p()\n"),
        (
            "try:\n    import a\nexcept E:\n    a = 1\nx = 1\n",
            after("try", "p()"),
            "try:\n    import a\nexcept E:\n    a = 1\np()\nx = 1\n",
        ),
        ("def f():\n\timport a\n\treturn a\n", after("import a", "p()"), "def f():\n\timport a\n\tp()\n\treturn a\n"),
        (
            "def f():\n  import a\n  return a\n",
            after("import a", "if p:\n    q()"),
            "def f():\n  import a\n  if p:\n    q()\n  return a\n",
        ),
        ("import a\n", after("import a", "p()"), "import a\np()\n"),
        ("import a", after("import a", "p()"), "import a\np()"),
        ("@d\ndef f():\n    pass\nx = 1\n", after("@d", "p()"), "@d\ndef f():\n    pass\np()\nx = 1\n"),
        ("@d\ndef f():\n    pass\nx = 1\n", after("@d", "p()", after=False), "p()\n@d\ndef f():\n    pass\nx = 1\n"),
        ("class A(B):\n    x = 1\n", after("class A", "p()", after=False), "p()\nclass A(B):\n    x = 1\n"),
    ],
)
def test_insert(before: str, change: Callable[[ast.Module], list[Edit]], expected: str) -> None:
    assert edit(before, change) == expected


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("a()\nkill()\nb()\n", "a()\nb()\n"),
        ("a()\n# why kill\nkill()  # now\nb()\n", "a()\nb()\n"),
        ("a(); kill(); b()\n", "a(); b()\n"),
        ("a()\n\nkill()\nb()\n", "a()\n\nb()\n"),
        ("a()\n\nkill()\n\n# b\nb()\n", "a()\n\n# b\nb()\n"),
        ("if x:\n    kill()\nb()\n", "if x:\n    pass\nb()\n"),
        ("if x: kill()\nb()\n", "if x:\n    pass\nb()\n"),
    ],
)
def test_delete(before: str, expected: str) -> None:
    assert edit(before, lambda t: [Delete(find(t, ast.Expr, "kill"))]) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        "# -*- coding: latin-1 -*-\nt = 'mod\xe8le'; f(t)\n".encode("latin-1"),
        b"\xef\xbb\xbfimport a\nf('\xc3\xa9', a)\n",
        b"import a\r\nx = 1\nf(a)\r\n",
        b"import a\r\n\r\n\x0c\r\nf(a)   \r\n# end",
        b"#!/usr/bin/env python\n\"\"\"doc\"\"\"\nif 1:\n\tf('''\r\n''')\n",
        "f('ü', '日本')  # ü\n".encode(),
    ],
)
def test_every_other_byte_stays(data: bytes) -> None:
    result = edit_bytes(data, lambda t: [SetKeyword(call(t, "f"), "k", "1")])
    assert result.replace(b", k=1", b"") == data and result != data


def edit_bytes(data: bytes, make: Callable[[ast.Module], list[Edit]]) -> bytes:
    source = parse(data, Path("train.py"))
    edits = make(source.tree)
    return Tree(source, [n for e in edits for n in e.nodes]).apply(edits)


@pytest.mark.parametrize("data", [b"import a\rf(a)\r", b"\x0cf(a)\n", b"if 1:\n\t f(1)\n\t if 2:\n\t\t f(2)\n"])
def test_what_libcst_cannot_give_back_is_refused(data: bytes) -> None:
    with pytest.raises(SourceError) as error:
        edit_bytes(data, lambda t: [SetKeyword(call(t, "f"), "k", "1")])
    assert error.value.line


LONG = "a" * 30


@pytest.mark.parametrize(
    ("before", "edits", "after"),
    [
        (  # what fits on the next line stays together
            f"    m.compile({LONG}, {LONG[2:]}, 'adam')\n",
            lambda t: [SetKeyword(call(t, "compile"), "steps_per_execution", "16")],
            f"    m.compile(\n        {LONG}, {LONG[2:]}, 'adam', steps_per_execution=16\n    )\n",
        ),
        (  # else there is one argument per line
            f"    m.compile({LONG}, {LONG}, '{LONG[:10]}')\n",
            lambda t: [
                SetKeyword(call(t, "compile"), "steps_per_execution", "16"),
                SetKeyword(call(t, "compile"), "jit_compile", "True"),
            ],
            f"    m.compile(\n        {LONG},\n        {LONG},\n        '{LONG[:10]}',\n"
            "        steps_per_execution=16,\n        jit_compile=True,\n    )\n",
        ),
        (  # a chain is broken before its dots
            f"    d = tf.data.Dataset.list({LONG}).map(f).batch({LONG})  # why\n",
            lambda t: [Chain(call(t, "batch"), "prefetch(tf.data.AUTOTUNE)")],
            f"    d = (\n        tf.data.Dataset.list({LONG})\n        .map(f)\n        .batch({LONG})\n"
            "        .prefetch(tf.data.AUTOTUNE)\n    )  # why\n",
        ),
        (  # one call per line, those without arguments too
            f"    d = x.shuffle({LONG}).cache().repeat().batch({LONG})\n",
            lambda t: [Chain(find(t, ast.Call, "batch"), "prefetch(tf.data.AUTOTUNE)")],
            f"    d = (\n        x.shuffle({LONG})\n        .cache()\n        .repeat()\n        .batch({LONG})\n"
            "        .prefetch(tf.data.AUTOTUNE)\n    )\n",
        ),
        (  # the outermost call that stands in one line
            f"    m = Model([\n      g(Dense({LONG}, {LONG}), {LONG[:15]}),\n    ])\n",
            lambda t: [SetKeyword(call(t, "Dense"), "dtype", "'float32'")],
            f'    m = Model([\n      g(\n          Dense({LONG}, {LONG}, dtype="float32"),\n          {LONG[:15]},\n      ),\n    ])\n',
        ),
        (  # a list that is all that is given
            f"    m = Model([Dense({LONG}), Dense({LONG[:20]}), Dense({LONG[:20]})])\n",
            lambda t: [SetKeyword(call(t, "Dense"), "dtype", "'float32'")],
            f'    m = Model([\n        Dense({LONG}, dtype="float32"),\n        Dense({LONG[:20]}),\n'
            f"        Dense({LONG[:20]}),\n    ])\n",
        ),
        (  # no chain: a method of the class above
            f"    x = super().init({LONG}, {LONG}, Dense(1))\n",
            lambda t: [SetKeyword(call(t, "Dense"), "dtype", "'float32'")],
            f'    x = super().init(\n        {LONG}, {LONG}, Dense(1, dtype="float32")\n    )\n',
        ),
        (  # of a call of a call, the arguments that are long
            f"    x = Dense({LONG}, {LONG}, 'tanh')({LONG[:20]})\n",
            lambda t: [SetKeyword(call(t, "Dense"), "dtype", '"float32"')],
            f"    x = Dense(\n        {LONG}, {LONG}, 'tanh', dtype='float32'\n    )({LONG[:20]})\n",
        ),
        (  # a call in several lines gets one more
            f"    m.compile(\n        {LONG}, {LONG}, {LONG[:20]}\n    )\n",
            lambda t: [SetKeyword(call(t, "compile"), "jit_compile", "True")],
            f"    m.compile(\n        {LONG}, {LONG}, {LONG[:20]},\n        jit_compile=True\n    )\n",
        ),
        (  # nothing is broken inside an f-string
            f'    x = f"{{g({LONG}, {LONG}, {LONG[:20]})}}"\n',
            lambda t: [SetKeyword(call(t, "g"), "jit_compile", "True")],
            f'    x = f"{{g({LONG}, {LONG}, {LONG[:20]}, jit_compile=True)}}"\n',
        ),
        (  # the file has lines as long
            f"    m.compile({LONG}, {LONG[2:]}, 'adam')\n    x = {'1 + ' * 25}1\n",
            lambda t: [SetKeyword(call(t, "compile"), "steps_per_execution", "16")],
            f"    m.compile({LONG}, {LONG[2:]}, 'adam', steps_per_execution=16)\n    x = {'1 + ' * 25}1\n",
        ),
        (  # it has them in comments only
            f"    m.compile({LONG}, {LONG[2:]}, 'adam')\n    # {LONG * 5}\n",
            lambda t: [SetKeyword(call(t, "compile"), "steps_per_execution", "16")],
            f"    m.compile(\n        {LONG}, {LONG[2:]}, 'adam', steps_per_execution=16\n    )\n    # {LONG * 5}\n",
        ),
        (  # a bare generator takes no comma behind it
            f"    m = g(f(x for x in {LONG} if {LONG * 2}), 1)\n",
            lambda t: [SetKeyword(call(t, "g"), "k", "True")],
            f"    m = g(\n        f(\n            x for x in {LONG} if {LONG * 2}\n        ),\n"
            "        1,\n        k=True,\n    )\n",
        ),
    ],
)
def test_lines_that_get_too_long(before: str, edits: Callable[[ast.Module], list[Edit]], after: str) -> None:
    assert edit(("if y:\n" + before).encode(), edits) == "if y:\n" + after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('f(\'a\')\ng("b", "c")\n', "f('a', k='x')\ng(\"b\", \"c\")\n"),  # the call's own
        ("f(1)\ng(\"b\", 'c', 'd')\n", "f(1, k='x')\ng(\"b\", 'c', 'd')\n"),  # the file's
        ("f(1)\n", 'f(1, k="x")\n'),
        ('f("""a""", \'b\')\n', 'f("""a""", \'b\', k=\'x\')\n'),
    ],
)
def test_quotes(before: str, after: str) -> None:
    assert edit(before, lambda t: [SetKeyword(call(t, "f"), "k", '"x"')]) == after
    assert edit(before, lambda t: [SetKeyword(call(t, "f"), "k", "'x'")]) == after


def test_quotes_in_a_string_stay() -> None:
    assert edit("f('a')\n", lambda t: [SetKeyword(call(t, "f"), "k", '"it\'s"')]) == "f('a', k=\"it's\")\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(): pass\n", "@d\ndef f(): pass\n"),
        ("x = 1\n\n\n# why\ndef f():\n    pass\n", "x = 1\n\n\n# why\n@d\ndef f():\n    pass\n"),
        ("@a\n@b(1)  # one\ndef f():\n    pass\n", "@a\n@b(1)  # one\n@d\ndef f():\n    pass\n"),
        ("@a\n# between\ndef f(): pass\n", "@a\n@d\n# between\ndef f(): pass\n"),
        ("class C:\n\tx = 1\n\n\tdef f(self):\n\t\tpass\n", "class C:\n\tx = 1\n\n\t@d\n\tdef f(self):\n\t\tpass\n"),
        ("if x:\r\n  def f():\r\n    pass\r\n", "if x:\r\n  @d\r\n  def f():\r\n    pass\r\n"),
    ],
)
def test_decorate(before: str, after: str) -> None:
    function = lambda t: next(n for n in ast.walk(t) if isinstance(n, ast.FunctionDef))  # noqa: E731
    assert edit(before.encode(), lambda t: [Decorate(function(t), "d")]) == after


def test_insert_of_a_function_with_blank_lines_around() -> None:
    before = "x = 1\n# loop\nfor a in b:\n  f(a)\n"
    text = "def g(a):\n  return a"
    after = "x = 1\n\n\ndef g(a):\n  return a\n\n\n# loop\nfor a in b:\n  f(a)\n"
    make = lambda t: [Insert(t.body[1], text, after=False, blank_lines=2, below=2, own_indent=True)]  # noqa: E731
    assert edit(before, make) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = d.map(f).batch(8, True)\n", "x = d.batch(8, True).map(f)\n"),
        ("d = s.map(f)\nd = d.batch(8)  # why\n", "d = s.batch(8)\nd = d.map(f)  # why\n"),
        (
            "x = (d\n     .map(f,\n          2)\n     .batch(8))\n",
            "x = (d\n     .batch(8)\n     .map(f,\n          2))\n",
        ),
        (
            "x = d.map(\n    f,  # this\n    2,\n).batch(8)\n",
            "x = d.batch(8).map(\n    f,  # this\n    2,\n)\n",
        ),
        (
            "d = d.map(f,\n          2)\nlonger = d.batch(8,\n                 True)\n",
            "d = d.batch(8,\n            True)\nlonger = d.map(f,\n               2)\n",
        ),
    ],
)
def test_calls_change_places(before: str, after: str) -> None:
    def make(tree: ast.Module) -> list[Edit]:
        first, second = call(tree, "map"), call(tree, "batch")
        return [CallAs(first, second), CallAs(second, first)]

    assert edit(before, make) == after


def test_a_call_that_changed_places_is_followed_by_another() -> None:
    def make(tree: ast.Module) -> list[Edit]:
        first, second = call(tree, "shuffle"), call(tree, "map")
        return [CallAs(first, second), CallAs(second, first), Chain(first, "cache()")]

    assert edit("d = d.shuffle(9).map(f)\n", make) == "d = d.map(f).cache().shuffle(9)\n"


def test_a_comment_stays_behind_its_stage() -> None:
    before = "x = (\n    d\n    .map(f)  # read\n    # mix\n    .shuffle(9)\n)\n"
    after = "x = (\n    d\n    .map(f)  # read\n    .cache()\n    # mix\n    .shuffle(9)\n)\n"
    assert edit(before, lambda t: [Chain(call(t, "map"), "cache()")]) == after


def test_inserted_comments() -> None:
    first = "# numbers\n# and more\na = 1"
    assert edit("b = 2\n", lambda t: [Insert(t.body[0], first)]) == f"b = 2\n{first}\n"
    assert edit("b = 2\n", lambda t: [Insert(t.body[0], first, after=False)]) == f"{first}\nb = 2\n"
