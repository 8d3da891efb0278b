"""Programs that train with `fit`, converted to `MirroredStrategy` and run on two devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distribution.strategies import converted, trained

pytestmark = pytest.mark.tf

FIT = """
import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

tf.keras.utils.set_random_seed(3)
seen = []


def note(x):
    seen.extend(np.round(x.numpy()[:, 0] * 400).astype(int).tolist())
    return x


class Recorder(layers.Layer):
    def call(self, x, training=None):
        if training:
            shape = x.shape
            x = tf.py_function(note, [x], tf.float32)
            x.set_shape(shape)
        return x


def build_model():
    inputs = tf.keras.Input((4,))
    x = Recorder()(inputs)
    x = layers.Dense(3, activation="tanh")(x)
    x = layers.BatchNormalization()(x)
    return tf.keras.Model(inputs, layers.Dense(1)(x))


def main():
    x = np.arange(SAMPLES * 4, dtype="float32").reshape(SAMPLES, 4) / 400
    y = x[:, :1] * 3 + 1
    normalize = layers.Normalization()
    normalize.adapt(x)
    model = tf.keras.Sequential([build_model()])
    optimizer = tf.keras.optimizers.Adam(0.01)
    model.compile(optimizer, "mse", metrics=[tf.keras.metrics.MeanAbsoluteError()])
    callbacks = [
        tf.keras.callbacks.ModelCheckpoint("best.keras", monitor="val_loss", save_best_only=True),
        tf.keras.callbacks.ReduceLROnPlateau(patience=0, min_delta=1.0),
        tf.keras.callbacks.CSVLogger("log.csv"),
    ]
    history = model.fit(x, y, batch_size=16, epochs=3, validation_data=(x, y), callbacks=callbacks)
    model.save("final.keras")
    again = tf.keras.models.load_model("final.keras", custom_objects={"Recorder": Recorder})
    weights = [w.tolist() for w in model.get_weights()]
    return {**history.history, "weights": weights, "test": model.evaluate(x, y), "again": again.evaluate(x, y)}


told = {**main(), "seen": seen}
"""


@pytest.mark.parametrize("env", ["tf215", "tf221"])
def test_the_same_training(env: str, tmp_path: Path) -> None:
    """Loss, metrics, weights, files and samples of a program on one device and on two."""
    original = FIT.replace("SAMPLES", "96")
    (one,) = trained(original, tmp_path / "one", env=env)
    text = converted(original, "mirrored", env)
    assert "with strategy.scope():" in text and "synchronized=True" in text
    (two,) = trained(text, tmp_path / "two", env=env, devices=2)
    assert set(one) == set(two)
    for name in set(one) - {"seen", "weights"}:
        assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-4), name
    for a, b in zip(one["weights"], two["weights"], strict=True):
        assert a == [pytest.approx(v, abs=2e-4) for v in b]
    epochs = [two["seen"][i : i + 96] for i in (0, 96, 192)]
    assert [sorted(e) for e in epochs] == [sorted(one["seen"][:96])] * 3
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == sorted(p.name for p in (tmp_path / "one").iterdir())


STEP = """
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(3)


class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1)
        self.tracker = tf.keras.metrics.Mean(name="loss")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    @property
    def metrics(self):
        return [self.tracker]


x = np.arange(96 * 4, dtype="float32").reshape(96, 4) / 400
y = x[:, :1] * 3 + 1
model = Net()
model.compile(tf.keras.optimizers.SGD(0.05), "mse")
history = model.fit(x, y, batch_size=16, epochs=3)
told = {"loss": history.history["loss"], "weights": [w.tolist() for w in model.dense.get_weights()]}
"""


@pytest.mark.parametrize("env", ["tf215", "tf221"])
def test_a_step_of_its_own(env: str, tmp_path: Path) -> None:
    (one,) = trained(STEP, tmp_path / "one", env=env)
    (two,) = trained(converted(STEP, "mirrored", env), tmp_path / "two", env=env, devices=2)
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
    assert two["weights"][0] == [pytest.approx(v, abs=1e-4) for v in one["weights"][0]]


DATASET = """
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(3)


def own_loss(y_true, y_pred):
    return tf.reduce_mean(tf.square(y_true - y_pred))


x = np.arange(101 * 4, dtype="float32").reshape(101, 4) / 400
y = x[:, :1] * 3 + 1
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
model.compile(tf.keras.optimizers.SGD(0.05), own_loss, jit_compile=False)
history = model.fit(ds, epochs=3)
told = {"loss": history.history["loss"]}
"""


def test_a_mean_of_its_own(tmp_path: Path) -> None:
    """A smaller last batch, of which a device would get nothing, is left out: the mean over nothing is not a number."""
    text = converted(DATASET, "mirrored")
    assert "drop_remainder=True" in text
    (one,) = trained(DATASET.replace("101", "96"), tmp_path / "one")
    (two,) = trained(text, tmp_path / "two", devices=2)
    assert two["loss"][0] == pytest.approx(one["loss"][0], rel=0.02)
