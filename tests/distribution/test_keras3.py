"""Programs on Keras 3 (TensorFlow 2.18), converted and run on two ranks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.distribution.ranks import converted, run, trained
from tests.envs import run_script, tf_env

pytestmark = pytest.mark.tf

ENV = "tf218"


def of(source: str, **options: Any) -> str:
    return converted(source, env=ENV, **options)


def close(one: list[Any], other: list[Any], **tolerance: float) -> None:
    """Nested lists of numbers are nearly equal."""
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        if isinstance(a, list):
            close(a, b, **tolerance)
        else:
            assert a == pytest.approx(b, **tolerance)


ARRAYS = """
import os
import keras
import numpy as np

RANK = os.environ.get("HOROVOD_RANK", "0")
keras.utils.set_random_seed(3)
seen = []


class Recorder(keras.layers.Layer):
    def call(self, x, training=None):
        if training:
            seen.append(x[:, 0].numpy().tolist())
        return x


x = np.arange(96 * 4, dtype="float32").reshape(96, 4) / 400
y = x[:, :1] * 3 + 1
model = keras.Sequential([keras.Input((4,)), Recorder(), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.5), "mse", run_eagerly=True)
checkpoint = keras.callbacks.ModelCheckpoint("best_%s.weights.h5" % RANK, monitor="val_loss", save_best_only=True, save_weights_only=True)
history = model.fit(
    x, y, batch_size=int(os.environ["BATCH"]), epochs=3, shuffle=False, validation_data=(x, y),
    callbacks=[keras.callbacks.CSVLogger("log_%s.csv" % RANK), checkpoint],
)
print("ready on rank", RANK)
plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
plain.compile(keras.optimizers.Adam(0.001), "mse")
plain.fit(x, y, epochs=1, verbose=0)
plain.save("final_%s.keras" % RANK)
model.load_weights("best_%s.weights.h5" % RANK)
"""
TOLD = """
told = {"loss": history.history["loss"], "weights": [w.tolist() for w in model.get_weights()], "seen": seen}
"""
LOAD = """
import sys
import keras
import numpy as np

model = keras.models.load_model("final_0.keras")
assert type(model.optimizer) is keras.optimizers.Adam and int(model.optimizer.iterations) == 2
model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
assert "horovod" not in sys.modules
"""


def test_the_same_training(tmp_path: Path) -> None:
    """Two ranks with half of the batch each: loss, weights, samples and files; what is saved loads without Horovod."""
    (one,) = trained(ARRAYS + TOLD, tmp_path / "one", env=ENV, BATCH="16")
    text = of(ARRAYS, lr_scaling=False)
    both = trained(text + TOLD, tmp_path / "two", ranks=2, env=ENV, BATCH="8")
    assert both[0]["weights"] == both[1]["weights"]
    for rank in both:
        assert rank["loss"] == pytest.approx(one["loss"], rel=1e-4)
    written = sorted(p.name for p in (tmp_path / "two").iterdir() if not p.name.startswith(("told", "launch", "train")))
    assert written == ["best_0.weights.h5", "final_0.keras", "log_0.csv"]
    for epoch in range(3):  # every sample once per epoch, on one of the ranks
        parts = [[v for batch in rank["seen"][6 * epoch : 6 * epoch + 6] for v in batch] for rank in both]
        assert len(parts[0]) == len(parts[1]) == 48
        assert sorted(parts[0] + parts[1]) == sorted(v for batch in one["seen"][:6] for v in batch)
    script = tmp_path / "two" / "load.py"
    script.write_text(LOAD)
    done = run_script(tf_env(ENV), script, timeout=120)
    assert done.returncode == 0, done.stderr


DATASET = """
import os
import tensorflow as tf
import keras
import numpy as np

RANK = int(os.environ.get("HOROVOD_RANK", "0"))
keras.utils.set_random_seed(RANK)
seen, rates = [], []


