"""`validate` with several ranks, workers and replicas: what is converted trains the same, what is wrong is found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rewriter.runner.parity import batches, compare
from rewriter.runner.report import as_json
from rewriter.runner.validate import Conditions, Validation, pair, start_of, validate
from tests.cli import ROOT
from tests.distribution.ranks import converted
from tests.envs import tf_env

from .test_sandbox import needs_proc

pytestmark = pytest.mark.tf


def thorough(*values: object) -> Any:
    """A case that shows in another form what one beside it shows."""
    return pytest.param(*values, marks=pytest.mark.thorough)


DATA = """
import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
x = rng.rand(512, 8).astype("float32")
y = (x.sum(1, keepdims=True) > 4).astype("float32")
"""
SEEDED = DATA + "tf.keras.utils.set_random_seed(1)\n"
MODEL = """
model = tf.keras.Sequential([
    tf.keras.layers.Dense(16, activation="relu", input_shape=(8,)), tf.keras.layers.Dense(1, activation="sigmoid"),
])
"""
FIT = (
    SEEDED
    + MODEL
    + """
model.compile(tf.keras.optimizers.Adam(0.003), "binary_crossentropy")
model.fit(x, y, batch_size=32, epochs=6, shuffle=False, validation_data=(x[:128] * 0.9, y[:128]))
"""
)
#: A schedule, and batches that `fit` is given.
DATASET = (
    SEEDED
    + MODEL
    + """
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
rate = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 16, 0.9)
model.compile(tf.keras.optimizers.SGD(rate, momentum=0.5), "binary_crossentropy", steps_per_execution=4)
model.fit(dataset, epochs=6)
"""
)
TAPE = (
    SEEDED
    + """
model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.5)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)


@tf.function
def train_step(inputs, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(inputs, training=True) - targets) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


for epoch in range(6):
    for inputs, targets in dataset:
        loss = train_step(inputs, targets)
    print(epoch, float(loss))
"""
)
EAGER = TAPE.replace("@tf.function\n", "")
STEP = (
    SEEDED
    + """

class Net(tf.keras.Sequential):
    def train_step(self, data):
        inputs, targets = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs, training=True) - targets) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


model = Net([tf.keras.layers.Dense(16, activation="relu", input_shape=(8,)), tf.keras.layers.Dense(1)])
model.compile(optimizer=tf.keras.optimizers.legacy.Adam(0.01))
model.fit(x, y, batch_size=32, epochs=6, shuffle=False)
"""
)
GRAPH = DATA.replace("import tensorflow as tf", "import tensorflow.compat.v1 as tf\n\ntf.disable_v2_behavior()") + (
    "tf.set_random_seed(1)\n"
)
#: Batches that are cut out of arrays by the script itself.
FED = (
    GRAPH
    + """
a = tf.placeholder(tf.float32, [None, 8])
b = tf.placeholder(tf.float32, [None, 1])
loss = tf.losses.sigmoid_cross_entropy(b, tf.layers.dense(tf.layers.dense(a, 16, tf.nn.relu), 1))
train = tf.train.AdamOptimizer(0.003).minimize(loss)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(6):
        for i in range(0, len(x), 32):
            _, value = sess.run([train, loss], feed_dict={a: x[i:i + 32], b: y[i:i + 32]})
        print(epoch, value)
"""
)
MONITORED = (
    GRAPH
    + """
a, b = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(32)).get_next()
loss = tf.losses.sigmoid_cross_entropy(b, tf.layers.dense(tf.layers.dense(a, 16, tf.nn.relu), 1))
step = tf.train.get_or_create_global_step()
rate = tf.train.exponential_decay(0.1, step, 32, 0.9)
train = tf.train.MomentumOptimizer(rate, 0.5).minimize(loss, global_step=step)
with tf.train.MonitoredTrainingSession(hooks=[tf.train.StopAtStepHook(last_step=96)]) as sess:
    while not sess.should_stop():
        sess.run(train)
