"""Programs that train in loops with `tf.GradientTape`, converted and run on two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distribution.ranks import converted, trained

pytestmark = pytest.mark.tf

#: A compiled step with an adaptive optimizer, gradient clipping, weights and rates that are there after the first step
#: only, checkpoints, and an evaluation; the ranks begin with different weights.
DATASET = """
import os
import numpy as np
import tensorflow as tf

RANK = int(os.environ.get("HOROVOD_RANK", "0"))
tf.keras.utils.set_random_seed(3 + RANK)
x = np.arange(96 * 4, dtype="float32").reshape(96, 4) / 400
y = x[:, :1] * 3 + 1
seen, losses = [], []
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(int(os.environ["BATCH"]))
model = tf.keras.Sequential([tf.keras.layers.Dense(3, activation="tanh"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(0.01)
mean = tf.keras.metrics.Mean()
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
manager = tf.train.CheckpointManager(checkpoint, "checkpoints_%d" % RANK, max_to_keep=1)


@tf.function
def train_step(net, inputs, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((net(inputs, training=True) - targets) ** 2)
    gradients = tape.gradient(loss, net.trainable_variables)
    gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
    optimizer.apply_gradients(zip(gradients, net.trainable_variables))
    mean.update_state(loss)
    return loss


for epoch in range(3):
    mean.reset_state()
    for step, (inputs, targets) in enumerate(dataset):
        seen += inputs[:, 0].numpy().tolist()
        loss = train_step(model, inputs, targets)
        if step % 2 == 0:
            print("loss", float(loss))
    losses.append(float(mean.result()))
    manager.save()
"""
TOLD = """
told = {"losses": losses, "weights": [w.tolist() for w in model.get_weights()], "seen": seen,
        "slots": [v.numpy().tolist() for v in optimizer.variables()]}
"""


def test_the_same_training(tmp_path: Path) -> None:
    """Two ranks with half of the batch each: losses, weights, samples and files."""
    text = converted(DATASET, lr_scaling=False)
    # the first step of two ranks is made with the weights of each: the same ones are compared
    same = "tf.keras.utils.set_random_seed(3)"
    one_text, two_text = (t.replace("tf.keras.utils.set_random_seed(3 + RANK)", same) for t in (DATASET, text))
    (one,) = trained(one_text + TOLD, tmp_path / "one", BATCH="16")
    both = trained(two_text + TOLD, tmp_path / "two", ranks=2, BATCH="8")
    assert both[0]["weights"] == both[1]["weights"]
    assert both[0]["slots"] == both[1]["slots"]
    for a, b in zip(one["weights"], both[0]["weights"], strict=True):
        for left, right in zip(a, b, strict=True):
            assert left == pytest.approx(right, abs=2e-5)
    for epoch, loss in enumerate(one["losses"]):
        parts = [rank["losses"][epoch] for rank in both]
        assert sum(parts) / 2 == pytest.approx(loss, rel=1e-4)
    for epoch in range(3):  # every sample once per epoch, on one of the ranks
        parts = [rank["seen"][48 * epoch : 48 * epoch + 48] for rank in both]
        assert sorted(parts[0] + parts[1]) == sorted(one["seen"][:96])
    assert (tmp_path / "two" / "checkpoints_0" / "checkpoint").exists()
    assert not (tmp_path / "two" / "checkpoints_1" / "checkpoint").exists()


def test_other_first_weights(tmp_path: Path) -> None:
    """Whatever the ranks begin with, they go on from what rank 0 has."""
    both = trained(converted(DATASET) + TOLD, tmp_path, ranks=2, BATCH="8")
    assert both[0]["weights"] == both[1]["weights"]
    assert both[0]["slots"] == both[1]["slots"]


#: Eager, with variables of its own, two optimizers, slices of arrays, and a gradient penalty; 94 samples in batches of
#: 8: as many steps on each rank.
ARRAYS = """
import os
import numpy as np
import tensorflow as tf

RANK = int(os.environ.get("HOROVOD_RANK", "0"))
tf.keras.utils.set_random_seed(5 + RANK)
x = np.linspace(-1, 1, 94 * 3, dtype="float32").reshape(94, 3)
y = x[:, :1] * 2 - 1
seen, steps = [], 0
w = tf.Variable(tf.random.normal((3, 4)))
b = tf.Variable(tf.zeros(4))
critic = tf.keras.Sequential([tf.keras.layers.Dense(4, activation="tanh"), tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(1)])
first, second = tf.keras.optimizers.RMSprop(0.01), tf.keras.optimizers.SGD(0.01, momentum=0.9)
size = int(os.environ["BATCH"])


def penalty(inputs):
    with tf.GradientTape() as inner:
        inner.watch(inputs)
        out = critic(inputs)
    return tf.reduce_mean(inner.gradient(out, inputs) ** 2)


for epoch in range(2):
    for start in range(0, len(x), size):
        inputs, targets = tf.constant(x[start:start + size]), y[start:start + size]
        seen += inputs[:, 0].numpy().tolist()
        with tf.GradientTape(persistent=True) as tape:
            out = critic(tf.tanh(inputs @ w + b)[:, :3])
            loss = tf.reduce_mean((out - targets) ** 2)
            hard = loss + 0.1 * penalty(inputs)
        first.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b]))
        gradients = tape.gradient(hard, critic.trainable_variables)
        second.apply_gradients(zip(gradients, critic.trainable_variables))
        steps += 1
"""
TOLD_ARRAYS = """
told = {"weights": [v.numpy().tolist() for v in [w, b, *critic.trainable_variables]], "seen": seen, "steps": steps,
        "slots": [v.numpy().tolist() for v in [*first.variables(), *second.variables()]]}
"""


def test_two_optimizers_and_a_penalty(tmp_path: Path) -> None:
    both = trained(converted(ARRAYS) + TOLD_ARRAYS, tmp_path, ranks=2, BATCH="8")
    for what in ("weights", "slots", "steps"):
        assert both[0][what] == both[1][what]
    assert both[0]["steps"] == 12
    assert len(set(both[0]["seen"] + both[1]["seen"])) == 94


@pytest.mark.parametrize("kind", ["scaled", "legacy"])
def test_loss_scaling_and_old_optimizers(kind: str, tmp_path: Path) -> None:
    """Losses are scaled inside of the tape, gradients averaged by it, and unscaled after."""
    made = {
        "scaled": "tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam(0.01))",
        "legacy": "tf.keras.optimizers.legacy.SGD(0.01, momentum=0.9)",
    }[kind]
    text = DATASET.replace("tf.keras.optimizers.Adam(0.01)", made)
    if kind == "scaled":
        text = text.replace(
            "inputs, training=True) - targets) ** 2)",
            "inputs, training=True) - targets) ** 2)\n        scaled = optimizer.get_scaled_loss(loss)",
        )
        text = text.replace("tape.gradient(loss,", "tape.gradient(scaled,")
        text = text.replace(
            "    gradients, _ =", "    gradients = optimizer.get_unscaled_gradients(gradients)\n    gradients, _ ="
        )
    after = converted(text)
    assert "tape = hvd.DistributedGradientTape(tape)" in after
    both = trained(after + TOLD, tmp_path, ranks=2, BATCH="8")
    assert both[0]["weights"] == both[1]["weights"]
    assert both[0]["slots"] == both[1]["slots"]


TRAIN_STEP = """
import os
import numpy as np
import tensorflow as tf

RANK = int(os.environ.get("HOROVOD_RANK", "0"))
tf.keras.utils.set_random_seed(3)
x = np.arange(96 * 4, dtype="float32").reshape(96, 4) / 400
y = x[:, :1] * 3 + 1


class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = tf.keras.layers.Dense(3, activation="tanh")
        self.out = tf.keras.layers.Dense(1)
        self.mean = tf.keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.out(self.hidden(inputs))

    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs, training=True) - targets) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}

    @property
    def metrics(self):
        return [self.mean]


model = Net()
model.compile(optimizer=tf.keras.optimizers.Adam(0.01))
history = model.fit(x, y, batch_size=int(os.environ["BATCH"]), epochs=3, shuffle=False)
"""
TOLD_TRAIN_STEP = """
told = {"losses": history.history["loss"], "weights": [w.numpy().tolist() for w in model.trainable_variables]}
"""


def test_a_train_step_of_its_own(tmp_path: Path) -> None:
    (one,) = trained(TRAIN_STEP + TOLD_TRAIN_STEP, tmp_path / "one", BATCH="16")
    text = converted(TRAIN_STEP, lr_scaling=False)
    both = trained(text + TOLD_TRAIN_STEP, tmp_path / "two", ranks=2, BATCH="8")
    assert both[0]["weights"] == both[1]["weights"]
    for a, b in zip(one["weights"], both[0]["weights"], strict=True):
        for left, right in zip(a, b, strict=True):
            assert left == pytest.approx(right, abs=2e-5)
    # what the metric has of the first batch is broadcast too, with all variables of the model
    assert both[0]["losses"][0] == pytest.approx(one["losses"][0], rel=5e-3)
    assert both[0]["losses"][1:] == pytest.approx(one["losses"][1:], rel=1e-4)
