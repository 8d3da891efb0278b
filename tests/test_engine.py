"""What the engine promises: all or nothing across files, suppression, levels, and that nothing bad is written."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import rewriter.codemod
import rewriter.engine
from rewriter.codemod import Codemod, Finding, Fix, Refusal, codemod
from rewriter.edits import Chain, Delete, Edit, Insert, Replace, SetKeyword, Wrap
from rewriter.engine import Options, Result, rewrite
from rewriter.report import of_result
from rewriter.script import Script
from rewriter.target import named


def run(
    files: dict[str, str],
    given: list[str] | None = None,
    folder: Path = Path("/nowhere"),
    *,
    level: int = 2,
    select: str = "",
) -> dict[str, Result]:
    data = {folder / name: textwrap.dedent(text).lstrip("\n").encode() for name, text in files.items()}
    for path, content in data.items():
        if folder != Path("/nowhere"):
            path.write_bytes(content)
    target = named("tf2.15")
    options = Options(level, frozenset(select.split(",")) if select else None)
    paths = [folder / name for name in given or files]
    return {r.path.name: r for r in rewrite(paths, options, lambda _: target, {p: data[p] for p in paths})}


TRAIN = """
import tensorflow as tf
from data import batches
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(batches())
"""
DATA = """
import tensorflow as tf
def batches():
    return tf.data.Dataset.range(10).batch(2)
