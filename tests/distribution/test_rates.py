"""Learning rates on two ranks, against what the papers say."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from tests.distribution.ranks import converted, trained

pytestmark = pytest.mark.tf

LOOPS = """
import numpy as np
import tensorflow as tf

rates, decayed = [], []
x, y = np.ones((32, 4), "float32"), np.ones((32, 1), "float32")
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
first = tf.keras.optimizers.SGD(0.1)
second = tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.ExponentialDecay(0.2, 8, 0.5))


@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(a) - b)
    gradients = tape.gradient(loss, model.trainable_variables)
    before = tf.identity(model.trainable_variables[1])
    first.apply_gradients(zip(gradients, model.trainable_variables))
    used = (before - model.trainable_variables[1]) / gradients[1]
    second.apply_gradients(zip(gradients, model.trainable_variables))
    return used


for epoch in range(8):
    for a, b in ds:
        rates.append(float(step(a, b)[0]))
        decayed.append(float(second.learning_rate))
"""
TOLD = """
told = {"rates": rates, "decayed": decayed, "weights": [w.tolist() for w in model.get_weights()]}
"""


def test_a_loop(tmp_path: Path) -> None:
    """The rate that a compiled step goes with, and a schedule beside it: linear scaling (Goyal et al. 2017)."""
    both = trained(converted(LOOPS) + TOLD, tmp_path, ranks=2)
    assert both[0]["weights"] == both[1]["weights"]
    steps = 2  # of one rank in an epoch: 16 of 32 samples, in batches of 8
    grown = [0.1 * (1 + (2 - 1) * min(epoch / 4, 1)) for epoch in range(8) for _ in range(steps)]
    assert both[0]["rates"] == pytest.approx(grown, rel=1e-2)
    schedule = [0.2 * 2 * 0.5 ** (done / (8 // 2)) for done in range(8 * steps)]
    assert both[0]["decayed"] == pytest.approx(schedule, rel=1e-5)


LAMB = """
import numpy as np
import tensorflow as tf

rates = []
decayed = []


class Rates(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        rates.append(float(self.model.optimizer.learning_rate.numpy()))


x, y = np.ones((32, 4), "float32"), np.ones((32, 1), "float32")
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
model.compile(LAMB(learning_rate=0.01), "mse")
model.fit(x, y, epochs=4, callbacks=[Rates()])
"""


def test_lamb(tmp_path: Path) -> None:
    """Its rate grows with the square root of the batch (You et al. 2020)."""
    optimizer = files("codemods.snippets").joinpath("lamb_keras2.py").read_text()
    both = trained(converted(optimizer + LAMB) + TOLD, tmp_path, ranks=2)
    assert both[0]["weights"] == both[1]["weights"]
    assert both[0]["rates"][-1] == pytest.approx(0.01 * 2**0.5, rel=1e-5)
    assert both[0]["rates"] == sorted(both[0]["rates"])
