"""The hazards whose careless rewrite silently trains something else: does `validate` name the regression?

`WRONG` has all of them. Each is rewritten as its header says a careless tool would, and both scripts are run. Those that
train nothing are no case for `validate`, which says so; they stand here a second time with the few lines of training
that their data or types are made for (`trains`), and the regression is named then. What no recorded run can show
`escapes`, and a test sees to it that the reason is still true.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from rewriter.runner.validate import Validation
from tests.test_hazards import SCRIPTS

from .test_validate import failing, judged

pytestmark = pytest.mark.tf

Edits = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Wrong:
    """edits: from the hazard to its careless rewrite. kinds: findings of which one at least must be there.

    steps: no more than these. trains: edits of both scripts that add training. escapes: with which verdict, and why.
    """

    edits: Edits
    kinds: frozenset[str] = frozenset()
    level: int = 2
    env: str = "tf215"
    ranks: int = 1
    steps: int = 0
    trains: Edits = ()
    verdict: Literal["pass", "not run"] = "pass"
    escapes: str = ""


def kinds(text: str) -> frozenset[str]:
    return frozenset(text.split())


def after(line: str, *more: str) -> tuple[str, str]:
    return line, "\n".join((line, *more))


POLICY = "tf.keras.mixed_precision.set_global_policy('mixed_float16')"
HOROVOD = after("import tensorflow as tf", "import horovod.tensorflow.keras as hvd", "hvd.init()")
NET = "net = tf.keras.Sequential([tf.keras.layers.Dense(1)]); net.compile('sgd', 'mse')"
SHARD = "[hvd.rank()::hvd.size()]"
BROADCAST = "verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])"
DISTRIBUTED_FIT: Edits = (HOROVOD, ("randn(256, 4)", "randn(256, 4)" + SHARD), ("verbose=0)", BROADCAST))

WRONG = {
    "01": Wrong((after("tf.keras.utils.set_random_seed(1)", POLICY),), kinds("nan")),
    "04": Wrong((after("tf.keras.utils.set_random_seed(2)", POLICY),), kinds("nan")),
    "05": Wrong((after("tf.keras.utils.set_random_seed(0)", POLICY),), kinds("underflow")),
    "13": Wrong(
        (after('tf.keras.backend.set_floatx("float64")', POLICY),),
        kinds("precision"),
        trains=(("print(", "net.compile('sgd', 'mse'); net.fit(x, x, epochs=2, verbose=0)\nprint("),),
    ),
    "26": Wrong((("keras.optimizers.Adam(", "keras.optimizers.Lamb("),), kinds("loss stalled"), 3, "tf221"),
    "28": Wrong(
        (("ds.shuffle(n)", "ds.shuffle(n).cache()"),),
        kinds("order-frozen"),
        1,
        trains=(
            (
                "runs = ",
                f"{NET}\nrow = lambda i: (tf.cast(i, tf.float32)[:, None] / 64, tf.ones_like(i)[:, None])\n"
                "net.fit(train.map(row), epochs=3, verbose=0)\nruns = ",
            ),
        ),
    ),
    "31": Wrong(
        ((".map(noisy)", ".map(noisy, num_parallel_calls=tf.data.AUTOTUNE)"),),
        kinds("not-repeatable"),
        1,
        trains=(("print(", f"{NET}\nnet.fit(runs[0][:, None] / 1e4, np.ones(400), verbose=0)\nprint("),),
    ),
    "34": Wrong(
        (
            (
                "tf.data.TextLineDataset(names).skip(1)",
                "tf.data.Dataset.from_tensor_slices(names).interleave(lambda n: tf.data.TextLineDataset(n).skip(1))",
            ),
        ),
        kinds("samples"),
        1,
        trains=(
            (
                "print(",
                f"{NET}\nnumbers = rows.map(lambda row: tf.strings.to_number(row)[None])\n"
                "net.fit(numbers.map(lambda v: (v, v)).batch(5), epochs=2, verbose=0)\nprint(",
            ),
        ),
    ),
    "38": Wrong(
        (
            (
                "fit(x, y, batch_size=20, epochs=12",
                "fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(20), epochs=12",
            ),
        ),
        kinds("order-frozen"),
        1,
    ),
    "40": Wrong(
        (
            (
                "tf.placeholder(tf.float32, [None, 1])",
                "tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(X).batch(4).repeat()).get_next()",
            ),
            ("[step_d, head], feed_dict={x: X[i:i + 4]}", "[step_d, head]"),
            ("head, feed_dict={x: X[i:i + 4]}", "head"),
        ),
        kinds("data"),
        1,
        "tf115",
        trains=(
            (
                "tf.assign_add(w, 0.0 * tf.reduce_sum(x))",
                "tf.train.GradientDescentOptimizer(1e-3).minimize(tf.square(w) * tf.reduce_mean(x))",
            ),
        ),
    ),
    "41": Wrong(
        (
            (
                "tf.placeholder(tf.float32, [None, 2])",
                "tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(trX).batch(8).repeat()).get_next()",
            ),
            ("train, feed_dict={x: trX[i:i + 8]}", "train"),
            ("mean_in, feed_dict={x: teX}", "mean_in"),
        ),
        kinds("validation-data"),
        1,
        "tf115",
    ),
    "46": Wrong((("def train_step", "@tf.function\ndef train_step"),), kinds("schedule"), 1),
    "52": Wrong(
        (("@timed\n", "@tf.function\n@timed\n"),),
        level=1,
        escapes="the training is the same; only a list that the script keeps for itself has fewer entries",
    ),
    "53": Wrong((('loss="mse"', 'loss="mse", steps_per_execution=16'),), kinds("schedule"), 1),
    "55": Wrong((("workers=0", "workers=2, use_multiprocessing=True"),), kinds("data"), 1, steps=17),
    "64": Wrong(
        (
            after("tf.disable_v2_behavior()", "import horovod.tensorflow as hvd", "hvd.init()"),
            ("randn(128, 3)", "randn(128, 3)" + SHARD),
            ("range(0, 128, 16)", "range(0, len(X), 16)"),
            (
                "tf.train.GradientDescentOptimizer(0.05)",
                "hvd.DistributedOptimizer(tf.train.GradientDescentOptimizer(0.05))",
            ),
            after("    sess.run(tf.global_variables_initializer())", "    sess.run(hvd.broadcast_global_variables(0))"),
        ),
        kinds("ranks-diverge"),
        ranks=2,
    ),
    "65": Wrong(
        (
            after("import tensorflow as tf", "import horovod.tensorflow as hvd", "hvd.init()"),
            (
                'astype("float32") + 2',
                f'astype("float32"){SHARD} + 2\nhvd.broadcast_variables(G.variables, root_rank=0)',
            ),
            ("range(0, 64, 8)", "range(0, len(real), 8)"),
            ("d_tape.gradient(", "hvd.DistributedGradientTape(d_tape).gradient("),
            ("real = ", "hvd.broadcast_variables(D.variables, root_rank=0)\nreal = "),
        ),
        kinds("ranks-diverge"),
        ranks=2,
    ),
    "70": Wrong(
        (
            HOROVOD,
            (".shuffle(100)", ".shuffle(100).shard(hvd.size(), hvd.rank())"),
            ("verbose=0)", BROADCAST),
            ("'sgd'", "hvd.DistributedOptimizer(tf.keras.optimizers.SGD())"),
            ("batch(10)", "batch(5)"),
        ),
        kinds("data"),
        ranks=2,
        trains=(
            (
                "everyone = mine",
                f"everyone = mine\n{NET}\nrow = lambda i: (tf.cast(i, tf.float32)[None] / 100, tf.ones([1]))\n"
                "net.fit(ds.map(row).batch(10), verbose=0)",
            ),
        ),
    ),
    "71": Wrong(DISTRIBUTED_FIT, kinds("ranks-diverge"), ranks=2),
    "73": Wrong(DISTRIBUTED_FIT, kinds("ranks-diverge"), ranks=2),
    "77": Wrong(
        (after("import os, tempfile", "from tensorflow.keras import mixed_precision"),),
        kinds("precision"),
        1,
        trains=(("print(", f"{NET}\nnet.fit(tf.ones((32, 3)), tf.ones((32, 1)), verbose=0)\nprint("),),
    ),
    "80": Wrong(
        (after("    import tensorflow as tf", "    import tensorflow_addons as tfa"),), kinds("not-trained"), 1, "tf115"
    ),
    "83": Wrong(
        (
            (
                "for rnd in range(3): net.fit(x, y, verbose=0)",
                "for rnd in range(3): train = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)\n"
                "net.fit(train, verbose=0)",
            ),
        ),
        kinds("length"),
        1,
    ),
    "85": Wrong((("\r", "\n"),), level=1, escapes="the file's bytes are changed, not what it does"),
    "95": Wrong(
        (("batch_size=5", "batch_size=5, num_workers=2"),),
        verdict="not run",
        escapes="PyTorch: `validate` records TensorFlow, and this environment cannot import torch",
    ),
    "97": Wrong(
        (("batch_size=200", "batch_size=200, num_workers=2"),),
        verdict="not run",
        escapes="PyTorch: `validate` records TensorFlow, and this environment cannot import torch",
    ),
}
CAUGHT = [number for number, wrong in WRONG.items() if wrong.kinds]
IDLE = [number for number, wrong in WRONG.items() if wrong.trains]
ESCAPED = [number for number, wrong in WRONG.items() if wrong.escapes]


def edited(text: str, edits: Edits) -> str:
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def result(number: str, folder: Path, trains: bool = True) -> Validation:
    wrong = WRONG[number]
    original = SCRIPTS[number].read_bytes().decode()
    if trains:
        original = edited(original, wrong.trains)
    careless = edited(original, wrong.edits if trains else ())
    return judged(
        folder, original, careless, wrong.level, wrong.env, ranks=wrong.ranks, steps=wrong.steps, timeout=120.0, seeds=2
    )


def test_all_are_here() -> None:
    assert len(WRONG) == 26
    assert not set(CAUGHT) & set(ESCAPED) and set(CAUGHT) | set(ESCAPED) == set(WRONG)


@pytest.mark.parametrize("number", CAUGHT)
def test_the_regression_is_named(number: str, tmp_path: Path) -> None:
    validation = result(number, tmp_path)
    assert validation.verdict == "regression", validation.failure
    assert failing(validation) & WRONG[number].kinds, validation.parity


@pytest.mark.parametrize("number", IDLE)
def test_what_trains_nothing_is_refused(number: str, tmp_path: Path) -> None:
    validation = result(number, tmp_path, trains=False)
    assert validation.verdict == "not run" and "never trained a step" in validation.failure


@pytest.mark.parametrize("number", ESCAPED)
def test_what_escapes(number: str, tmp_path: Path) -> None:
    validation = result(number, tmp_path)
    assert validation.verdict == WRONG[number].verdict, validation.parity
    if "torch" in WRONG[number].escapes:
        assert "No module named 'torch'" in validation.failure