"""
)


def judged(folder: Path, original: str, rewritten: str, *, env: str = "tf215", ranks: int = 2) -> Validation:
    (folder / "train.py").write_text(original)
    (folder / "train_many.py").write_text(rewritten)
    before, after = pair(folder / "train.py", folder / "train_many.py", [])
    conditions = Conditions(str(tf_env(env)), 60, timeout=240, ranks=ranks, start=start_of(after))
    result = validate(before, after, conditions, seeds=2, pairs=0)
    assert not result.failure, result.failure
    return result


def kinds(result: Validation, fails: bool = True) -> set[str]:
    assert result.parity is not None
    return {finding.kind for finding in result.parity.findings if finding.fails == fails}


def told(result: Validation) -> list[str]:
    assert result.parity is not None
    return [f"{f.kind}: {f.message}" for f in result.parity.findings]


def losses(folder: Path, text: str, env: str, **updates: object) -> list[tuple[int, float]]:
    """Of every batch, or the mean of the epoch so far, by the samples seen in the epoch."""
    (folder / "train.py").write_text(text)
    script, _ = pair(folder / "train.py", folder / "train.py", [])
    run = Conditions(str(tf_env(env)), 60, timeout=240).run(script, "parity", updates={"every": 1, **updates})
    assert run.ending == "finished", run.stderr
    (record,) = run.records
    assert not record.troubles
    assert [one.every for one in record.updates] == [updates.get("every", 1)]
    found, seen, epoch = [], 0, 0
    for step in record.steps:
        seen, epoch = (seen if step.epoch == epoch else 0) + step.samples, step.epoch
        assert step.loss is not None
        found.append((seen, step.loss))
    return found


@pytest.mark.parametrize(
    ("text", "env"),
    [
        (FIT, "tf221"),
        thorough(DATASET, "tf221"),
        thorough(DATASET.replace("optimizers.SGD(rate,", "optimizers.legacy.SGD(rate,"), "tf215"),
        thorough(FIT.replace("Adam(0.003)", "legacy.Adam(0.003, decay=0.05)"), "tf215"),
        (FIT.replace(MODEL, "tf.keras.mixed_precision.set_global_policy('mixed_float16')" + MODEL), "tf215"),
        thorough(FIT.replace(MODEL, "tf.keras.mixed_precision.set_global_policy('mixed_float16')" + MODEL), "tf221"),
        (FED, "tf115"),
        thorough(MONITORED, "tf115"),
    ],
    ids=["fit-2.21", "schedule-2.21", "legacy", "decay", "scaled-2.15", "scaled-2.21", "fed-1.15", "monitored-1.15"],
)
def test_batches_that_are_put_together(text: str, env: str, tmp_path: Path) -> None:
    """Two batches of 32 an update are one of 64, at rates that are given."""
    rates = [[0.01 + 0.002 * i for i in range(24)]]
    ours = losses(tmp_path, text, env, every=2, rates=rates)
    twice = (
        text.replace("batch_size=32", "batch_size=64")
        .replace("batch(32)", "batch(64)")
        .replace("_execution=4", "_execution=2")
    )
    twice = (
        twice.replace("len(x), 32", "len(x), 64").replace("i + 32", "i + 64").replace("last_step=96", "last_step=48")
    )
    theirs = losses(tmp_path, twice, env, rates=rates)
    if "fit(" in text:  # running means
        ours = [(at, loss) for at, loss in ours if at in {at for at, _ in theirs}]
    else:
        ours = [(second[0], (first[1] + second[1]) / 2) for first, second in zip(ours[::2], ours[1::2], strict=False)]
    assert [at for at, _ in ours][: len(theirs)] == [at for at, _ in theirs]
    rel = 1e-2 if "float16" in text else 1e-5
    assert [loss for _, loss in ours][: len(theirs)] == pytest.approx([loss for _, loss in theirs], rel=rel)


@pytest.mark.parametrize(
    ("original", "rates"),
    [
        (FIT, "2 times after 3 epochs"),
        thorough(DATASET, "2 times"),
        (TAPE, ""),
        thorough(EAGER, ""),
        thorough(STEP, "times"),
        (FED, "2 times"),
        thorough(MONITORED, "2 times"),
    ],
    ids=["fit", "dataset", "tape", "eager", "train_step", "fed", "monitored"],
)
def test_what_is_converted_trains_the_same(original: str, rates: str, tmp_path: Path) -> None:
    """Nothing is edited, learning rates are scaled; every loss is that of one process with the same global batch."""
    result = judged(tmp_path, original, converted(original))
    assert result.verdict == "pass" and result.parity, told(result)
    if "def train_step(self" not in original:  # which tells batches' losses where means are expected
        assert result.parity.exact, result.parity.tolerance
        assert result.as_is and len(result.runs) <= 5
        assert [run["purpose"] for run in as_json(result)["runs"]][:2] == ["as-is", "parity"]
    assert (result.batches.original, result.batches.rewritten, result.batches.every) == (32, 64, 2)
    assert any("2 batches of 32 samples an update" in text for text in told(result))
    assert not rates or any(rates in text for text in told(result)), told(result)


@pytest.mark.thorough
def test_what_is_drawn_at_random(tmp_path: Path) -> None:
    """Shuffled, and no seed: compared as curves."""
    shuffled = FIT.replace("shuffle=False, ", "").replace("tf.keras.utils.set_random_seed(1)\n", "")
    result = judged(tmp_path, shuffled, converted(shuffled))
    assert result.verdict == "pass" and result.parity and not result.parity.exact, told(result)


def test_mixed_precision(tmp_path: Path) -> None:
    """All of -O2 in the same rewrite: compared as curves, at the rates that the scaling of the loss lets through."""
    many = converted(DATASET, level=2, select="mixed-precision prefetch", amp_dtype="float16")
    assert "mixed_float16" in many
    result = judged(tmp_path, DATASET, many)
    assert result.verdict == "pass" and result.as_is, told(result)


def test_who_halves_the_batch_by_hand(tmp_path: Path) -> None:
    result = judged(tmp_path, TAPE, converted(TAPE, lr_scaling=False).replace(".batch(32)", ".batch(16)"))
    assert result.verdict == "pass" and result.batches.same and not result.as_is, told(result)


def test_updates_that_no_optimizer_makes(tmp_path: Path) -> None:
    """They cannot be put together: that is said, and the training is compared as it is."""
    own = EAGER.replace(
        "    optimizer.apply_gradients(zip(gradients, model.trainable_variables))",
        "    for gradient, variable in zip(gradients, model.trainable_variables):\n        variable.assign_sub(0.1 * gradient)",
    )
    many = own.replace(
        "import tensorflow as tf", "import tensorflow as tf\nimport horovod.tensorflow as hvd\nhvd.init()"
    )
    many = many.replace(".batch(32)", ".shard(hvd.size(), hvd.rank()).batch(32)")
    many = many.replace("tape.gradient", "hvd.DistributedGradientTape(tape).gradient").replace("0.1 *", "0.2 *")
    runs = []
    for name, text, ranks in (("train.py", own, 1), ("train_many.py", many, 2)):
        (tmp_path / name).write_text(text)
        script, _ = pair(tmp_path / name, tmp_path / name, [])
        runs.append(Conditions(str(tf_env("tf215")), 60, timeout=240, ranks=2).run(
            script, "parity", ranks=ranks, updates={"every": 1}
        ))  # fmt: skip
    wanted = batches(*runs)
    found = compare(runs[:1], runs[1:], 2, wanted=wanted).findings
    told = next(finding for finding in found if finding.kind == "batch")
    assert not told.fails and "could not be compared with the same (no optimizer was seen" in told.message


def without(text: str, *lines: str) -> str:
    for line in lines:
        assert text.count(line) == 1, text
        text = text.replace(line, "")
    return text


def swapped(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text, text
        return text.replace(old, new)

    return change


def unwrapped(text: str) -> str:
    assert "hvd.DistributedOptimizer(" in text
    return text.replace("hvd.DistributedOptimizer(", "(")


@pytest.mark.parametrize(
    ("original", "wrong", "found"),
    [
        (FIT, unwrapped, "ranks-diverge"),
        (TAPE, lambda t: without(t, "    tape = hvd.DistributedGradientTape(tape)\n"), "ranks-diverge"),
        (FED, unwrapped, "ranks-diverge"),
        thorough(TAPE, swapped("DistributedGradientTape(tape)", "DistributedGradientTape(tape, op=hvd.Sum)"), "loss"),
        (TAPE, swapped(".shard(hvd.size(), hvd.rank())", ""), "data"),  # the first half, on all ranks
        thorough(TAPE, swapped(".take(len(x) // hvd.size())", ".repeat(hvd.size())"), "samples"),
        (TAPE, swapped(".batch(32)", ".shard(hvd.size(), hvd.rank()).batch(32)"), "samples"),
        thorough(TAPE, swapped("0.1", "0.3"), "learning-rate"),
        (FIT, swapped("0.003 * hvd.size()", "0.009 * hvd.size()"), "learning-rate"),
        thorough(FED, swapped("0.003 * hvd.size()", "0.003 / hvd.size()"), "learning-rate"),
    ],
    ids=["fit-not-averaged", "tape-not-averaged", "fed-not-averaged", "summed", "not-sharded", "all-data", "sharded-twice",
         "rate-of-a-tape", "rate-of-fit", "rate-divided"],
)  # fmt: skip
def test_what_is_wrong(original: str, wrong: Callable[[str], str], found: str, tmp_path: Path) -> None:
    result = judged(tmp_path, original, wrong(converted(original)))
    assert found in kinds(result), told(result)


@pytest.mark.thorough
def test_ranks_that_begin_with_other_weights(tmp_path: Path) -> None:
    original = TAPE.replace("tf.keras.utils.set_random_seed(1)\n", "")
    after = converted(original)
    assert not kinds(judged(tmp_path, original, after))
    wrong = "\n".join(line for line in after.split("\n") if "broadcast_variables" not in line)
    wrong = wrong.replace("        if first_step:\n", "")
    wrong = wrong.replace("            first_step = False\n", "")
    assert "ranks-diverge" in kinds(judged(tmp_path, original, wrong))


# -- strategies ----------------------------------------------------------------------------------------------------


def mirrored_fit(text: str) -> str:
    """By hand: a model and its `compile` under the scope, and a batch for all replicas."""
    text = text.replace(
        "import tensorflow as tf\n", "import tensorflow as tf\n\nstrategy = tf.distribute.MirroredStrategy()\n"
    )
    text = text.replace("\nmodel = tf", "\nwith strategy.scope():\n  model = tf")
    text = text.replace("\nmodel.compile", "\nwith strategy.scope():\n  model.compile")
    return text.replace("batch_size=32", "batch_size=32 * strategy.num_replicas_in_sync")


LOOP = TAPE.replace('activation="relu")', 'activation="relu", input_shape=(8,))')
MIRRORED_LOOP = (
    SEEDED.replace(
        "import tensorflow as tf\n", "import tensorflow as tf\n\nstrategy = tf.distribute.MirroredStrategy()\n"
    )
    + """