def note(x):
    seen.append(int(x))
    return x


class Rates(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        rates.append(float(self.model.optimizer.learning_rate))


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(3)
        self.norm = keras.layers.BatchNormalization()
        self.out = keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.out(self.norm(self.hidden(x), training=training))


source = np.arange(45)
ds = tf.data.Dataset.from_tensor_slices(source).shuffle(45).map(lambda i: tf.ensure_shape(tf.py_function(note, [i], tf.int64), []))
ds = ds.map(lambda i: (tf.reshape(tf.cast(i, tf.float32) / 45, [1]), tf.reshape(tf.cast(i, tf.float32) / 45, [1]))).batch(4)
model = Net()
optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
model.compile(optimizer, "mse", metrics=["mae"])
stop = keras.callbacks.EarlyStopping(monitor="loss", min_delta=1e9, patience=9)
lower = keras.callbacks.ReduceLROnPlateau(monitor="loss", min_delta=1e9, patience=6, factor=0.5)
history = model.fit(ds, epochs=30, callbacks=[stop, lower, Rates()])
weights = [w.numpy().tolist() for w in model.trainable_weights]
slots = [v.numpy().tolist() for v in optimizer.variables]
"""
TOLD_DATASET = """
told = {"loss": history.history["loss"], "weights": weights, "slots": slots, "seen": seen, "rates": rates}
"""


def test_late_weights_decisions_and_the_warm_up(tmp_path: Path) -> None:
    """The ranks begin with other weights, made in the first step, and go on with those of rank 0."""
    both = trained(of(DATASET) + TOLD_DATASET, tmp_path, ranks=2, env=ENV)
    for what in ("weights", "slots", "rates"):
        assert both[0][what] == both[1][what]
    epochs = len(both[0]["loss"])
    assert epochs == len(both[1]["loss"]) < 30  # both stopped, and together
    assert both[0]["loss"] == pytest.approx(both[1]["loss"], rel=1e-6)
    for epoch in range(epochs):
        parts = [rank["seen"][22 * epoch : 22 * epoch + 22] for rank in both]
        assert sorted(parts[0] + parts[1]) == list(range(44))  # one of 45 has no partner
    steps = 6
    wanted = [0.1 * (1 + min((i + 1) / steps, 5) / 5) for i in range(steps * epochs)]  # Goyal et al.: from 0.1 to 0.2
    halved = next(i for i, (rate, full) in enumerate(zip(both[0]["rates"], wanted, strict=True)) if rate < 0.75 * full)
    assert halved % steps == 0 and halved // steps > 5
    assert both[0]["rates"][:halved] == pytest.approx(wanted[:halved], rel=1e-5)
    assert both[0]["rates"][halved] == pytest.approx(0.1, rel=1e-5)


MIXED = """
import os
import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(int(os.environ.get("HOROVOD_RANK", "0")))
x = np.random.RandomState(0).rand(64, 4).astype("float32")
y = x[:, :1] * 3


def plan(epoch):
    return 0.1 if epoch < 3 else 0.01


def pick(name):
    return keras.optimizers.get(name)


class Halves(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1 / (1.0 + tf.cast(step, tf.float32))


def build(optimizer, dtype):
    keras.mixed_precision.set_global_policy(dtype)
    model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(1, dtype="float32")])
    model.compile(optimizer, "mse", jit_compile=True, steps_per_execution=2)
    return model


