"""Programs that are distributed already: what they lack is named, with its line; what is complete is left in peace."""

from __future__ import annotations

import textwrap

import pytest

from tests.check import Check

horovod = Check("horovod")

HEAD = """
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
(x, y), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
"""
FIT = (
    HEAD
    + """
x, y = x[hvd.rank()::hvd.size()], y[hvd.rank()::hvd.size()]
model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, activation="softmax")])
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.001 * hvd.size()))
model.compile(optimizer, "sparse_categorical_crossentropy")
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    tf.keras.callbacks.EarlyStopping(patience=2),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint("best.h5"))
model.fit(x, y, epochs=3, callbacks=callbacks, verbose=1 if hvd.rank() == 0 else 0)
if hvd.rank() == 0:
    model.save("model.h5")
"""
)
TAPE = (
    HEAD
    + """
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shard(hvd.size(), hvd.rank()).shuffle(1000).batch(32)
model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(0.001 * hvd.size())


@tf.function
def step(images, labels, first):
    with tf.GradientTape() as tape:
        loss = loss_fn(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    if first:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables(), root_rank=0)
    return loss


for batch, (images, labels) in enumerate(dataset):
    loss = step(images, labels, batch == 0)
if hvd.rank() == 0:
    model.save_weights("weights.h5")
"""
)
STEP = FIT.replace(
    "model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, activation=\"softmax\")])",
    """
class Net(tf.keras.Sequential):
    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            loss = self.compiled_loss(targets, self(inputs, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


model = Net([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, activation="softmax")])""",
)  # fmt: skip


def reason(text: str, target: str = "tf2.15", codemod: str = "horovod") -> str:
    result = Check(codemod).run(text, target=target)
    assert result.after == result.before
    (refusal,) = result.refused
    return refusal.reason


def line(text: str, part: str) -> int:
    """The first line with this part, as the codemod sees the script."""
    lines = textwrap.dedent(text).lstrip("\n").split("\n")
    return next(number for number, content in enumerate(lines, 1) if part in content)


@pytest.mark.parametrize("text", [FIT, TAPE, STEP], ids=["fit", "tape", "train_step"])
def test_what_is_complete(text: str) -> None:
    assert reason(text) == "the program trains with Horovod already"


@pytest.mark.parametrize(
    ("text", "old", "new", "what", "at"),
    [
        (FIT, "model.compile(optimizer,", "model.compile('adam',", "given an optimizer that averages nothing", "'adam'"),
        (
            FIT + "other = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n",
            "other = tf.keras.Sequential([tf.keras.layers.Dense(1)])",
            "other = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n"
            "other.compile(tf.keras.optimizers.SGD(0.1), 'mse')\nother.fit(x, y)",
            "given an optimizer that averages nothing",
            "SGD(0.1)",
        ),
        (
            FIT, "model.compile(optimizer, ", "model.compile(optimizer, jit_compile=True, loss=",
            "`jit_compile=True` does not go with Horovod's operations", "jit_compile=True",
        ),
        (
            FIT, "    hvd.callbacks.MetricAverageCallback(),\n", "", "`EarlyStopping` sees metrics of one rank",
            "EarlyStopping",
        ),
        (
            FIT, "    hvd.callbacks.BroadcastGlobalVariablesCallback(0),\n",
            "    hvd.callbacks.BroadcastGlobalVariablesCallback(0),\n    tf.keras.callbacks.ReduceLROnPlateau(),\n",
            "`ReduceLROnPlateau` stands before `MetricAverageCallback`", "ReduceLROnPlateau",
        ),
        (
            FIT, "if hvd.rank() == 0:\n    callbacks.append(", "if True:\n    callbacks.append(",
            "`tf.keras.callbacks.ModelCheckpoint` writes on every rank", "ModelCheckpoint",
        ),
        (FIT, 'if hvd.rank() == 0:\n    model.save("', 'if True:\n    model.save("', "`model.save` writes on every", 'model.save("'),
        (
            FIT, "x, y = x[hvd.rank()::hvd.size()], y[hvd.rank()::hvd.size()]\n", "",
            "every rank trains on all of the data", "model.fit",
        ),
        (FIT, "0.001 * hvd.size()", "0.001", "the learning rate is that of one process", "Adam(0.001"),
        (
            STEP, "        tape = hvd.DistributedGradientTape(tape)\n", "",
            "this `train_step` applies gradients that nothing averages", "def train_step",
        ),
        (
            TAPE, "    tape = hvd.DistributedGradientTape(tape)\n", "    hvd.DistributedOptimizer\n",
            "the gradients of this tape are applied as each rank has them", "tf.GradientTape",
        ),
        (
            TAPE, "@tf.function\n", "@tf.function(jit_compile=True)\n", "`jit_compile=True` does not go", "jit_compile=True",
        ),
    ],
    ids=["string", "second-model", "jit", "decides", "decides-before", "checkpoint", "save", "not-split", "rate",
         "train_step", "tape", "jit-step"],
)  # fmt: skip
def test_what_is_lacking(text: str, old: str, new: str, what: str, at: str) -> None:
    assert text.count(old) == 1, text
    changed = text.replace(old, new)
    said = reason(changed)
    assert said.startswith("the program trains with Horovod already, but ")
    assert what in said, said
    assert f"(line {line(changed, at)})" in said, said
    assert said.count("; ") == 0, said  # nothing else is wrong


