"""The harness around scripts of every idiom: what it counts is what was trained."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest

from rewriter.runner.process import HARNESS
from rewriter.runner.record import Record, Run
from rewriter.runner.validate import why_not_trained
from tests.envs import run_script, tf_env

pytestmark = pytest.mark.tf

DATA = """
import numpy as np
import tensorflow as tf
rng = np.random.RandomState(0)
x = rng.rand(100, 4).astype('float32')
y = x.sum(1, keepdims=True)
"""
MODEL = """
model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation='relu'), tf.keras.layers.Dense(1)])
model.compile(tf.keras.optimizers.Adam(0.01), 'mse')
"""
V1 = """
tf = tf.compat.v1
tf.disable_eager_execution()
"""
GRAPH = """
features = tf.placeholder(tf.float32, [None, 4])
labels = tf.placeholder(tf.float32, [None, 1])
loss = tf.reduce_mean(tf.square(tf.layers.dense(features, 1) - labels))
train = tf.train.AdamOptimizer(0.01).minimize(loss)
"""


def measure(env: str, folder: Path, script: str, mode: str = "parity", **config: object) -> Record:
    """The record of one rank's run, which must not have met trouble."""
    path, records = folder / "train.py", folder / "records"
    path.write_text(textwrap.dedent(script))
    records.mkdir(exist_ok=True)
    file = records / "rank-0.jsonl"
    file.unlink(missing_ok=True)
    asked = {"script": str(path), "records": str(records), "mode": mode, **config}
    (folder / "config.json").write_text(json.dumps(asked))
    done = run_script(tf_env(env), HARNESS, str(folder / "config.json"), timeout=120, cwd=folder)
    assert done.returncode == 0, done.stderr
    record = Record.read(file)
    assert not record.troubles, record.troubles
    return record


FORMS = {
    "fit": MODEL + "model.fit(x, y, batch_size=10, epochs=2, verbose=0)",
    "dataset": MODEL + "model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(10), epochs=2, verbose=0)",
    "steps_per_execution": MODEL.replace("'mse'", "'mse', steps_per_execution=5")
    + "model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(10), epochs=2, verbose=0)",
    "jit_compile": MODEL.replace("'mse'", "'mse', jit_compile=True") + "model.fit(x, y, batch_size=10, epochs=2)",
    "run_eagerly": MODEL.replace("'mse'", "'mse', run_eagerly=True") + "model.fit(x, y, batch_size=10, epochs=2)",
    "validation": MODEL + "model.fit(x, y, batch_size=10, epochs=2, validation_data=(x[:40], y[:40]), verbose=0)",
    "callbacks": MODEL + "model.fit(x, y, 10, 2, 0, [tf.keras.callbacks.TerminateOnNaN()])",
    "generator": MODEL
    + """
def batches():
    while True:
        for i in range(0, 100, 10):
            yield x[i:i + 10], y[i:i + 10]
model.fit(batches(), steps_per_epoch=10, epochs=2, verbose=0)
""",
    "train_step": """
class Mine(tf.keras.Model):
    def train_step(self, data):
        a, b = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(a, training=True) - b))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {'loss': loss}
inputs = tf.keras.Input((4,))
model = Mine(inputs, tf.keras.layers.Dense(1)(inputs))
model.compile('adam')
model.fit(x, y, batch_size=10, epochs=2, verbose=0)
""",
    "train_on_batch": MODEL
    + """
for _ in range(2):
    for i in range(0, 100, 10):
        model.train_on_batch(x[i:i + 10], y[i:i + 10])
""",
}
STEP = """
optimizer = tf.keras.optimizers.Adam(0.01)
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(a, training=True) - b))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
"""
RAW = """
w = tf.Variable(tf.zeros([4, 1]))
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(a @ w - b))
    w.assign_sub(0.1 * tape.gradient(loss, w))
"""
OVER_DATASET = """
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
for _ in range(2):
    for a, b in ds:
        step(a, b)
    for a, b in ds.take(2):
        a + b
"""
OVER_SLICES = """
for _ in range(2):
    for i in range(0, 100, 10):
        step(tf.constant(x[i:i + 10]), tf.constant(y[i:i + 10]))
"""
FUNCTION = "step = tf.function(step)\n"
LOOPS = {
    "eager": MODEL + STEP + OVER_DATASET,
    "eager slices": MODEL + STEP + OVER_SLICES,
    "function": MODEL + STEP + FUNCTION + OVER_DATASET,
    "function slices": MODEL + STEP + FUNCTION + OVER_SLICES,
    "jit": MODEL + STEP + "step = tf.function(step, jit_compile=True)\n" + OVER_DATASET,
    "raw function": RAW + FUNCTION + OVER_DATASET,
    "raw function slices": RAW + FUNCTION + OVER_SLICES,
    "raw eager": RAW + OVER_DATASET,
    "loop inside": MODEL
    + STEP
    + """
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(10)
@tf.function
def epoch():
    for a, b in ds:
        step(a, b)
epoch()
epoch()
""",
    "penalty": MODEL
    + """
optimizer = tf.keras.optimizers.Adam(0.01)
def step(a, b):
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(a)
            out = model(a)
        slope = inner.gradient(out, a)
        loss = tf.reduce_mean(tf.square(out - b)) + tf.reduce_mean(tf.square(slope))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
"""
    + OVER_DATASET,
}
FEED = """
    for i in range(0, 100, 10):
        session.run(train, {features: x[i:i + 10], labels: y[i:i + 10]})
    session.run(loss, {features: x, labels: y})
"""
SESSIONS = {
    "feed_dict": V1
    + GRAPH
    + "with tf.Session() as session:\n    session.run(tf.global_variables_initializer())"
    + FEED
    + FEED,
    "iterator": V1
    + GRAPH.replace(
        "features = tf.placeholder(tf.float32, [None, 4])\nlabels = tf.placeholder(tf.float32, [None, 1])",
        "dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat(2).batch(10)\n"
        "features, labels = tf.data.make_one_shot_iterator(dataset).get_next()",
    )
    + """
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(20):
        session.run([train, loss])
""",
    "monitored": V1
    + "tf.train.get_or_create_global_step()\n"
    + GRAPH.replace("minimize(loss)", "minimize(loss, tf.train.get_global_step())")
    + """
with tf.train.MonitoredTrainingSession(hooks=[tf.train.StopAtStepHook(20)]) as session:
    i = 0
    while not session.should_stop():
        session.run(train, feed_dict={features: x[i:i + 10], labels: y[i:i + 10]})
        i = (i + 10) % 100
""",
    "estimator": """
tf = tf.compat.v1
def model_fn(features, labels, mode):
    loss = tf.reduce_mean(tf.square(tf.layers.dense(features, 1) - labels))
    train = tf.train.AdamOptimizer(0.01).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)
def input_fn():
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(10)
tf.estimator.Estimator(model_fn, 'checkpoints').train(input_fn, steps=20)
""",
}


