"""The hand-written steps that are found in a script, and what is said about them."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from rewriter.engine import Options
from rewriter.loops.batches import array_dtype, given, varies
from rewriter.loops.lifting import Lift
from rewriter.loops.order import runs_before
from rewriter.loops.steps import LOOPS, Step, loops_around, steps
from rewriter.script import Project, Script
from rewriter.source import parse
from rewriter.target import named

HEAD = """
import numpy as np
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)
acc = tf.keras.metrics.Mean()
ds = tf.data.Dataset.from_tensor_slices((tf.ones((8, 3)), tf.ones((8, 1)))).batch(2)
"""


def read(text: str) -> Script:
    source = parse(textwrap.dedent(text).lstrip("\n").encode(), Path("/nowhere/train.py"))
    return Project(lambda _: named("tf2.15"), Options()).add(source)


def found(text: str) -> list[Step]:
    return steps(read(HEAD + textwrap.dedent(text)))


STEP = """
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    acc.update_state(loss)
    return loss
"""
LOOP = "for epoch in range(2):\n    for x, y in ds:\n        step(x, y)\n"


def test_function() -> None:
    (step,) = found(STEP + LOOP)
    assert step.role == "train" and not step.inline and not step.compiled and not step.override
    assert step.function is not None and step.function.name == "step" and step.node is step.function
    assert [t.name for t in step.tapes] == ["tape"] and not step.tapes[0].persistent
    assert len(step.tapes[0].gradients) == len(step.updates) == 1
    assert [v.keras for v in step.models] == ["models.Sequential"]
    assert [v.keras for v in step.optimizers] == ["optimizers.SGD"]
    assert [v.keras for v in step.metrics] == ["metrics.Mean"]
    (site,) = step.sites
    assert [ast.unparse(loop.target) for loop in site.loops if isinstance(loop, ast.For)] == ["(x, y)", "epoch"]


def test_inline() -> None:
    (step,) = found("""
        for epoch in range(2):
            for x, y in ds:
                x = x * 2.0
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x) - y) ** 2)
                grads = tape.gradient(loss, model.trainable_variables)
                opt.apply_gradients(zip(grads, model.trainable_variables))
                print(loss)
        """)
    assert step.inline and step.function is None and len(step.statements) == 3 and len(step.loops) == 2
    assert isinstance(step.statements[0], ast.With) and isinstance(step.statements[-1], ast.Expr)


def test_tapes_of_a_gan() -> None:
    (step,) = found("""
        def step(x):
            with tf.GradientTape() as a, tf.GradientTape(persistent=True) as b:
                p, q = model(x), model(-x)
            opt.apply_gradients(zip(a.gradient(p, model.trainable_variables), model.trainable_variables))
            opt.apply_gradients(zip(b.gradient(q, model.trainable_variables), model.trainable_variables))
        for x, y in ds:
            step(x)
        """)
    assert [(t.name, t.persistent) for t in step.tapes] == [("a", False), ("b", True)] and len(step.updates) == 2


def test_nested_tapes_are_one_step() -> None:
    (step,) = found("""
        def step(x, y):
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    out = model(x)
                loss = tf.reduce_sum(inner.gradient(out, x) ** 2)
            opt.apply_gradients(zip(outer.gradient(loss, model.trainable_variables), model.trainable_variables))
        for x, y in ds:
            step(x, y)
        """)
    assert len(step.tapes) == 2 and len(step.updates) == 1


@pytest.mark.parametrize(
    "update",
    [
        "for v, g in zip(w, tape.gradient(loss, w)):\n            v.assign_sub(0.1 * g)",
        "w[0].assign(w[0] - 0.1 * tape.gradient(loss, w)[0])",
        "opt.apply(tape.gradient(loss, w), w)",
    ],
)
def test_updates(update: str) -> None:
    (step,) = found(f"""
    w = [tf.Variable(1.0)]
    def step():
        with tf.GradientTape() as tape:
            loss = w[0] ** 2
        {update}
    for i in range(3):
        step()
    """)
    assert not step.inline and len(step.updates) == 1


def test_minimize() -> None:
    assert len(found("for i in range(3):\n    opt.minimize(lambda: tf.reduce_sum(model(x)), [w])\n")) == 1
    assert not found("for i in range(3):\n    opt.minimize(loss)\n")  # TensorFlow 1


def test_gradients_from_a_helper() -> None:
    (step,) = found("""
        def grad(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            return loss, tape.gradient(loss, model.trainable_variables)
        for x, y in ds:
            loss, grads = grad(x, y)
            opt.apply_gradients(zip(grads, model.trainable_variables))
        """)
    assert step.inline and not step.tapes and len(step.helpers) == 1 and len(step.statements) == 2
    assert [v.keras for v in step.models] == ["models.Sequential"]


def test_tape_without_update_is_no_step() -> None:
    assert not found("""
        def saliency(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = model(x)
            return tape.gradient(y, x)
        for x, y in ds:
            saliency(x)
        """)


def test_few_rounds_belong_to_the_step() -> None:
    text = """
        def step(x, y):
            for _ in range({}):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x) - y) ** 2)
                opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        for x, y in ds:
            step(x, y)
        """
    assert [s.inline for s in found(text.format(5))] == [False]
    assert [s.inline for s in found(text.format(5000))] == [True]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("@tf.function\n" + STEP.lstrip("\n") + LOOP, "`@tf.function`"),
        ("@tf.function(jit_compile=True)\n" + STEP.lstrip("\n") + LOOP, "`@tf.function(jit_compile=True)`"),
        (STEP + "fast = tf.function(step)\n", "`tf.function(step)`"),
        (STEP + "@tf.function\ndef outer(x, y):\n    step(x, y)\n", "of `outer`"),
        (STEP + LOOP, ""),
        (STEP + LOOP + "fast = tf.function(step)\n", ""),
    ],
)
def test_compiled(source: str, told: str) -> None:
    (step,) = found(source)
    assert told in step.compiled and bool(told) == bool(step.compiled)


def test_override() -> None:
    (step,) = found("""
        class Net(tf.keras.Model):
            def train_step(self, data):
                with tf.GradientTape() as tape:
                    loss = self(data)
                self.optimizer.apply_gradients(zip(tape.gradient(loss, self.weights), self.weights))
        """)
    assert step.override and "Keras" in step.compiled


def test_evaluation() -> None:
    text = "def test_step(x, y):\n    acc.update_state(model(x, training=False) - y)\n"
    assert [s.role for s in found(STEP + text + LOOP + "for x, y in ds:\n    test_step(x, y)\n")] == ["train", "eval"]
    assert [s.role for s in found(STEP + text + LOOP + "test_step(x, y)\n")] == ["train"]


# -- what a loop gives --------------------------------------------------------------------------------------


def kinds_of(text: str) -> list[tuple[str, str]]:
    """Of the argument of `use(...)`."""
    script = read(HEAD + textwrap.dedent(text))
    call = next(c for c in script.calls if isinstance(c.func, ast.Name) and c.func.id == "use")
    return [(g.kind, g.dtype) for g in given(script, call.args[0])]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("for x, y in ds:\n    use(y)", ("tensor", "")),
        ("for i, (x, y) in enumerate(ds):\n    use(i)", ("int", "")),
        ("for i, (x, y) in enumerate(ds):\n    use(y)", ("tensor", "")),
        ("for b in ds:\n    use(b)", ("tensor", "")),
        ("for b in ds:\n    x, y = b\n    use(y)", ("tensor", "")),
        ("for b in ds:\n    use(b['image'])", ("tensor", "")),
        ("for x in tqdm(enumerate(ds)):\n    use(x)", ("unknown", "")),
        ("for x, y in ds.as_numpy_iterator():\n    use(y)", ("array", "")),
        ("it = iter(ds)\nx, y = next(it)\nuse(x)", ("tensor", "")),
        ("x, y = next(iter(ds))\nuse(x)", ("tensor", "")),
        ("use(tf.ones(3))", ("tensor", "")),
        ("a = np.zeros((8, 3), np.float32)\nuse(a[2:4])", ("array", "float32")),
        ("a = np.random.rand(8, 3)\nuse(a[2:4])", ("array", "float64")),
        ("a = np.random.rand(8, 3).astype('float32')\nuse(a[2:4] / 2)", ("array", "float32")),
        ("(a, b), _ = tf.keras.datasets.mnist.load_data()\na = a / 255.0\nuse(a[:8])", ("array", "float64")),
        ("(a, b), _ = tf.keras.datasets.mnist.load_data()\nuse(b[:8])", ("array", "int")),
        (
            "class B:\n    def __init__(self, a):\n        self.a = a\n    def next(self):\n        part = self.a[:8]\n"
            "        return part, 1\na = np.random.rand(9, 3).astype('float32') / 2.0\nb = B(a)\nx, y = b.next()\nuse(x)",
            ("array", "float32"),
        ),
        ("use(3)", ("constant", "")),
        ("for i in range(9):\n    use(0.1 * i)", ("float", "")),
        ("for i in range(9):\n    use(i / 9)", ("float", "")),
        ("for i in range(9):\n    use(i + 1)", ("int", "")),
        ("use(model)", ("object", "")),
        ("use([tf.ones(3), tf.ones(2)])", ("list", "")),
        ("use(unseen())", ("unknown", "")),
        ("for x, y in unseen():\n    use(x)", ("array", "")),
        ("def f(data):\n    for x, y in data:\n        use(x)\nf(ds)", ("tensor", "")),
        ("def f():\n    for i in range(3):\n        yield tf.ones(3), i\nfor a, b in f():\n    use(a)", ("tensor", "")),
    ],
)
def test_given(source: str, kind: tuple[str, str]) -> None:
    assert kinds_of(source) == [kind]


def test_numbers_that_change() -> None:
    assert {k for k, _ in kinds_of("r = 1.0\nfor i in range(3):\n    use(r)\n    r *= 0.9")} == {"constant", "float"}
    assert {k for k, _ in kinds_of("r = 1.0\nfor i in range(3):\n    use(r)\n    r = r * 0.9")} == {"constant", "float"}
    assert {k for k, _ in kinds_of("n = 0\nfor i in range(3):\n    use(n)\n    n += 1")} == {"constant", "int"}


def test_shapes_that_vary() -> None:
    script = read(HEAD + "for x, y in ds.unbatch().padded_batch(4):\n    use(x)\nfor x, y in ds:\n    keep(x)\n")
    calls = {c.func.id: c.args[0] for c in script.calls if isinstance(c.func, ast.Name) and c.args}
    assert varies(script, calls["use"]) == "`padded_batch`" and not varies(script, calls["keep"])


def test_dtype_is_open_where_it_is_not_seen() -> None:
    script = read("import numpy as np\na = np.load('x.npy')\n")
    assert array_dtype(script, script.tree.body[1].value) == ""  # type: ignore[attr-defined]


# -- what runs before what ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "before"),
    [
        ("here()\nfor i in r:\n    first()", True),
        ("for i in r:\n    first()\nhere()", False),
        ("for i in r:\n    here()\n    first()", False),
        ("def f():\n    here()\nf()\nfor i in r:\n    first()", True),
        ("def f():\n    here()\nfor i in r:\n    first()\n    f()", False),
        ("def f():\n    here()\nfor i in r:\n    first()", False),
        ("def main():\n    for i in r:\n        first()\nhere()\nmain()", True),
        ("def main():\n    for i in r:\n        first()\nmain()\nhere()", False),
        ("here()\ndef library():\n    first()", True),
        ("def a():\n    here()\ndef b():\n    first()", False),
        ("def main():\n    here()\n    first()\nrun(main)", True),
        ("class C:\n    def __init__(self):\n        here()\nc = C()\nfor i in r:\n    first()", True),
    ],
)
def test_runs_before(source: str, before: bool) -> None:
    script = read(source)
    calls = {c.func.id: c for c in script.calls if isinstance(c.func, ast.Name)}
    assert runs_before(script, calls["here"], (script, calls["first"])) is before


def test_loops_that_make_it_anew_do_not_count() -> None:
    script = read("for i in r:\n    here()\n    for j in r:\n        first()")
    calls = {c.func.id: c for c in script.calls if isinstance(c.func, ast.Name)}
    loop = script.tree.body[0]
    assert not runs_before(script, calls["here"], (script, calls["first"]))
    assert runs_before(script, calls["here"], (script, calls["first"]), [loop])


# -- moving statements --------------------------------------------------------------------------------------


def lifted(text: str, first: str, last: str) -> Lift:
    """The statements of the innermost loop from the one that holds `first` to the one that holds `last`."""
    script = read(text)
    block = next(
        n
        for n in ast.walk(script.tree)
        if isinstance(n, LOOPS)
        and any(first in ast.unparse(s) for s in n.body)
        and not any(isinstance(s, LOOPS) and first in ast.unparse(s) for s in n.body)
    ).body
    at = (
        next(i for i, s in enumerate(block) if first in ast.unparse(s)),
        [i for i, s in enumerate(block) if last in ast.unparse(s)][-1],
    )
    statements = block[at[0] : at[1] + 1]
    return Lift(script, statements, loops_around(script, statements[0])[-1])


def test_inputs_and_outputs() -> None:
    lift = lifted(
        """
        k = 3
        for e in range(3):
            r = e * 2
            for x, y in ds:
                z = f(x, y, r, k)
                w = z + 1
                print(w)
        """,
        "z =",
        "w =",
    )
    assert list(lift.inputs) == ["x", "y", "r"] and lift.outputs == ["w"]
    assert lift.call("step", {"r": "tf.constant(r)"}) == "w = step(x, y, tf.constant(r))"
    assert lift.function("step", "@d") == "@d\ndef step(x, y, r):\n    z = f(x, y, r, k)\n    w = z + 1\n    return w"


def test_carried_names_go_in_and_come_out() -> None:
    lift = lifted("h = init()\nfor x in ds:\n    y = f(x, h)\n    h = g(y)\n", "y =", "h =")
    assert list(lift.inputs) == ["x", "h"] and lift.outputs == ["h"]


def test_names_that_are_read_after_the_loop() -> None:
    assert lifted("for x in ds:\n    y = f(x)\n    z = g(y)\nprint(y)\n", "y =", "z =").outputs == ["y"]


def test_names_that_another_function_reads() -> None:
    lift = lifted("def show():\n    print(y)\nfor x in ds:\n    y = f(x)\n    show()\n", "y =", "y =")
    assert lift.outputs == ["y"]


def test_comprehensions_keep_their_names() -> None:
    lift = lifted("for x in ds:\n    y = [g * 2 for g in f(x)]\n    z = [g for g in y]\n", "y =", "z =")
    assert list(lift.inputs) == ["x"] and lift.outputs == []


def test_name_that_is_given_again_under_a_condition() -> None:
    lift = lifted("for x in ds:\n    a = 1\n    if c:\n        x = f(x)\n    y = g(x)\n    print(y)\n", "if c", "y =")
    assert "x" in lift.inputs and lift.outputs == ["y"]


@pytest.mark.parametrize(
    ("line", "obstacle"),
    [
        ("y = f(x); z = 1", "within a line"),
        ("y = '''a\n  b'''", "several lines"),
        ("y = f(x) + \\\n        1", "backslash"),
    ],
)
def test_lines_that_cannot_be_moved(line: str, obstacle: str) -> None:
    lift = lifted(f"for x in ds:\n    {line}\n", "y =", "y =")
    assert obstacle in lift.obstacle


def test_free_name() -> None:
    script = read("step = 1\nprint(other)\n")
    assert script.free_name("step", "other", "third") == "third"
    assert script.free_name("step") == "step_2"