first = build("sgd", "mixed_float16")
history = first.fit(x, y, epochs=4, callbacks=[keras.callbacks.LearningRateScheduler(plan)])
second = build(pick("adam"), "mixed_bfloat16")
second.fit(x, y, epochs=2)
third = build(keras.optimizers.RMSprop(Halves()), "float32")
third.fit(x, y, epochs=2)
scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=2.0**20)
fourth = build(scaled, "mixed_float16")
fourth.fit(x * (1 + 100 * int(os.environ.get("HOROVOD_RANK", "0"))), y, epochs=20)  # soon, infinities on one rank only
weights = [w.tolist() for m in (first, second, third, fourth) for w in m.get_weights()]
told = {
    "weights": weights, "rates": [float(r) for r in history.history["learning_rate"]], "kind": type(first.optimizer).__name__,
    "scale": float(scaled.dynamic_scale), "steps": int(scaled.inner_optimizer.iterations),
}
"""


def test_precisions_plans_and_schedules(tmp_path: Path) -> None:
    """The scaling of the loss is around the averaging: all ranks skip the same steps."""
    both = trained(of(MIXED), tmp_path, ranks=2, env=ENV)
    assert both[0] == both[1]
    assert both[0]["kind"] == "LossScaleOptimizer"
    assert both[0]["rates"] == pytest.approx(
        [0.1, 0.1, 0.1, 0.01], rel=1e-5
    )  # the schedule of its own: nothing is scaled
    assert both[0]["scale"] < 2.0**16 and 0 < both[0]["steps"] < 20


STEPS = """
import os
import tensorflow as tf
import keras
import numpy as np

RANK = int(os.environ.get("HOROVOD_RANK", "0"))
keras.utils.set_random_seed(3)
x = np.arange(96 * 4, dtype="float32").reshape(96, 4) / 400
y = x[:, :1] * 3 + 1


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(3, activation="tanh")
        self.out = keras.layers.Dense(1)
        self.mean = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.out(self.hidden(inputs))

    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs, training=True) - targets) ** 2)
        gradients = tape.gradient(loss, self.trainable_weights)
        gradients = [tf.clip_by_norm(g, 0.3) for g in gradients]
        self.optimizer.apply(gradients, self.trainable_weights)
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}

    @property
    def metrics(self):
        return [self.mean]


class GAN(keras.Model):
    def __init__(self, critic, generator):
        super().__init__()
        self.critic = critic
        self.generator = generator

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    def train_step(self, real):
        noise = tf.random.normal((tf.shape(real)[0], 2))
        with tf.GradientTape(persistent=True) as tape:
            fake = self.generator(noise, training=True)
            d_loss = self.loss_fn(tf.ones_like(real[:, :1]), self.critic(real)) + self.loss_fn(tf.zeros_like(real[:, :1]), self.critic(fake))
            g_loss = self.loss_fn(tf.ones_like(real[:, :1]), self.critic(fake))
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, self.critic.trainable_weights), self.critic.trainable_weights))
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights))
        del tape
        return {"d_loss": d_loss, "g_loss": g_loss}


model = Net()
model.compile(optimizer=keras.optimizers.Adam(0.01))
history = model.fit(x, y, batch_size=int(os.environ["BATCH"]), epochs=3, shuffle=False)
keras.utils.set_random_seed(RANK)
gan = GAN(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(4)]))
adam = keras.optimizers.Adam(0.01)
gan.compile(d_optimizer=adam, g_optimizer=keras.optimizers.RMSprop(0.01), loss_fn=keras.losses.BinaryCrossentropy(from_logits=True))
ds = tf.data.Dataset.from_tensor_slices(x).shuffle(96).batch(8)
logs = gan.fit(ds, epochs=2).history
told = {
    "losses": history.history["loss"], "weights": [w.numpy().tolist() for w in model.trainable_weights],
    "gan": [w.numpy().tolist() for w in gan.weights], "slots": [v.numpy().tolist() for o in (gan.d_optimizer, gan.g_optimizer) for v in o.variables],
    "logs": logs,
}
"""


def test_train_steps_of_their_own(tmp_path: Path) -> None:
    """Gradients are averaged before they are clipped; a GAN with two optimizers and late weights."""
    (one,) = trained(STEPS, tmp_path / "one", env=ENV, BATCH="16")
    both = trained(of(STEPS, lr_scaling=False), tmp_path / "two", ranks=2, env=ENV, BATCH="8")
    for what in ("weights", "gan", "slots", "losses", "logs"):
        assert both[0][what] == both[1][what]
    close(one["weights"], both[0]["weights"], abs=2e-5)
    assert both[0]["losses"] == pytest.approx(one["losses"], rel=1e-4)


LOOP = """
import os
import tensorflow as tf
import keras
import numpy as np