size = 32 * strategy.num_replicas_in_sync
with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.Dense(16, activation="relu", input_shape=(8,)), tf.keras.layers.Dense(1),
    ])
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.5)
    optimizer.build(model.trainable_variables)
dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(size))


def train_step(inputs, targets):
    with tf.GradientTape() as tape:
        losses = tf.reduce_mean((model(inputs, training=True) - targets) ** 2, axis=1)
        loss = tf.nn.compute_average_loss(losses, global_batch_size=size)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def distributed_step(inputs, targets):
    return strategy.reduce("SUM", strategy.run(train_step, args=(inputs, targets)), axis=None)


for epoch in range(6):
    for inputs, targets in dataset:
        loss = distributed_step(inputs, targets)
    print(epoch, float(loss))
"""
)


def several_workers(text: str) -> str:
    return text.replace("MirroredStrategy()", "MultiWorkerMirroredStrategy()")


@pytest.mark.parametrize(
    ("original", "rewritten", "env"),
    [
        thorough(FIT, mirrored_fit(FIT), "tf215"),
        (FIT, mirrored_fit(FIT), "tf221"),
        thorough(LOOP, MIRRORED_LOOP, "tf221"),
        thorough(FIT, several_workers(mirrored_fit(FIT)), "tf215"),
        (LOOP, several_workers(MIRRORED_LOOP), "tf215"),
        thorough(LOOP, several_workers(MIRRORED_LOOP), "tf221"),
    ],
    ids=["mirrored-fit-2.15", "mirrored-fit-2.21", "mirrored-loop-2.21",
         "workers-fit-2.15", "workers-loop-2.15", "workers-loop-2.21"],
)  # fmt: skip
def test_strategies_train_the_same(original: str, rewritten: str, env: str, tmp_path: Path) -> None:
    """Two logical CPUs of one process, or two workers on localhost, which `validate` starts by itself."""
    result = judged(tmp_path, original, rewritten, env=env)
    assert result.verdict == "pass" and result.batches.every == 2, told(result)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("global_batch_size=size)", "global_batch_size=32)", "loss"),  # the sum over the replicas is twice the mean
        thorough("SGD(0.1", "SGD(0.3", "learning-rate"),
        thorough("slices((x, y))", "slices((x[:256], y[:256]))", "samples"),
    ],
)
def test_what_is_wrong_under_a_strategy(old: str, new: str, found: str, tmp_path: Path) -> None:
    assert MIRRORED_LOOP.count(old) == 1
    assert found in kinds(judged(tmp_path, LOOP, MIRRORED_LOOP.replace(old, new)))


# -- nothing stays behind --------------------------------------------------------------------------------------------

HANGS = """
import time
import tensorflow as tf
{start}
time.sleep(600)
"""


def processes(*parts: bytes) -> list[int]:
    """Those whose environment has all of this."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit():
                environment = (folder / "environ").read_bytes().split(b"\0")
                if all(any(part in variable for variable in environment) for part in parts):
                    found.append(int(folder.name))
        except OSError:
            continue
    return found