"""


def test_an_edit_in_another_file_is_made_when_that_file_is_given(tmp_path: Path) -> None:
    results = run({"train.py": TRAIN, "data.py": DATA}, folder=tmp_path, select="prefetch")
    assert results["train.py"].status == "unchanged"
    assert b".batch(2).prefetch(tf.data.AUTOTUNE)" in results["data.py"].after
    assert [a.line for a in results["data.py"].applied] == [3]


def test_an_edit_in_another_file_is_refused_when_it_is_not_given(tmp_path: Path) -> None:
    (result,) = run({"train.py": TRAIN, "data.py": DATA}, ["train.py"], tmp_path, select="prefetch").values()
    assert result.status == "unchanged"
    (refusal,) = result.refused
    assert refusal.reason.endswith("data.py:3") and "tfboost rewrite" in refusal.hint


def test_files_without_tensorflow_are_left_alone() -> None:
    assert run({"a.py": "import os\n"})["a.py"].status == "not-applicable"


def test_one_bad_file_does_not_stop_the_others() -> None:
    results = run(
        {
            "bad.py": "import keras\nprint 'x'\n",
            "train.py": """
        import tensorflow as tf
        model = tf.keras.Sequential([])
        model.fit(tf.data.Dataset.range(3).batch(1))
        """,
        },
        select="prefetch",
    )
    assert results["bad.py"].status == "failed" and results["train.py"].status == "changed"


FIT = """
import tensorflow as tf
model = tf.keras.Sequential([])
model.fit(tf.data.Dataset.range(3).batch(1)){comment}
"""


@pytest.mark.parametrize(
    ("comment", "status"),
    [
        ("", "changed"),
        ("  # tfboost: ignore", "unchanged"),
        ("  # tfboost: ignore[prefetch]", "unchanged"),
        ("  # TFBOOST:ignore[ xla , prefetch ]", "unchanged"),
        ("  # noqa  # tfboost: ignore[prefetch]", "unchanged"),
        ("  # tfboost: ignore[xla]", "changed"),
        ("\nx = '# tfboost: ignore'", "changed"),
    ],
)
def test_comments_that_suppress(comment: str, status: str) -> None:
    assert run({"a.py": FIT.format(comment=comment)}, select="prefetch")["a.py"].status == status


def test_a_comment_suppresses_refusals_too() -> None:
    text = """
        import tensorflow as tf
        class Rows(tf.keras.utils.Sequence):
            def __getitem__(self, i):
                self.n = i
        model = tf.keras.Sequential([])
        model.fit(Rows()){}
        """
    assert run({"a.py": text.format("")}, select="loader-workers")["a.py"].refused
    assert not run({"a.py": text.format("  # tfboost: ignore[loader-workers]")}, select="loader-workers")[
        "a.py"
    ].refused


# -- codemods made for these tests -----------------------------------------------------------------------------------


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    def use(*codemods: Codemod) -> None:
        monkeypatch.setattr(rewriter.engine, "registry", lambda: {c.name: c for c in codemods})

    return use


def calls(script: Script, name: str) -> list[ast.Call]:
    return [c for c in script.calls if ast.unparse(c.func).endswith(name)]


def making(name: str, make, *, level: int = 1, fix_level: int | None = None) -> Codemod:  # type: ignore[no-untyped-def]
    def run_(script: Script) -> Iterator[Finding]:
        for call in calls(script, "f"):
            edits: list[Edit] = make(call)
            if edits:
                yield Fix(call, "message", edits, fix_level)

    run_.__name__ = name
    return codemod(level=level, phase="input")(run_)


def test_edits_in_different_slots_of_one_call_stack(only) -> None:  # type: ignore[no-untyped-def]
    only(
        making("one", lambda c: [SetKeyword(c, "a", "1")] if not c.keywords else []),
        making("two", lambda c: [SetKeyword(c, "b", "2"), Chain(c, "g()")] if not c.keywords else []),
    )
    result = run({"a.py": "import keras\nf(0)\n"})["a.py"]
    assert result.after == b"import keras\nf(0, a=1, b=2).g()\n" and len(result.applied) == 2


def test_a_taken_slot_waits_for_the_next_round(only) -> None:  # type: ignore[no-untyped-def]
    def wrap(name: str, keyword: str) -> Codemod:
        return making(
            name,
            lambda c: (
                [Wrap(c, f"{name}(...)"), SetKeyword(c, keyword, "1")]
                if all(k.arg != keyword for k in c.keywords)
                else []
            ),
        )

    only(wrap("g", "a"), wrap("h", "b"))
    assert run({"a.py": "import keras\nf(0)\n"})["a.py"].after == b"import keras\ng(h(f(0, a=1, b=1)))\n"


def test_all_edits_of_a_fix_or_none(only) -> None:  # type: ignore[no-untyped-def]
    """`two` needs a slot that `one` has taken with another value: its other edit is not made either."""
    only(
        making("one", lambda c: [SetKeyword(c, "a", "1")] if not c.keywords else []),
        making("two", lambda c: [SetKeyword(c, "a", "2"), Chain(c, "g()")] if not c.keywords else []),
    )
    assert run({"a.py": "import keras\nf(0)\n"})["a.py"].after == b"import keras\nf(0, a=1)\n"


def test_replacing_conflicts_with_edits_beneath(only) -> None:  # type: ignore[no-untyped-def]
    only(
        making("one", lambda c: [SetKeyword(c, "a", "1")] if not c.keywords else []),
        making("two", lambda c: [Replace(c, "h(0)")] if not c.keywords else []),
    )
    assert run({"a.py": "import keras\nf(0)\n"})["a.py"].after == b"import keras\nf(0, a=1)\n"


def test_what_never_settles_is_refused(only) -> None:  # type: ignore[no-untyped-def]
    only(making("grow", lambda c: [Wrap(c, "g(...)")]))
    result = run({"a.py": "import keras\nf(0)\n"})["a.py"]
    assert "does not settle" in str(result.error) and result.after == result.before


def test_output_that_does_not_compile_is_refused(only) -> None:  # type: ignore[no-untyped-def]
    only(making("breaks", lambda c: [Wrap(c, "(yield ...)")]))
    result = run({"a.py": "import keras\nclass A:\n    x = f(0)\n"})["a.py"]
    assert "does not compile" in str(result.error) and result.after == result.before


def test_a_fix_above_the_asked_level_is_a_refusal(only) -> None:  # type: ignore[no-untyped-def]
    only(making("order", lambda c: [SetKeyword(c, "a", "1")] if not c.keywords else [], fix_level=2))
    assert run({"a.py": "import keras\nf(0)\n"}, level=2)["a.py"].applied
    result = run({"a.py": "import keras\nf(0)\n"}, level=1)["a.py"]
    assert not result.applied and "-O2" in result.refused[0].hint


def test_levels_and_selection(only) -> None:  # type: ignore[no-untyped-def]
    only(
        making("low", lambda c: [SetKeyword(c, "a", "1")] if not c.keywords else []),
        making(
            "high", lambda c: [SetKeyword(c, "b", "1")] if not any(k.arg == "b" for k in c.keywords) else [], level=3
        ),
    )
    text = {"a.py": "import keras\nf(0)\n"}
    assert [a.codemod for a in run(text, level=2)["a.py"].applied] == ["low"]
    assert [a.codemod for a in run(text, level=3)["a.py"].applied] == ["low", "high"]
    assert [a.codemod for a in run(text, level=1, select="high")["a.py"].applied] == ["high"]


def test_an_argument_that_shares_its_line_is_not_spread(only) -> None:  # type: ignore[no-untyped-def]
    def more(call: ast.Call) -> list[Edit]:
        return [] if call.keywords else [SetKeyword(call, "a", "'" + 94 * "a" + "'")]

    only(making("name", more))
    for before, shared in (
        ("g(f(0), c=1,\n  d=2)\n", True),
        ("g(c=1, e=f(0),\n  d=2)\n", True),
        ("g(\n  f(0),\n  d=2)\n", False),
    ):
        after = run({"a.py": "import keras\n" + before})["a.py"].after.decode()
        assert ("f(0, a=" in after) == shared, after


def test_imports_are_spelled_as_the_file_has_them(only) -> None:  # type: ignore[no-untyped-def]
    only(making("name", lambda c: [SetKeyword(c, "a", "{tensorflow.data.AUTOTUNE}")] if not c.keywords else []))

    def spelled(text: str) -> str:
        return run({"a.py": text})["a.py"].after.decode()

    assert spelled("import tensorflow as tf\nf(0)\n").endswith("f(0, a=tf.data.AUTOTUNE)\n")
    assert spelled("import tensorflow as T\nf(0)\n").endswith("f(0, a=T.data.AUTOTUNE)\n")
    assert spelled("from tensorflow import data as d\nf(0)\n").endswith("f(0, a=d.AUTOTUNE)\n")
    assert spelled("from tensorflow.data import AUTOTUNE\nf(0)\n").endswith("f(0, a=AUTOTUNE)\n")
    assert spelled("import tensorflow as tf\nA = tf.data.experimental.AUTOTUNE\nf(0)\n").endswith("f(0, a=A)\n")
    assert spelled("import tensorflow as tf\nf(0)\nA = tf.data.AUTOTUNE\n").endswith(
        "f(0, a=tf.data.AUTOTUNE)\nA = tf.data.AUTOTUNE\n"
    )
    assert spelled("import keras\nf(0)\n") == "import keras\nimport tensorflow as tf\nf(0, a=tf.data.AUTOTUNE)\n"
    assert spelled("from tensorflow import keras\ntf = 3\nf(tf)\n").startswith(
        "from tensorflow import keras\nimport tensorflow as _tf\ntf = 3\n"
    )
    again = "from tensorflow import data\nf(0)\nfrom tensorflow import data\n"  # as notebooks do
    assert spelled(again) == again.replace("f(0)", "f(0, a=data.AUTOTUNE)")
    assert spelled("import keras\nf(0)\nimport tensorflow as tf\n") == (
        "import keras\nimport tensorflow as tf\nf(0, a=tf.data.AUTOTUNE)\nimport tensorflow as tf\n"
    )
    assert spelled("import keras\ntf = None\nf(0)\nimport tensorflow as tf\n").startswith(
        "import keras\nimport tensorflow as _tf\n"
    )
    assert spelled("import tensorflow as tf\ndef g(tf):\n    return f(tf)\n").startswith(
        "import tensorflow as tf\nimport tensorflow as _tf\n"
    )
    assert spelled("def g():\n    import tensorflow as tf\n    return f(0)\n").endswith(
        "    import tensorflow as tf\n    return f(0, a=tf.data.AUTOTUNE)\n"
    )
    assert spelled("try:\n    import tensorflow as tf\nexcept ImportError:\n    tf = None\nf(0)\n").endswith(
        "f(0, a=tf.data.AUTOTUNE)\n"
    )
    assert spelled("try:\n    import keras\nexcept ImportError:\n    keras = None\nf(0)\n").endswith(
        "    keras = None\nimport tensorflow as tf\nf(0, a=tf.data.AUTOTUNE)\n"
    )
    assert spelled(
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        "    import tensorflow as tf\nf(0)\n"
    ).startswith("from __future__ import annotations\nfrom typing import TYPE_CHECKING\nimport tensorflow as ")
    assert spelled("from tensorflow import *\nf(0)\n") == (
        "from tensorflow import *\nimport tensorflow as tf\nf(0, a=tf.data.AUTOTUNE)\n"
    )


def test_deleting_and_refusing(only) -> None:  # type: ignore[no-untyped-def]
    def gone(script: Script) -> Iterator[Finding]:
        for call in calls(script, "f"):
            yield Fix(call, "gone", [Delete(script.statement(call))])
        for call in calls(script, "g"):
            yield Refusal(call, "not this one", "by hand")

    only(codemod(level=1, phase="input")(gone))
    result = run({"a.py": "import keras\nf(0)\ng(1)\n"})["a.py"]
    assert result.after == b"import keras\ng(1)\n"
    assert [(r.line, r.column, r.reason, r.hint) for r in result.refused] == [(3, 1, "not this one", "by hand")]


def test_what_a_later_round_does_is_reported_in_the_original(only) -> None:  # type: ignore[no-untyped-def]
    """`one` inserts lines above; `two` has to wait, and finds its call further down."""

    def one(script: Script) -> Iterator[Finding]:
        for call in calls(script, "f"):
            if not call.keywords:
                before = Insert(script.statement(call), "a = 1\nb = 2", after=False)
                yield Fix(call, "one", [before, SetKeyword(call, "a", "1")])

    def two(script: Script) -> Iterator[Finding]:
        for call in calls(script, "f"):
            if all(k.arg != "b" for k in call.keywords):
                yield Fix(call, "two", [SetKeyword(call, "a", "2"), SetKeyword(call, "b", "2")])

    only(codemod(level=1, phase="input")(one), codemod(level=1, phase="input")(two))
    result = run({"a.py": "import keras\nx = 0\ny = f(0)\nz = 0\n"})["a.py"]
    assert result.after == b"import keras\nx = 0\na = 1\nb = 2\ny = f(0, a=2, b=2)\nz = 0\n"
    assert [(a.message, a.line, a.column) for a in result.applied] == [("one", 3, 5), ("two", 3, 5)]
    first, second = of_result(result).applied
    assert first.before == second.before == "y = f(0)\n"
    assert first.after == second.after == "a = 1\nb = 2\ny = f(0, a=2, b=2)\n"


def test_a_fix_of_what_another_fix_wrote_has_snippets_too(only) -> None:  # type: ignore[no-untyped-def]
    def one(script: Script) -> Iterator[Finding]:
        if not calls(script, "f"):
            yield Fix(script.tree.body[0], "one", [Insert(script.tree.body[0], "f(0)")])

    two = making("two", lambda c: [SetKeyword(c, "a", "1")] if not c.keywords else [])
    only(codemod(level=1, phase="input")(one), two)
    result = run({"a.py": "import keras\nx = 0\n"})["a.py"]
    snippets = [(a.message, a.line, a.before, a.after) for a in of_result(result).applied]
    assert snippets == [("one", 1, "", "f(0, a=1)\n"), ("message", 1, "", "f(0, a=1)\n")]


def test_an_added_import_is_among_the_lines_of_its_fix(only) -> None:  # type: ignore[no-untyped-def]
    only(making("auto", lambda c: [SetKeyword(c, "a", "{tensorflow.data.AUTOTUNE}")] if not c.keywords else []))
    (change,) = of_result(run({"a.py": "import keras\nx = 0\ny = 0\nf(0)\n"})["a.py"]).applied
    assert change.before == "...\nf(0)\n"
    assert change.after == "import tensorflow as tf\n...\nf(0, a=tf.data.AUTOTUNE)\n"


def test_places_in_reasons(only, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The line where it stands in this file, none where the refusal is on that line itself, else with its file."""

    def why(script: Script) -> Iterator[Finding]:
        for call in calls(script, "g"):
            other = script.project.resolve(script, "data.batches")
            assert other is not None
            for there, place in ((script, call), (script, script.tree.body[0]), (other[0], other[0].tree.body[1])):
                yield Refusal(call, f"because of it ({there.at(place)})")
            yield Refusal(other[0].tree.body[1], "this as well")
            if not call.keywords:
                yield Fix(call, f"fixed ({script.at(script.tree.body[1])})", [SetKeyword(call, "a", "1")])

    only(codemod(level=1, phase="input")(why))
    text = "import keras\nfrom data import batches\ng(1)\n"
    (result,) = run({"train.py": text, "data.py": DATA}, ["train.py"], tmp_path).values()
    assert [a.message for a in result.applied] == ["fixed (line 2)"]
    assert [(r.line, r.reason) for r in result.refused] == [
        (3, "because of it"),
        (3, "because of it (line 1)"),
        (3, "because of it (data.py:2)"),
        (2, "this as well (data.py:2)"),
    ]