RANK = int(os.environ.get("HOROVOD_RANK", "0"))
keras.utils.set_random_seed(3)
x = np.arange(96 * 4, dtype="float32").reshape(96, 4) / 400
y = x[:, :1] * 3 + 1
seen, losses = [], []
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(int(os.environ["BATCH"]))
model = keras.Sequential([keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
scale = tf.Variable(1.0)
optimizer = keras.optimizers.Adam(0.01)
other = keras.optimizers.SGD(0.01)
mean = keras.metrics.Mean()


@tf.function
def train_step(net, inputs, targets):
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_mean((scale * net(inputs, training=True) - targets) ** 2)
    gradients = tape.gradient(loss, net.trainable_variables)
    gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
    optimizer.apply_gradients(zip(gradients, net.trainable_variables))
    other.apply([tape.gradient(loss, scale)], [scale])
    mean.update_state(loss)
    return loss


for epoch in range(3):
    mean.reset_state()
    for step, (inputs, targets) in enumerate(dataset):
        seen += inputs[:, 0].numpy().tolist()
        loss = train_step(model, inputs, targets)
    losses.append(float(mean.result()))
    model.save("model_%d.keras" % RANK)
told = {"losses": losses, "weights": [w.tolist() for w in [*model.get_weights(), scale.numpy()]], "seen": seen,
        "slots": [v.numpy().tolist() for v in optimizer.variables]}
"""


def test_a_loop_with_a_tape(tmp_path: Path) -> None:
    text = of(LOOP, lr_scaling=False)
    (one,) = trained(LOOP, tmp_path / "one", env=ENV, BATCH="16")
    both = trained(text, tmp_path / "two", ranks=2, env=ENV, BATCH="8")
    for what in ("weights", "slots"):
        assert both[0][what] == both[1][what]
        close(one[what], both[0][what], abs=2e-5)
    for epoch, loss in enumerate(one["losses"]):
        assert sum(rank["losses"][epoch] for rank in both) / 2 == pytest.approx(loss, rel=1e-4)
        parts = [rank["seen"][48 * epoch : 48 * epoch + 48] for rank in both]
        assert sorted(parts[0] + parts[1]) == sorted(one["seen"][:96])
    assert [p.name for p in (tmp_path / "two").glob("*.keras")] == ["model_0.keras"]
    # whatever the ranks begin with, they go on from what rank 0 has
    text = (
        of(LOOP)
        .replace("set_random_seed(3)", "set_random_seed(3 + RANK)")
        .replace("Variable(1.0)", "Variable(1.0 + RANK)")
    )
    both = trained(text, tmp_path / "other", ranks=2, env=ENV, BATCH="8")
    for what in ("weights", "slots"):
        assert both[0][what] == both[1][what]
    assert any(slot == pytest.approx(0.02) for slot in both[0]["slots"] if isinstance(slot, float))  # the scaled rate


DIES = """
import os
import keras
import numpy as np


class Dies(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and os.environ.get("HOROVOD_RANK") == "1":
            os._exit(3)


x, y = np.ones((64, 4)), np.ones((64, 1))
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, epochs=10_000, callbacks=[Dies()])
told = {}
"""


def test_a_rank_that_dies_ends_the_job(tmp_path: Path) -> None:
    began = time.monotonic()
    done = run(of(DIES), tmp_path, ranks=2, env=ENV, timeout=180)
    assert done.returncode != 0 and time.monotonic() - began < 150
    assert not list(tmp_path.glob("told_*"))
