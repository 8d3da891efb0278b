"""Programs that train with `fit`, converted to `MultiWorkerMirroredStrategy` and run as two workers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.distribution.strategies import converted, run, trained

pytestmark = pytest.mark.tf

ARRAYS = """
import json
import os
import numpy as np
import tensorflow as tf

INDEX = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {}).get("index", 0)
seen = []


def note(x):
    seen.extend(np.round(x.numpy()[:, 0] * 400).astype(int).tolist())
    return x


class Recorder(tf.keras.layers.Layer):
    def call(self, x, training=None):
        if training:
            shape = x.shape
            x = tf.py_function(note, [x], tf.float32)
            x.set_shape(shape)
        return x


np.random.seed(INDEX)  # what every process draws by itself is not the same
x = np.arange(96 * 4, dtype="float32").reshape(96, 4) / 400
y = x[:, :1] * 3 + 1
first, second = (tf.keras.initializers.GlorotUniform(seed=s) for s in (1, 2))
model = tf.keras.Sequential([Recorder(input_shape=(4,))])
model.add(tf.keras.layers.Dense(3, activation="tanh", kernel_initializer=first))
model.add(tf.keras.layers.Dense(1, kernel_initializer=second))
model.compile(tf.keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
checkpoint = tf.keras.callbacks.ModelCheckpoint("best_%s.h5" % INDEX, monitor="val_loss", save_best_only=True)
history = model.fit(
    x, y, batch_size=16, epochs=3, validation_data=(x[:51], y[:51]),
    callbacks=[tf.keras.callbacks.CSVLogger("log_%s.csv" % INDEX), checkpoint, tf.keras.callbacks.EarlyStopping(patience=2)],
)
model.save("final_%s.h5" % INDEX)
np.save("history_%s.npy" % INDEX, history.history["loss"])
model.load_weights("final_%s.h5" % INDEX)
print("tested", model.evaluate(x, y))
"""
TOLD = """
told = {**history.history, "weights": [w.tolist() for w in model.get_weights()], "seen": seen,
        "predicted": model.predict(x).tolist()}
"""


def test_the_same_training(tmp_path: Path) -> None:
    """Two workers with half of each batch: loss, weights, samples and files."""
    text = converted(ARRAYS, "multiworker")
    (one,) = trained(text + TOLD, tmp_path / "one")  # with the seed that it gets: also one process
    both = trained(text + TOLD, tmp_path / "two", workers=2)
    assert both[0]["weights"] == both[1]["weights"]
    assert both[0]["predicted"] == both[1]["predicted"]
    for worker in both:
        for name in set(one) - {"seen", "weights", "predicted"}:
            assert worker[name] == pytest.approx(one[name], rel=1e-3), name
    for epoch in range(3):
        parts = [worker["seen"][48 * epoch : 48 * epoch + 48] for worker in both]
        assert sorted(parts[0] + parts[1]) == sorted(one["seen"][:96])
    written = sorted(p.name for p in (tmp_path / "two").iterdir() if not p.name.startswith(("told", "train")))
    assert written == ["best_0.h5", "final_0.h5", "history_0.npy", "log_0.csv"]


FILES = """
import os
import numpy as np
import tensorflow as tf

seen = []


def note(x):
    seen.append(int(x))
    return x


def parse(record):
    number = tf.io.decode_raw(record, tf.int64)[0]
    number.set_shape(())
    x = tf.cast(tf.fill((4,), number), tf.float32) / 100
    return x, x[:1] * 3 + 1


class Recorder(tf.keras.layers.Layer):
    def call(self, x, training=None):
        if training:
            shape = x.shape
            x = tf.py_function(self.note, [x], tf.float32)
            x.set_shape(shape)
        return x

    def note(self, x):
        seen.extend(np.round(x.numpy()[:, 0] * 100).astype(int).tolist())
        return x


ds = tf.data.TFRecordDataset("../records").map(parse).shuffle(100).batch(16).prefetch(2)
model = tf.keras.Sequential([Recorder(), tf.keras.layers.Dense(1)])
model.compile(tf.keras.optimizers.SGD(0.05), "mse")
history = model.fit(ds, epochs=2, validation_data=ds)
"""


def test_one_file(tmp_path: Path) -> None:
    """A single file, which cannot be divided over two workers: its records are."""
    from tests.envs import run_script, tf_env

    writer = tmp_path / "write.py"
    writer.write_text(
        "import numpy as np, tensorflow as tf\n"
        "with tf.io.TFRecordWriter('records') as w:\n"
        "    for i in range(96): w.write(np.int64(i).tobytes())\n"
    )
    assert run_script(tf_env("tf215"), writer, timeout=120).returncode == 0
    text = converted(FILES, "multiworker")
    told = (
        'told = {"loss": history.history["loss"], "weights": [w.tolist() for w in model.get_weights()], "seen": seen}\n'
    )
    (one,) = trained(text + told, tmp_path / "one")
    both = trained(text + told, tmp_path / "two", workers=2)
    assert both[0]["weights"] == both[1]["weights"]
    for epoch in range(2):
        parts = [worker["seen"][48 * epoch : 48 * epoch + 48] for worker in both]
        assert sorted(parts[0] + parts[1]) == list(range(96))
    assert both[0]["loss"][-1] < one["loss"][0]


def test_a_lost_worker_ends_the_job(tmp_path: Path) -> None:
    text = converted(ARRAYS, "multiworker")
    dies = "        if INDEX == 1 and len(seen) > 60: os._exit(9)\n"
    text = text.replace("        if training:\n", "        if training:\n", 1)
    text = text.replace("    return x\n", dies.replace("        ", "    ", 1) + "    return x\n", 1)
    start = time.monotonic()
    first, second = run(text + TOLD, tmp_path, workers=2, timeout=200)
    assert second.returncode == 9 and first.returncode not in (0, None)
    assert time.monotonic() - start < 200