def totals(record: Record) -> tuple[int, int]:
    return sum(step.steps for step in record.steps), record.samples


def summed(record: Record, part: str = "train") -> list[tuple[float, ...]]:
    return [entry.sums for entry in record.data if entry.part == part]


def in_modes(forms: dict[str, str], timed: str) -> pytest.MarkDecorator:
    """All forms in parity runs, which see everything, and some as they are timed."""
    cases = [(form, "parity") for form in forms] + [(form, "speed") for form in timed.split(", ")]
    return pytest.mark.parametrize(("form", "mode"), cases)


@in_modes(FORMS, "dataset, steps_per_execution")
@pytest.mark.parametrize("env", ["tf215", "tf221"])
def test_keras(env: str, form: str, mode: str, tmp_path: Path) -> None:
    record = measure(env, tmp_path, DATA + FORMS[form], mode)
    assert totals(record) == (20, 200)
    assert record.reason == "finished"
    kinds = {loop.kind for loop in record.loops}
    assert kinds == {"train_on_batch" if form == "train_on_batch" else "fit"}
    if mode == "parity":
        assert record.steps[-1].loss is not None
        whole = sum(entry.samples for entry in record.data if entry.part == "train")
        assert whole == 200
    if form == "validation" and mode == "parity":
        assert [e.samples for e in record.data if e.part == "test"] == [40, 40]
        assert "val_loss" in record.epochs[0].logs


@in_modes(LOOPS, "function, raw function slices, loop inside")
@pytest.mark.parametrize("env", ["tf215", "tf221"])
def test_loops(env: str, form: str, mode: str, tmp_path: Path) -> None:
    record = measure(env, tmp_path, DATA + LOOPS[form], mode)
    assert totals(record) == (20, 200)
    if mode == "parity":
        assert record.steps[-1].loss is not None
        if form != "loop inside":
            assert sum(entry.samples for entry in record.data) == 200


@in_modes(SESSIONS, "iterator")
@pytest.mark.parametrize("env", ["tf115", "tf215"])
def test_sessions(env: str, form: str, mode: str, tmp_path: Path) -> None:
    record = measure(env, tmp_path, DATA + SESSIONS[form], mode)
    assert totals(record) == (20, 200)
    if mode == "parity":
        assert record.steps[-1].loss is not None
        assert sum(entry.samples for entry in record.data if entry.part == "train") == 200
        evaluated = sum(entry.samples for entry in record.data if entry.part == "test")
        assert evaluated == (200 if form == "feed_dict" else 0)


