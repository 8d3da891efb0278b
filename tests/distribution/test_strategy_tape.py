"""Programs that train in loops with `GradientTape`, under a strategy: the same training as in one process.

`mirrored` runs on two logical CPUs, `multiworker` on two workers of this machine. 72 samples in batches of 32: the last
batch has 8, of which the second replica gets none.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rewriter.engine import Options, rewrite
from rewriter.target import named
from tests.envs import run_script, tf_env

pytestmark = pytest.mark.tf

TARGETS = {"tf215": "tf2.15", "tf221": "tf2.21"}
CPUS = """
import tensorflow as _tf
_cpu = _tf.config.list_physical_devices("CPU")[0]
_tf.config.set_logical_device_configuration(_cpu, [_tf.config.LogicalDeviceConfiguration()] * 2)
"""
TELL = """
import json as _json, os as _os
_task = _json.loads(_os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
with open("told_%d.json" % _task, "w") as _file:
    _json.dump(told, _file, default=float)
"""


def converted(source: str, kind: str, env: str) -> str:
    path, text = Path("/nowhere/train.py"), textwrap.dedent(source).lstrip("\n")
    target = named(TARGETS[env])
    options = Options(1, frozenset(), distribute=kind)
    (result,) = rewrite([path], options, lambda _: target, {path: text.encode()})
    assert result.error is None, result.error
    assert any(a.codemod == kind for a in result.applied), [(r.line, r.reason) for r in result.refused]
    return result.after.decode()


def trained(text: str, folder: Path, env: str, kind: str = "") -> list[dict[str, Any]]:
    """What every process tells at its end."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    script.write_text((CPUS if kind == "mirrored" else "") + textwrap.dedent(text).lstrip("\n") + TELL)
    if kind == "multiworker":
        return _workers(script, env)
    done = run_script(tf_env(env), script, timeout=240, cwd=folder)
    assert done.returncode == 0, f"{text}\n{done.stdout[-1500:]}\n{done.stderr[-4000:]}"
    return [json.loads((folder / "told_0.json").read_text())]


def _workers(script: Path, env: str) -> list[dict[str, Any]]:
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            ports.append(free.getsockname()[1])
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    jobs = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        variables = {
            **os.environ,
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
            "CUDA_VISIBLE_DEVICES": "",
        }
        jobs.append(
            subprocess.Popen(
                [tf_env(env), script],
                cwd=script.parent,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
    for job in jobs:
        try:
            output, _ = job.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            for other in jobs:
                other.kill()
            raise
        assert job.returncode == 0, output.decode()[-4000:]
    return [json.loads((script.parent / f"told_{index}.json").read_text()) for index in range(2)]


def same(one: Any, other: Any, tolerance: float = 2e-5) -> None:
    """Numbers in the same nest of lists."""
    if isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b, tolerance)
    else:
        assert other == pytest.approx(one, rel=tolerance, abs=tolerance)


#: A compiled step with a regularized model that is built when it is called, a loss of Keras, metrics, an evaluation
#: with metrics of its own, and files.
PROGRAM = """
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(3)
x = np.random.RandomState(0).randn(72, 8).astype("float32")
y = np.random.RandomState(1).randint(0, 4, 72)
train = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(72, seed=5).batch(32)
test = tf.data.Dataset.from_tensor_slices((x[:20], y[:20])).batch(8)


class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = tf.keras.layers.Dense(16, activation="relu", kernel_regularizer="l2")
        self.norm = tf.keras.layers.LayerNormalization()
        self.out = tf.keras.layers.Dense(4)

    def call(self, inputs, training=False):
        return self.out(self.norm(self.hidden(inputs)))


model = Net()
crossentropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(0.01)
mean = tf.keras.metrics.Mean()
accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
test_mean = tf.keras.metrics.Mean()


@tf.function
def train_step(inputs, labels):
    with tf.GradientTape() as tape:
        logits = model(inputs, training=True)
        loss = crossentropy(labels, logits) + tf.add_n(model.losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    mean(loss)
    accuracy.update_state(labels, logits)
    return loss, tf.reduce_mean(tf.cast(tf.argmax(logits, 1) == tf.cast(labels, tf.int64), tf.float32))


@tf.function
def test_step(inputs, labels):
    test_mean(crossentropy(labels, model(inputs)))


losses, means = [], []
for epoch in range(3):
    mean.reset_state()
    accuracy.reset_state()
    for inputs, labels in train:
        loss, right = train_step(inputs, labels)
        losses.append([float(loss), float(right)])
    for inputs, labels in test:
        test_step(inputs, labels)
    means.append([float(m.result()) for m in (mean, accuracy, test_mean)])
    print("epoch", epoch, means[-1])
with open("losses.txt", "w") as file:
    file.write(str(losses))
model.save_weights("trained.weights.h5")
"""
TOLD = """
told = {"losses": losses, "means": means, "weights": [w.tolist() for w in model.get_weights()]}
"""


@pytest.mark.parametrize("env", ["tf215", "tf221"])
@pytest.mark.parametrize("kind", ["mirrored", "multiworker"])
def test_the_same_training(kind: str, env: str, tmp_path: Path) -> None:
    (one,) = trained(PROGRAM + TOLD, tmp_path / "one", env)
    found = trained(converted(PROGRAM, kind, env) + TOLD, tmp_path / kind, env, kind)
    for told in found:
        for what in ("losses", "means", "weights"):
            same(one[what], told[what])
    assert all(told == found[0] for told in found)
    assert (tmp_path / kind / "losses.txt").exists()
    assert (tmp_path / kind / "trained.weights.h5").exists()
    assert len(list((tmp_path / kind).glob("*.h5"))) == 1


#: An eager loop that looks at its batches, with a step in a class, two optimizers, a gradient penalty, variables of its
#: own, and batch normalization; an evaluation whose metric is made with the model; 70 samples.
CLASS = """
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(5)
x = np.random.RandomState(0).randn(70, 3).astype("float32")
y = x[:, :1] * 2 - 1
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(70, seed=3).batch(32)


class Trainer:
    def __init__(self):
        self.critic = tf.keras.Sequential([
            tf.keras.layers.Dense(4, activation="tanh", input_shape=(3,)),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Dense(1),
        ])
        self.scale = tf.Variable(tf.ones(3))
        self.first = tf.keras.optimizers.RMSprop(0.01)
        self.second = tf.keras.optimizers.SGD(0.01, momentum=0.9)
        self.mse = tf.keras.losses.MeanSquaredError()
        self.error = tf.keras.metrics.Mean()

    def penalty(self, inputs):
        with tf.GradientTape() as inner:
            inner.watch(inputs)
            out = self.critic(inputs, training=True)
        return tf.reduce_mean(tf.square(inner.gradient(out, inputs)))

    def step(self, inputs, targets):
        with tf.GradientTape(persistent=True) as tape:
            loss = self.mse(targets, self.critic(inputs * self.scale, training=True))
            hard = loss + 0.1 * self.penalty(inputs)
        self.first.apply_gradients(zip(tape.gradient(loss, [self.scale]), [self.scale]))
        gradients = tape.gradient(hard, self.critic.trainable_variables)
        self.second.apply_gradients(zip(gradients, self.critic.trainable_variables))
        return loss, hard

    def test(self, inputs, targets):
        self.error.update_state(self.mse(targets, self.critic(inputs * self.scale)))

    def fit(self):
        losses, seen = [], []
        for epoch in range(2):
            for number, (inputs, targets) in enumerate(data):
                seen += inputs[:, 0].numpy().tolist()
                loss, hard = self.step(inputs, targets)
                losses.append([float(loss), float(hard)])
            for inputs, targets in data:
                self.test(inputs, targets)
            losses.append([float(self.error.result()), len(seen)])
        return losses


trainer = Trainer()
losses = trainer.fit()
"""
TOLD_CLASS = """
weights = [trainer.scale.numpy().tolist(), *(w.tolist() for w in trainer.critic.get_weights()[:-1])]
told = {"losses": losses, "weights": weights}
"""


@pytest.mark.parametrize(("kind", "env"), [("mirrored", "tf215"), ("mirrored", "tf221"), ("multiworker", "tf215")])
def test_a_class_with_two_optimizers(kind: str, env: str, tmp_path: Path) -> None:
    (one,) = trained(CLASS + TOLD_CLASS, tmp_path / "one", env)
    text = converted(CLASS, kind, env)
    assert "divide_batch(inputs)" in text
    assert "BatchNormalization(synchronized=True)" in text
    found = trained(text + TOLD_CLASS, tmp_path / kind, env, kind)
    for told in found:
        # moving averages of Keras 2 wait where a replica has no sample; what is evaluated with them differs a little
        same(one["weights"][:-1], told["weights"][:-1], 1e-4)
        same([pair for i, pair in enumerate(one["losses"]) if i % 4 != 3],
             [pair for i, pair in enumerate(told["losses"]) if i % 4 != 3], 1e-4)  # fmt: skip
    assert all(told == found[0] for told in found)


#: A step in the loop, and slices of arrays.
ARRAYS = """
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(7)
x = np.random.RandomState(0).randn(70, 8).astype("float32")
y = x[:, :1] * 2 - 1
model = tf.keras.Sequential([tf.keras.layers.Dense(4, activation="tanh", input_shape=(8,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(0.01)
losses = []
for epoch in range(2):
    for start in range(0, len(x), 32):
        inputs, targets = x[start:start + 32], y[start:start + 32]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs) - targets))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        losses.append(float(loss))
"""


@pytest.mark.parametrize("env", ["tf215", "tf221"])
def test_slices_of_arrays(env: str, tmp_path: Path) -> None:
    told = "\ntold = {'losses': losses, 'weights': [w.tolist() for w in model.get_weights()]}\n"
    (one,) = trained(ARRAYS + told, tmp_path / "one", env)
    (two,) = trained(converted(ARRAYS, "mirrored", env) + told, tmp_path / "two", env, "mirrored")
    same(one["losses"], two["losses"])
    same(one["weights"], two["weights"])
