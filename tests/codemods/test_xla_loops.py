"""`xla` in training steps that a script writes by hand."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from rewriter.engine import Options, Result, rewrite
from rewriter.target import named
from tests.check import Check
from tests.envs import run_script, tf_env

check = Check("xla", level=2)
TARGETS = {"tf215": "tf2.15", "tf221": "tf2.21"}

HEAD = """
import numpy as np
import tensorflow as tf
tf.keras.utils.set_random_seed(1)
x = np.random.rand(40, 4).astype("float32")
y = x @ np.float32([[1], [2], [3], [4]])
losses = []
"""
DATA = "data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)\n"
MODEL = """
model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu", input_shape=(4,)), tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.05)
"""
BODY = """def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
    grads = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss
"""
LOOP = """for epoch in range(3):
    for xb, yb in data:
        losses.append(float(step(xb, yb)))
"""

#: `>>...<<` is what is added.
FIXED = {
    "a decorator": DATA + MODEL + "@tf.function>>(jit_compile=True)<<\n" + BODY + LOOP,
    "a decorator that is called": DATA + MODEL + "@tf.function(>>jit_compile=True<<)\n" + BODY + LOOP,
    "a signature": DATA
    + MODEL
    + "@tf.function(input_signature=[tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])]>>, jit_compile=True<<)\n"
    + BODY
    + LOOP,
    "a call": DATA + MODEL + BODY + "fast = tf.function(step>>, jit_compile=True<<)\n" + LOOP.replace("step(", "fast("),
    "a call that keeps the name": DATA + MODEL + BODY + "step = tf.function(step>>, jit_compile=True<<)\n" + LOOP,
    "below another decorator": DATA
    + MODEL
    + "import functools\n@functools.partial(tf.function, autograph=False>>, jit_compile=True<<)\n"
    + BODY
    + LOOP,
    "a helper with its own": DATA
    + MODEL
    + "@tf.function\ndef error(a, b):\n    return tf.square(a - b)\n@tf.function>>(jit_compile=True)<<\n"
    + BODY.replace("tf.square(model(x, training=True) - y)", "error(model(x, training=True), y)")
    + LOOP,
    "an epoch around it that is a graph": DATA
    + MODEL
    + "@tf.function>>(jit_compile=True)<<\n"
    + BODY
    + """@tf.function
def epoch():
    total = 0.0
    for xb, yb in data:
        total += step(xb, yb)
    return total
for _ in range(3):
    losses.append(float(epoch()))
""",
    "metrics and a loss object": DATA
    + MODEL
    + """mse = tf.keras.losses.MeanSquaredError()
metric = tf.keras.metrics.Mean()
@tf.function>>(jit_compile=True)<<
def step(x, y):
    with tf.GradientTape() as tape:
        loss = mse(y, model(x, training=True))
    grads = tape.gradient(loss, model.trainable_variables)
    grads, _ = tf.clip_by_global_norm(grads, 1.0)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    metric.update_state(loss)
    return loss
"""
    + LOOP,
    "a method": DATA
    + MODEL
    + """class Trainer:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
    @tf.function>>(jit_compile=True)<<
    def step(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x, training=True) - y))
        grads = tape.gradient(loss, self.model.trainable_variables)
        self.opt.apply_gradients(zip(grads, self.model.trainable_variables))
        return loss
trainer = Trainer(model, opt)
"""
    + LOOP.replace("step(", "trainer.step("),
    "variables": DATA
    + """w = tf.Variable(tf.zeros([4, 1]))
@tf.function>>(jit_compile=True)<<
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ w - y))
    w.assign_sub(0.05 * tape.gradient(loss, w))
    return loss
"""
    + LOOP,
    "a module": DATA
    + """class Linear(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.zeros([4, 1]))
    def __call__(self, x):
        return tf.matmul(x, self.w)
model = Linear()
@tf.function>>(jit_compile=True)<<
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    grads = tape.gradient(loss, model.trainable_variables)
    for v, g in zip(model.trainable_variables, grads):
        v.assign_sub(0.05 * g)
    return loss
