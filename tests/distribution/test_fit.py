"""Programs that train with `fit`, converted and run on two ranks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.distribution.ranks import converted, run, told, trained

pytestmark = pytest.mark.tf

ARRAYS = """
import os
import numpy as np
import tensorflow as tf

RANK = os.environ.get("HOROVOD_RANK", "0")
tf.keras.utils.set_random_seed(3)
seen = []


class Recorder(tf.keras.layers.Layer):
    def call(self, x, training=None):
        if training:
            seen.append(x[:, 0].numpy().tolist())
        return x


x = np.arange(97 * 4, dtype="float32").reshape(97, 4) / 400
y = x[:, :1] * 3 + 1
model = tf.keras.Sequential([Recorder(input_shape=(4,)), tf.keras.layers.Dense(3, activation="tanh"), tf.keras.layers.Dense(1)])
model.compile(tf.keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
checkpoint = tf.keras.callbacks.ModelCheckpoint("best_%s.h5" % RANK, monitor="val_loss", save_best_only=True)
history = model.fit(
    x, y, batch_size=int(os.environ["BATCH"]), epochs=3, shuffle=False, validation_data=(x, y),
    callbacks=[tf.keras.callbacks.CSVLogger("log_%s.csv" % RANK), checkpoint],
)
print("ready on rank", RANK)
model.save("final_%s.h5" % RANK)
np.save("history_%s.npy" % RANK, history.history["loss"])
model.load_weights("best_%s.h5" % RANK)
"""
TOLD = """
told = {"loss": history.history["loss"], "weights": [w.tolist() for w in model.get_weights()], "seen": seen}
"""


def test_the_same_training(tmp_path: Path) -> None:
    """Two ranks with half of the batch each: loss, weights, samples and files."""
    original = ARRAYS.replace("(97 * 4", "(96 * 4").replace("(97, 4)", "(96, 4)")
    (one,) = trained(original + TOLD, tmp_path / "one", BATCH="16")
    text = converted(original, lr_scaling=False)
    both = trained(text + TOLD, tmp_path / "two", ranks=2, BATCH="8")
    assert both[0]["weights"] == both[1]["weights"]
    for a, b in zip(one["weights"], both[0]["weights"], strict=True):
        assert a == [pytest.approx(v, abs=2e-5) for v in b]
    for rank in both:
        assert rank["loss"] == pytest.approx(one["loss"], rel=1e-4)
    written = sorted(p.name for p in (tmp_path / "two").iterdir() if not p.name.startswith(("told", "launch", "train")))
    assert written == ["best_0.h5", "final_0.h5", "history_0.npy", "log_0.csv"]
    for epoch in range(3):  # every sample once per epoch, on one of the ranks
        parts = [[v for batch in rank["seen"][6 * epoch : 6 * epoch + 6] for v in batch] for rank in both]
        assert len(parts[0]) == len(parts[1]) == 48
        assert sorted(parts[0] + parts[1]) == sorted(v for batch in one["seen"][:6] for v in batch)


DATASET = """
import os
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(int(os.environ.get("HOROVOD_RANK", "0")))
seen, rates = [], []


def note(x):
    seen.append(int(x))
    return x


class Rates(tf.keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        rates.append(float(self.model.optimizer.learning_rate.numpy()))


source = np.arange(45)
ds = tf.data.Dataset.from_tensor_slices(source).shuffle(45).map(lambda i: tf.ensure_shape(tf.py_function(note, [i], tf.int64), []))
ds = ds.map(lambda i: (tf.reshape(tf.cast(i, tf.float32) / 45, [1]), tf.reshape(tf.cast(i, tf.float32), [1]))).batch(4)
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.5), "mse")
stop = tf.keras.callbacks.EarlyStopping(monitor="loss", min_delta=1e9, patience=9)
history = model.fit(ds, epochs=30, callbacks=[stop, Rates()])
"""


def test_datasets_decisions_and_the_warm_up(tmp_path: Path) -> None:
    text = converted(DATASET)
    tell = TOLD.replace("}", ', "rates": rates, "epochs": len(history.history["loss"])}')
    both = trained(text + tell, tmp_path, ranks=2)
    assert both[0]["weights"] == both[1]["weights"]
    epochs = both[0]["epochs"]
    assert epochs == both[1]["epochs"] < 30  # both stopped, and together
    assert both[0]["loss"] == pytest.approx(both[1]["loss"], rel=1e-6)
    for epoch in range(epochs):
        parts = [rank["seen"][22 * epoch : 22 * epoch + 22] for rank in both]
        assert sorted(parts[0] + parts[1]) == list(range(44))  # one of 45 has no partner
    steps = 6
    wanted = [0.1 * (1 + min((i + 1) / steps, 5) / 5) for i in range(steps * epochs)]  # Goyal et al.: from 0.1 to 0.2
    assert both[0]["rates"] == pytest.approx(wanted, rel=1e-5)


MIXED = """
import numpy as np
import tensorflow as tf

tf.keras.mixed_precision.set_global_policy("mixed_float16")
x = np.random.RandomState(0).rand(64, 4).astype("float32")
y = x[:, :1] * 3
rates = []