@pytest.mark.parametrize("env", ["tf115", "tf215"])
def test_keras_in_graph_mode(env: str, tmp_path: Path) -> None:
    script = (
        DATA + "tf.compat.v1.disable_v2_behavior()\n" + FORMS["fit"].replace("tf.keras.optimizers.Adam(0.01)", "'adam'")
    )
    record = measure(env, tmp_path, script)
    assert totals(record) == (20, 200)
    assert record.loops[0].loss == "batch"


@pytest.mark.parametrize("env", ["tf115", "tf215"])
def test_fit_generator(env: str, tmp_path: Path) -> None:
    record = measure(env, tmp_path, DATA + FORMS["generator"].replace("model.fit(", "model.fit_generator("))
    assert totals(record) == (20, 200)


MIRRORED = """
cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.Adam(0.01)
    model.build((None, 4))
    optimizer.build(model.trainable_variables)
def step(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(batch[0], training=True) - batch[1])) / 10
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
@tf.function
def everywhere(batch):
    strategy.run(step, args=(batch,))
for _ in range(2):
    for batch in strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(10)):
        everywhere(batch)
"""


REPLICAS = {
    "loop": MIRRORED,
    "loop in scope": MIRRORED.replace("        everywhere", "        with strategy.scope(): everywhere"),
    "fit": MIRRORED[: MIRRORED.index("def step")]
    + """
    model.compile(optimizer, 'mse')
model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(10), epochs=2, verbose=0)
""",
}


@pytest.mark.parametrize("form", REPLICAS)
@pytest.mark.parametrize("env", ["tf215", "tf221"])
def test_replicas_make_one_step_together(env: str, form: str, tmp_path: Path) -> None:
    record = measure(env, tmp_path, DATA + REPLICAS[form])
    assert totals(record) == (20, 200)
    assert sum(entry.samples for entry in record.data) == 200
    losses = [step.loss for step in record.steps if step.loss is not None]
    assert len(losses) == 20 and losses[-1] < losses[0]