"""
    + LOOP,
    "an iterator": DATA
    + MODEL
    + "@tf.function>>(jit_compile=True)<<\n"
    + BODY
    + """it = iter(data.repeat())
for i in range(6):
    xb, yb = next(it)
    losses.append(float(step(xb, yb)))
""",
    "slices": MODEL
    + "@tf.function>>(jit_compile=True)<<\n"
    + BODY
    + """for i in range(0, 40, 10):
    losses.append(float(step(tf.constant(x[i : i + 10]), tf.constant(y[i : i + 10]))))
""",
    "random rows": MODEL
    + "@tf.function>>(jit_compile=True)<<\n"
    + BODY
    + """for _ in range(4):
    rows = np.random.randint(0, 40, size=10)
    losses.append(float(step(tf.constant(x[rows]), tf.constant(y[rows]))))
""",
    "all of the data": MODEL
    + "@tf.function>>(jit_compile=True)<<\n"
    + BODY
    + """for _ in range(4):
    losses.append(float(step(x, y)))
""",
    "a loop in a function": DATA
    + MODEL
    + "@tf.function>>(jit_compile=True)<<\n"
    + BODY
    + """def fit(batches, epochs):
    for epoch in range(epochs):
        for number, (xb, yb) in enumerate(batches, 1):
            losses.append(float(step(xb, yb)))