def plan(epoch):
    return 0.1 if epoch < 3 else 0.01


model = tf.keras.Sequential([tf.keras.layers.Dense(8, input_shape=(4,)), tf.keras.layers.Dense(1, dtype="float32")])
model.compile("sgd", "mse", jit_compile=True, steps_per_execution=2)
history = model.fit(x, y, epochs=4, callbacks=[tf.keras.callbacks.LearningRateScheduler(plan)])
rates = history.history["lr"]
"""


def test_mixed_precision_and_a_plan(tmp_path: Path) -> None:
    """`jit_compile` and `steps_per_execution` are resolved, the scaling of the loss goes along."""
    text = converted(MIXED)
    both = trained(text + TOLD.replace(', "seen": seen', ', "rates": [float(r) for r in rates]'), tmp_path, ranks=2)
    assert both[0]["weights"] == both[1]["weights"]
    assert both[0]["rates"] == pytest.approx([0.1, 0.15, 0.2, 0.02], rel=1e-5)


DIES = """
import os
import numpy as np
import tensorflow as tf


class Dies(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and os.environ.get("HOROVOD_RANK") == "1":
            os._exit(3)


x, y = np.ones((64, 4)), np.ones((64, 1))
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
model.compile("sgd", "mse")
model.fit(x, y, epochs=10_000, callbacks=[Dies()])
told = {}
"""


def test_a_rank_that_dies_ends_the_job(tmp_path: Path) -> None:
    began = time.monotonic()
    done = run(converted(DIES), tmp_path, ranks=2, timeout=180)
    assert done.returncode != 0 and time.monotonic() - began < 150
    assert not list(tmp_path.glob("told_*"))


RECORDS = """
import os
import tempfile
import numpy as np
import tensorflow as tf

folder = tempfile.mkdtemp()
for name, begin in (("a", 0), ("b", 20)):
    with tf.io.TFRecordWriter(os.path.join(folder, name)) as writer:
        for i in range(begin, begin + 21):
            writer.write(str(i))
seen = []


def note(x):
    seen.append(int(x))
    return x


def parse(record):
    value = tf.ensure_shape(tf.py_function(note, [tf.strings.to_number(record)], tf.float32), [])
    return tf.reshape(value, [1]), tf.reshape(value, [1])


files = tf.data.Dataset.list_files(os.path.join(folder, "*"))
ds = files.interleave(tf.data.TFRecordDataset, cycle_length=2).map(parse).shuffle(50).batch(4)
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
model.compile("sgd", "mse", metrics=["mae"])
history = model.fit(ds, epochs=2)
model.save("out_%s.keras" % os.environ.get("HOROVOD_RANK", "0"))
if os.environ.get("HOROVOD_RANK", "0") == "0":
    tf.keras.models.load_model("out_0.keras")
"""


def test_records_are_counted(tmp_path: Path) -> None:
    both = trained(converted(RECORDS) + TOLD, tmp_path, ranks=2)
    assert both[0]["weights"] == both[1]["weights"]
    everything = sorted([*range(0, 21), *range(20, 41)])
    for epoch in range(2):
        parts = [rank["seen"][21 * epoch : 21 * epoch + 21] for rank in both]
        assert sorted(parts[0] + parts[1]) == everything


def test_progress_is_shown_once(tmp_path: Path) -> None:
    program = """
import numpy as np
import tensorflow as tf

x = np.arange(64 * 4, dtype="float32").reshape(64, 4) / 400
y = x[:, :1] * 3 + 1
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
model.compile("sgd", "mse")
model.fit(x, y, verbose=2)
scores = model.evaluate(x, y, batch_size=16)
found = model.predict(x, batch_size=8)
told = {"scores": scores, "found": found.tolist()}
"""
    done = run(converted(program), tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = (done.stdout + done.stderr).replace("\r", "\n").splitlines()
    assert [line for line in lines if "4/4 [===" in line] and [line for line in lines if "8/8 [===" in line]
    assert not [line for line in lines if line.startswith("[1]<stdout>") and "[==" in line]
    one, other = told(tmp_path, 2)
    assert one == other


@pytest.mark.parametrize("ending", ["h5", "keras"])
def test_a_loaded_optimizer_averages_nothing(tmp_path: Path, ending: str) -> None:
    """Why a model that is loaded with its optimizer is refused: `hvd.load_model` leaves every rank to itself."""
    make = """
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,), kernel_initializer="ones")])
model.compile(tf.keras.optimizers.SGD(0.1), "mse")
model.save("model.ENDING")
told = {}
"""
    train = """
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd

hvd.init()
x = np.arange(64 * 4, dtype="float32").reshape(64, 4)[hvd.rank()::2] / 400
model = hvd.load_model("model.ENDING")
model.fit(x, x[:, :1] * 3 + 1, shuffle=False, verbose=0)
told = {"weights": [w.tolist() for w in model.get_weights()]}
"""
    trained(make.replace("ENDING", ending), tmp_path)
    one, other = trained(train.replace("ENDING", ending), tmp_path, ranks=2)
    assert one != other