FIT = FORMS["fit"]
ENDS = {
    "os._exit": FIT + "\nimport os\nos._exit(0)",
    "thread": "import threading\n"
    + FIT.replace("model.fit(", "threading.Thread(target=lambda: model.fit(")
    + ").start()",
    "fork": FIT + "\nimport os, sys\nif os.fork() == 0:\n    sys.exit(0)\nos.wait()",
    "fork before": FIT.replace(
        "model.fit", "import os, sys\nif os.fork() == 0:\n    sys.exit(0)\nos.wait()\nmodel.fit"
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_training_ends_when_the_process_does(end: str, tmp_path: Path) -> None:
    record = measure("tf215", tmp_path, DATA + ENDS[end])
    assert totals(record) == (20, 200)
    assert record.reason == "finished"
    assert not record.elsewhere


FORKS = """
import multiprocessing, random
def work(train):
    {train}
    print(random.random(), flush=True)
if __name__ == '__main__':
    for _ in range(2):
        child = multiprocessing.get_context('fork').Process(target=work, args=(1,))
        child.start()
        child.join()
    open('drawn', 'w').write(str(random.random()))
"""
TRAINS = """import tensorflow as tf
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
    model.fit(tf.ones([20, 2]), tf.ones([20, 1]), verbose=0)"""


def test_training_in_a_fork_is_told(tmp_path: Path) -> None:
    record = measure("tf215", tmp_path, FORKS.format(train=TRAINS))
    assert record.elsewhere
    assert totals(record) == (0, 0)
    assert (
        why_not_trained(Run("finished", 0, 1.0, [record])) == "trains in processes that it forks, which are not watched"
    )


def test_forks_draw_the_same_in_every_run(tmp_path: Path) -> None:
    draws = "open('drawn', 'a').write(str(random.random()) + ' ')"
    drawn = []
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        measure("tf215", tmp_path / run, FORKS.format(train=draws).replace("'drawn', 'w'", "'drawn', 'a'"))
        drawn.append((tmp_path / run / "drawn").read_text().split())
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3  # forks differ


def test_keras_on_something_else_is_told(tmp_path: Path) -> None:
    (tmp_path / "keras.py").write_text("class backend:\n    backend = staticmethod(lambda: 'jax')")
    (tmp_path / "train.py").write_text("import keras")
    (tmp_path / "records").mkdir()
    config = {"script": str(tmp_path / "train.py"), "records": str(tmp_path / "records"), "mode": "speed"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = run_script(Path(sys.executable), HARNESS, str(tmp_path / "config.json"), timeout=60)
    record = Record.read(tmp_path / "records" / "rank-0.jsonl")
    assert record.troubles == ["Keras on jax: only TensorFlow is watched"], done.stderr


MANY = DATA + "x, y = np.tile(x, (30, 1)), np.tile(y, (30, 1))\n"
COSTS = {
    "fit": MODEL + "model.fit(x, y, batch_size=10, epochs=1, verbose=0)",
    "eager": RAW + OVER_DATASET,
    "function": MODEL + STEP + FUNCTION + OVER_DATASET,
    "session": SESSIONS["feed_dict"].replace("range(0, 100, 10)", "range(0, 3000, 10)"),
}


@pytest.mark.parametrize("form", COSTS)
def test_recording_costs_little(form: str, tmp_path: Path) -> None:
    record = measure("tf215", tmp_path, MANY + COSTS[form], "speed")
    steps, _ = totals(record)
    assert steps >= 300
    assert 0 < record.overhead / steps < 200e-6


SLOW = """
import time
class Slow(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.delay = DELAYS[min(epoch, 1)]
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(self.delay)
model.fit(x, y, batch_size=10, epochs=50, verbose=0, callbacks=[Slow()])
"""


@pytest.mark.parametrize(
    ("delays", "mode", "whole"),
    [((0.02, 0.02), "speed", True), ((0.02, 0.02), "parity", False), ((0.02, 0.2), "speed", False)],
    ids=["short epochs", "parity", "a long one"],
)
def test_a_run_ends_with_its_epoch(delays: tuple[float, float], mode: str, whole: bool, tmp_path: Path) -> None:
    """So that what epochs begin with counts as often as it happens; but a run lasts at most twice as long."""
    record = measure("tf215", tmp_path, f"{DATA}DELAYS = {delays}{MODEL}{SLOW}", mode, seconds=0.6)
    samples = sum(step.samples for step in record.steps)
    assert (samples % 100 == 0) is whole
    spent = record.steps[-1].time - record.steps[0].time
    assert 0.6 <= spent <= (1.2 + delays[1] + 0.1 if mode == "speed" else 0.8)
    assert len(record.epochs) == samples // 100 > 0


GAN = """
generator = tf.keras.Sequential([tf.keras.layers.Dense(4)])
critic = tf.keras.Sequential([tf.keras.layers.Dense(1)])
first, second = tf.keras.optimizers.SGD(0.01), tf.keras.optimizers.SGD(0.01)
DECORATOR
def step(real):
    with tf.GradientTape() as tape, tf.GradientTape() as other:
        made = generator(tf.ones_like(real))
        g_loss = tf.reduce_mean(critic(made) ** 2)
        d_loss = tf.reduce_mean(critic(real) ** 2) - g_loss
    first.apply_gradients(zip(tape.gradient(g_loss, generator.trainable_variables), generator.trainable_variables))
    second.apply_gradients(zip(other.gradient(d_loss, critic.trainable_variables), critic.trainable_variables))
for _ in range(2):
    for real in tf.data.Dataset.from_tensor_slices(x).batch(10):
        step(real)
"""


@pytest.mark.parametrize("samples", [0, 120])
def test_two_optimizers_make_one_step(samples: int, tmp_path: Path) -> None:
    """Run line by line, the script may be stopped between the two; compiled, it cannot."""
    records = [
        measure("tf221", tmp_path, DATA + GAN.replace("DECORATOR", decorator), samples=samples)
        for decorator in ("", "@tf.function")
    ]
    eager, compiled = ([(step.steps, step.samples) for step in record.steps] for record in records)
    whole = samples // 10 or 20
    assert compiled[:whole] == [(2, 10)] * whole
    assert eager[: whole - 1] == [(2, 10)] * (whole - 1)
    assert all(steps == 2 for steps, _ in eager)
    losses = [[step.loss for step in record.steps] for record in records]
    assert losses[0] == pytest.approx(losses[1][: len(losses[0])], rel=1e-5)


WEIGHTED = {
    "fit": "model.fit(x, y, batch_size=10, sample_weight=WEIGHTS, verbose=0)",
    "train_on_batch": "model.train_on_batch(x, y=y, sample_weight=WEIGHTS)",
}


@pytest.mark.parametrize("form", WEIGHTED)
def test_weights_of_samples_are_data(form: str, tmp_path: Path) -> None:
    seen = []
    for weights in ("np.ones(100)", "np.full(100, 2.0)"):
        seen += summed(measure("tf215", tmp_path, DATA + MODEL + WEIGHTED[form].replace("WEIGHTS", weights)))
    assert seen[0][:2] == pytest.approx(seen[1][:2])
    assert seen[0][2:] != pytest.approx(seen[1][2:])