fit(data, 3)
""",
}


def before(body: str) -> str:
    return HEAD + re.sub(r">>.*?<<", "", body)


def after(body: str) -> str:
    return HEAD + body.replace(">>", "").replace("<<", "")


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("target", ["tf2.15", "tf2.21"])
def test_compiles(name: str, target: str) -> None:
    wanted = after(FIXED[name])
    if name == "all of the data":
        result = check.fixes(before(FIXED[name]), wanted, target=target)
        assert result.applied[0].message == "the training step is compiled with XLA; a smaller last batch, " \
            "where there is one, is compiled once more"  # fmt: skip
    else:
        check.fixes(before(FIXED[name]), wanted, target=target)


def test_before_2_5_the_argument_has_another_name() -> None:
    wanted = after(FIXED["a decorator"]).replace("jit_compile", "experimental_compile")
    check.fixes(before(FIXED["a decorator"]), wanted, target="tf2.4")


@pytest.mark.parametrize("given", ["jit_compile=False", "jit_compile=True", "experimental_compile=False"])
def test_leaves_alone_what_is_decided(given: str) -> None:
    check.ignores(HEAD + DATA + MODEL + f"@tf.function({given})\n" + BODY + LOOP)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("reduce_retracing=True", "says that shapes vary"),
        ("experimental_relax_shapes=True", "says that shapes vary"),
        ("**options", "cannot all be seen"),
        (
            "input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None, 1])]",
            "leaves a dimension open",
        ),
    ],
)
def test_refuses_options_of_the_function(given: str, reason: str) -> None:
    check.refuses(HEAD + DATA + MODEL + f"@tf.function({given})\n" + BODY + LOOP, reason)


def with_line(line: str, **changes: str) -> str:
    body = BODY.replace("    return loss\n", f"    {line}\n    return loss\n")
    return HEAD + DATA + MODEL + "@tf.function\n" + body + LOOP


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("tf.print(loss)", "`tf.print` (line 17) prints, which XLA cannot compile"),
        ("tf.summary.scalar('loss', loss, 0)", "writes summaries"),
        ("tf.py_function(print, [loss], [])", "runs Python code"),
        ("tf.numpy_function(np.mean, [x], tf.float32)", "runs Python code"),
        ("tf.strings.as_string(loss)", "works on strings"),
        ("tf.debugging.assert_all_finite(loss, 'bad')", "leaves out the check"),
        ("tf.io.write_file('loss', 'x')", "files"),
        ("unheard_of(loss)", "is not known"),
    ],
)
def test_refuses_what_does_not_compile(line: str, reason: str) -> None:
    check.refuses(with_line(line), reason)


TABLE = "tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0], [1.0]), 0.0)"


@pytest.mark.parametrize(
    ("made", "line", "reason"),
    [
        (TABLE, "kept.lookup(tf.cast(y, tf.int32))", "looks up a table"),
        (TABLE, "kept[tf.cast(y, tf.int32)]", "looks up a table"),
        ("tf.queue.FIFOQueue(3, [tf.float32])", "kept.enqueue(loss)", "uses a queue"),
    ],
)
def test_refuses_methods_of_what_does_not_compile(made: str, line: str, reason: str) -> None:
    source = with_line(line)
    check.refuses(source.replace(MODEL, MODEL + f"kept = {made}\n"), reason)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("tf.keras.layers.Dense(1)", "tf.keras.layers.UpSampling2D(2)", "has no XLA kernel"),
        ("tf.keras.layers.Dense(8,", "tf.keras.layers.LSTM(8), tf.keras.layers.Dense(8,", "fused GPU kernel"),
        ("tf.keras.layers.Dense(8,", "tf.keras.layers.StringLookup(), tf.keras.layers.Dense(8,", "StringLookup"),
        ("input_shape=(4,)", "input_shape=(None, 4)", "varies"),
        ("tf.keras.optimizers.SGD(0.05)", "lib.Sophia(0.05)", "is not known"),
        (".batch(16)", ".padded_batch(16)", "varying shape"),
        ("tf.data.Dataset.from_tensor_slices((x, y))", "lib.load(x, y)", "are not seen"),
    ],
)
def test_refuses_models_and_data(old: str, new: str, reason: str) -> None:
    source = HEAD + "import lib\n" + DATA + MODEL + "@tf.function\n" + BODY + LOOP
    assert old in source
    check.refuses(source.replace(old, new), reason)


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        (
            "rows = []\nfor r in x:\n    rows.append(r)\n    step(np.array(rows), y)\n",
            "always has one shape is not seen",
        ),
        ("for n in range(1, 9):\n    step(x[:4], n)\n", "a Python number that changes"),
        ("for n in range(3):\n    step(x[x[:, 0] > 0.5], y)\n", "always has one shape is not seen"),
        ("import lib\nfor a, b in lib.batches():\n    step(a, b)\n", "are not seen"),
        ("step = lib.wrap(step)\n", "are not seen"),
    ],
)
def test_refuses_batches_whose_shapes_are_not_seen(loop: str, reason: str) -> None:
    check.refuses(HEAD + MODEL + "@tf.function\n" + BODY + loop, reason)


def test_refuses_a_loop_over_data_inside_the_graph() -> None:
    source = (
        HEAD
        + DATA
        + MODEL
        + """
@tf.function
def epoch():
    for x, y in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))
for _ in range(3):
    epoch()
