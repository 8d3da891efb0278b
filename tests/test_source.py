"""Bytes in: the same bytes out, or a refusal that names file and line. Never a crash."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesmith import from_node

from rewriter.cst import Tree
from rewriter.engine import Options, Result, rewrite
from rewriter.source import SourceError, parse
from rewriter.target import named

FIXTURES = sorted((Path(__file__).parent.parent / "fixtures").glob("*/input.py"))
PATH = Path("train.py")
SCRIPT = """
import tensorflow as tf
ds = tf.data.Dataset.range(100).map(lambda i: (i, i)).batch(10)
model = tf.keras.Sequential([tf.keras.layers.Dense(3, activation="softmax")])
model.compile("adam", "mse")
model.fit(ds, epochs=2)
"""


def run(data: bytes) -> Result:
    target = named("tf2.15")
    (result,) = rewrite([PATH], Options(level=3), lambda _: target, {PATH: data})
    return result


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"print 'epoch', i\n", "train.py:1:1: cannot be parsed: Python 2 syntax"),
        (b"import tensorflow\ntry:\n    f()\nexcept E, e:\n    pass\n", "train.py:4:8: cannot be parsed"),
        (b"x = 1\n%matplotlib inline\n", "train.py:2:1: cannot be parsed: notebook magic"),
        (b"x = 1\n!pip install tensorflow\n", "train.py:2:1: cannot be parsed: notebook magic"),
        (b"x = 1\n\x00y\n", "train.py:2: contains a null byte"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "train.py:1: cannot be decoded"),
        (b"x = '\xe9'\n", "train.py:1: cannot be decoded"),
        (b"# -*- coding: nonsense -*-\nx = 1\n", "train.py:1: cannot be decoded: unknown encoding"),
        (b"def f(:\n", "train.py:1:7: cannot be parsed"),
        (b"if 1:\n\tx = 1\n        y = 2\n", "train.py:3"),
        (b"x = " + b"(" * 300 + b")" * 300 + b"\n", "train.py:1"),
        (b"x = 1\ny = " + b" + ".join([b"x"] * 600) + b"\n", "train.py:2: cannot be handled: nested more than"),
        (b"f(" + b"a." * 2000 + b"b)", "train.py:1"),
    ],
)
def test_what_cannot_be_handled_is_one_line_with_a_position(data: bytes, message: str) -> None:
    with pytest.raises(SourceError) as error:
        parse(data, PATH)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\xef\xbb\xbf",
        b"#!/bin/sh\n",
        b"x = 1 \\\n + 2",
        "x = '\u2028'\ny = 1\n".encode(),
        b"# coding: latin-1\nx = '\xe9'\n",
        b"x = 1\r\ny = 2\nz = 3\r\n",
        b"if 1:\n\tx = 1\n",
        b"x = 1\n    \n# end",
    ],
)
def test_unusual_files_are_read(data: bytes) -> None:
    source = parse(data, PATH)
    assert len(source.lines) == source.text.count("\n") + 1
    Tree(source, [])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes(data: bytes) -> None:
    for prefix in (b"", b"import tensorflow\n"):
        try:
            parse(prefix + data, PATH)
        except SourceError as error:
            assert "train.py" in str(error)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(from_node(), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_arbitrary_python_around_a_script(code: str, first: bool, newline: str) -> None:
    text = code + SCRIPT if first else SCRIPT + code
    try:
        data = text.encode()
        ast.parse(data)
    except (SyntaxError, ValueError, UnicodeEncodeError):
        return
    if newline != "\n":
        data = text.replace("\r", "").replace("\n", newline).encode()
    result = run(data)
    if result.error:
        assert result.after == data and str(result.error).startswith("train.py")
    elif result.after != data:  # whether a script compiles is looked at only where there is something to edit
        compile(result.after, "train.py", "exec", dont_inherit=True)
        assert run(result.after).after == result.after


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FIXTURES), st.randoms(use_true_random=False))
def test_damaged_scripts(path: Path, random) -> None:  # type: ignore[no-untyped-def]
    """Lines lost, doubled and swapped: half-written scripts are what an editor's hook sees."""
    lines = path.read_bytes().splitlines(keepends=True)
    for _ in range(random.randint(1, 6)):
        i, j = random.randrange(len(lines)), random.randrange(len(lines))
        match random.randrange(3):
            case 0:
                del lines[i]
            case 1:
                lines.insert(j, lines[i])
            case 2:
                lines[i], lines[j] = lines[j], lines[i]
    data = b"".join(lines)
    result = run(data)
    if result.error:
        assert result.after == data
    elif result.after != data:  # whether a script compiles is looked at only where there is something to edit
        compile(result.after, "train.py", "exec", dont_inherit=True)
        assert run(result.after).after == result.after


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.parent.name)
def test_scripts_come_back_byte_for_byte(path: Path) -> None:
    source = parse(path.read_bytes(), path)
    nodes = [n for n in ast.walk(source.tree) if isinstance(n, ast.Call)]
    tree = Tree(source, nodes)  # checks the round trip, and finds every call where Python says it stands
    assert tree.apply([]) == source.data