def test_parts_that_are_nowhere() -> None:
    bare = "import tensorflow as tf\nimport horovod.tensorflow.keras as hvd\nhvd.init()\n"
    bare += "model = tf.keras.Sequential([tf.keras.layers.Dense(1)])\nmodel.compile('sgd', 'mse')\nmodel.fit(x, y)\n"
    said = reason(bare)
    for part in ("averages the gradients", "same weights at the start", "pinned to a GPU", "not split", "same files"):
        assert part in said, said


def test_keras_3() -> None:
    """The same program, whose gradients nobody averages there."""
    said = reason(FIT, target="tf2.16")
    assert "averages nothing under Keras 3, without an error" in said
    assert "(line " in said


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # wrapped elsewhere
        ("optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.001 * hvd.size()))",
         "optimizer = tf.keras.optimizers.Adam(0.001 * hvd.size())\noptimizer = hvd.DistributedOptimizer(optimizer)"),
        ("model.compile(optimizer,", "model.compile(tf.keras.mixed_precision.LossScaleOptimizer(optimizer),"),
        # rank 0 by another name
        ('if hvd.rank() == 0:\n    model.save("model.h5")', 'main = hvd.rank() == 0\nif main:\n    model.save("model.h5")'),
        ('if hvd.rank() == 0:\n    model.save("model.h5")', 'model.save("model_%d.h5" % hvd.rank())'),
        ('if hvd.rank() == 0:\n    model.save("model.h5")',
         'def finish():\n    model.save("model.h5")\n\n\nif hvd.rank() == 0:\n    finish()'),
        ('if hvd.rank() == 0:\n    model.save("model.h5")',
         'def finish():\n    if hvd.rank() != 0:\n        return\n    model.save("model.h5")\n\n\nfinish()'),
        # split otherwise
        ("x, y = x[hvd.rank()::hvd.size()], y[hvd.rank()::hvd.size()]\n", "steps = len(x) // 32 // hvd.size()\n"),
        ("x, y = x[hvd.rank()::hvd.size()], y[hvd.rank()::hvd.size()]\n", "from data import part\nx, y = part(hvd.rank())\n"),
        # scaled elsewhere
        ("optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.001 * hvd.size()))",
         "optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.001))\noptimizer.learning_rate = 0.001 * hvd.size()"),
    ],
)  # fmt: skip
def test_what_is_done_otherwise(old: str, new: str) -> None:
    assert FIT.count(old) == 1
    changed = FIT.replace(old, new)
    assert reason(changed) == "the program trains with Horovod already"


# -- strategies ------------------------------------------------------------------------------------------------------

SCOPE = """
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(x, y, batch_size=32 * strategy.num_replicas_in_sync)
"""
LOOP = """
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.1)
dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(64))


def step(inputs, targets):
    with tf.GradientTape() as tape:
        losses = tf.reduce_mean((model(inputs) - targets) ** 2, axis=1)
        loss = tf.nn.compute_average_loss(losses, global_batch_size=64)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


for inputs, targets in dataset:
    strategy.run(step, args=(inputs, targets))
"""


@pytest.mark.parametrize("codemod", ["horovod", "mirrored", "multiworker"])
def test_strategies_that_are_complete(codemod: str) -> None:
    target = "tf2.15" if codemod == "horovod" else "tf2.21"
    for text in (SCOPE, LOOP):
        said = reason(text, target, codemod)
        assert "distributed already, by `MirroredStrategy`" in said and "(line" not in said, said


@pytest.mark.parametrize(
    ("text", "old", "new", "what", "at"),
    [
        (
            SCOPE, "with strategy.scope():\n    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n    model.compile",
            "model = tf.keras.Sequential([tf.keras.layers.Dense(1)])\nwith strategy.scope():\n    model.compile",
            "this model is made outside of `strategy.scope()`", "model = ",
        ),
        (
            SCOPE, '    model.compile("sgd"', 'model.compile("sgd"',
            "this `compile` stands outside of `strategy.scope()`, where Keras 3 fails", "model.compile",
        ),
        (
            LOOP, "        loss = tf.nn.compute_average_loss(losses, global_batch_size=64)\n",
            "        loss = tf.reduce_mean(losses)\n", "the loss is the mean over a replica's part", "losses = ",
        ),
        (
            LOOP, "strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(64))",
            "tf.data.Dataset.from_tensor_slices((x, y)).batch(64)", "every replica trains on the same batch", "strategy.run",
        ),
    ],
    ids=["model", "compile", "mean", "dataset"],
)  # fmt: skip
def test_what_strategies_lack(text: str, old: str, new: str, what: str, at: str) -> None:
    assert text.count(old) == 1
    changed = text.replace(old, new)
    for codemod in ("mirrored", "multiworker"):
        said = reason(changed, "tf2.21", codemod)
        assert what in said and f"(line {line(changed, at)})" in said, said


def test_compile_outside_of_the_scope_is_fine_in_keras_2() -> None:
    text = SCOPE.replace('    model.compile("sgd"', 'model.compile("sgd"')
    assert "(line" not in reason(text, "tf2.15", "mirrored")