"""
    )
    check.refuses(source, "a loop over a dataset runs inside the step")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("strategy = tf.distribute.MirroredStrategy()", "does not mix with a compiled step"),
        ("import horovod.tensorflow as hvd", "Horovod"),
        ("tf.config.run_functions_eagerly(True)", "may switch graphs off"),
        ("tf.debugging.enable_check_numerics()", "watches every operation"),
    ],
)
def test_refuses_whole_programs(line: str, reason: str) -> None:
    check.refuses(HEAD + line + "\n" + DATA + MODEL + "@tf.function\n" + BODY + LOOP, reason)


@pytest.mark.parametrize(
    "made", ["tf.Variable(0)", "tf.Variable(0.0, dtype=tf.int64)", "tf.Variable(0, trainable=False)"]
)
def test_refuses_integer_variables(made: str) -> None:
    check.refuses(f"\nimport tensorflow as tf\nseen = {made}" + with_line("seen.assign_add(1)"), "holds integers")
    assert check.run("\nimport tensorflow as tf\nseen = tf.Variable(0.0)" + with_line("seen.assign_add(1.0)")).applied


def test_an_eager_step_is_no_graph() -> None:
    check.refuses(HEAD + DATA + MODEL + BODY + LOOP, "runs eagerly")


def together(source: str, target: str, *, level: int = 2, select: frozenset[str] | None = None) -> Result:
    path = Path("/nowhere/train.py")
    goal = named(target)
    options = Options(level, select or frozenset({"tf-function", "xla"}))
    with patch("rewriter.folding.WIDTH", 300):
        (result,) = rewrite([path], options, lambda _: goal, {path: textwrap.dedent(source).encode()})
    assert result.error is None, result.error
    return result


@pytest.mark.parametrize("target", ["tf2.15", "tf2.21"])
def test_an_eager_step_becomes_a_compiled_graph(target: str) -> None:
    result = together(HEAD + DATA + MODEL + BODY + LOOP, target)
    assert "@tf.function(jit_compile=True)\ndef step(x, y):" in result.after.decode()
    assert {a.codemod for a in result.applied} == {"tf-function", "xla"}


def test_why_an_eager_step_is_a_graph_but_not_compiled() -> None:
    source = HEAD + DATA.replace(".batch", ".padded_batch") + MODEL + BODY + LOOP
    result = together(source, "tf2.15")
    assert "@tf.function(reduce_retracing=True)\ndef step" in result.after.decode()
    assert any(r.codemod == "xla" and "varying shape" in r.reason for r in result.refused)


@pytest.mark.parametrize("target", ["tf2.15", "tf2.21"])
def test_a_cpu_is_asked_for(target: str) -> None:
    source = before(FIXED["a decorator"])
    path = Path("/nowhere/train.py")
    goal = replace(named(target), cpu=True)
    for select, wanted in ((None, False), (frozenset({"xla"}), True)):
        (result,) = rewrite([path], Options(2, select), lambda _: goal, {path: source.encode()})
        assert ("@tf.function(jit_compile=True)" in result.after.decode()) is wanted
        if not wanted:
            assert any(r.codemod == "xla" and "CPU" in r.reason for r in result.refused)


# -- real training -------------------------------------------------------------------------------------------

RUN = """
import json, runpy, sys
import tensorflow as tf
for name in json.loads(sys.argv[1]):
    found = []
    for when in ("before", "after"):
        tf.keras.backend.clear_session()
        tf.keras.mixed_precision.set_global_policy("float32")
        found.append([float(x) for x in runpy.run_path(f"{when} {name}.py")["losses"]])
    print("RESULT", json.dumps([name, *found]))
"""
BOTH = frozenset({"tf-function", "xla", "mixed-precision"})


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("env", TARGETS)
def test_trains_as_before(env: str, tmp_path: Path) -> None:
    scripts = {name: (before(body), check.run(before(body), target=TARGETS[env])) for name, body in FIXED.items()}
    for name in ("a decorator", "metrics and a loss object", "a method"):  # all three optimizations in one step
        eager = before(re.sub(r" *@tf.function.*\n", "", FIXED[name]))
        result = together(eager, TARGETS[env], select=BOTH)
        assert {a.codemod for a in result.applied} == BOTH, result.refused
        assert "LossScaleOptimizer" in result.after.decode()
        scripts[f"float16 and {name}"] = eager, result
    for name, (original, result) in scripts.items():
        (tmp_path / f"before {name}.py").write_text(original)
        (tmp_path / f"after {name}.py").write_bytes(result.after)
    (tmp_path / "run.py").write_text(RUN)
    done = run_script(tf_env(env), tmp_path / "run.py", json.dumps(list(scripts)), timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(x.removeprefix("RESULT")) for x in done.stdout.splitlines() if x.startswith("RESULT")]
    assert [name for name, *_ in found] == list(scripts)
    for name, first, second in found:
        told = f"{name}: {first} became {second}"
        if name.startswith("float16"):  # steps whose scaled loss overflows are skipped at first
            assert second[-1] == pytest.approx(first[-1], rel=0.3, abs=0.2), told
        else:
            assert second == pytest.approx(first, rel=1e-4, abs=1e-6), told