@needs_proc
@pytest.mark.parametrize(
    ("start", "variable"),
    [
        ("import horovod.tensorflow as hvd\nhvd.init()", b"HOROVOD_RANK="),
        ("tf.distribute.MultiWorkerMirroredStrategy()", b"TF_CONFIG="),
    ],
    ids=["horovod", "workers"],
)
@pytest.mark.parametrize("number", [signal.SIGINT, thorough(signal.SIGTERM)])
def test_no_process_stays_behind(start: str, variable: bytes, number: int, tmp_path: Path) -> None:
    """A `validate --np 2` that is interrupted while both ranks run."""
    (tmp_path / "train.py").write_text(FIT)
    (tmp_path / "train_many.py").write_text(HANGS.format(start=start))
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    asked = ["train.py", "train_many.py", "--np", "2", "--pairs", "0", "--python", str(tf_env("tf215"))]
    process = subprocess.Popen(
        [sys.executable, "-m", "rewriter", "validate", *asked],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        limit = time.monotonic() + 180
        while len(processes(mark.encode(), variable)) < 2 and time.monotonic() < limit:
            assert process.poll() is None
            time.sleep(0.2)
        assert len(processes(mark.encode(), variable)) >= 2
        os.killpg(process.pid, number)
        process.wait(timeout=60)
        limit = time.monotonic() + 20
        while processes(mark.encode()) and time.monotonic() < limit:
            time.sleep(0.2)
        assert processes(mark.encode()) == []
    finally:
        for left in processes(mark.encode()):
            os.kill(left, signal.SIGKILL)
        process.wait()
