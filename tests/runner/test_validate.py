"""Validation with real training: what it must catch, and what it must let pass."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from rewriter.runner.validate import Conditions, Validation, pair, validate
from tests.cli import tfboost
from tests.envs import tf_env

pytestmark = pytest.mark.tf

TRAIN = """
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(1)
rng = np.random.RandomState(0)
x = rng.rand(1024, 8).astype('float32')
y = (x.sum(1) > 4).astype('float32')
ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1024).batch(32)
model = tf.keras.Sequential([
    tf.keras.layers.Dense(16, activation='relu'),
    tf.keras.layers.Dense(1, activation='sigmoid'),
])
model.compile(tf.keras.optimizers.Adam(0.003), 'binary_crossentropy')
model.fit(ds, epochs=6, verbose=0)
"""
IMAGES = """
import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
x = rng.rand(256, 8, 8, 1).astype('float32')
y = x.mean((1, 2))
augment = lambda a, b: (tf.image.random_flip_left_right(a) + tf.random.normal(tf.shape(a)) * 0.3, b)
ds = tf.data.Dataset.from_tensor_slices((x, y)).map(augment).shuffle(256).batch(32)
model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
model.compile(tf.keras.optimizers.Adam(0.01), 'mse')
model.fit(ds, epochs=5, verbose=0)
"""
EVALUATED = TRAIN.replace("verbose=0", "validation_data=held_out, verbose=0").replace(
    "model = ",
    "held_out = tf.data.Dataset.from_tensor_slices((x[:256] * 0.9, y[:256])).batch(32)\nmodel = ",
)
HALF = """
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(1)
tf.keras.mixed_precision.set_global_policy('mixed_float16')
rng = np.random.RandomState(0)
x = rng.rand(1024, 8).astype('float32')
y = x.sum(1, keepdims=True) * 1e-4
model = tf.keras.Sequential([tf.keras.layers.Dense(16), tf.keras.layers.Dense(1, dtype='float32')])
optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam(0.001))


@tf.function
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(a, training=True) - b)) * 1e-6
        scaled = optimizer.get_scaled_loss(loss)
    gradients = optimizer.get_unscaled_gradients(tape.gradient(scaled, model.trainable_variables))
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


for epoch in range(6):
    for i in range(0, 1024, 32):
        step(tf.constant(x[i:i + 32]), tf.constant(y[i:i + 32]))
"""
WITHOUT_SCALE = HALF.replace("scaled = optimizer.get_scaled_loss(loss)", "scaled = loss").replace(
    "optimizer.get_unscaled_gradients(tape.gradient(scaled, model.trainable_variables))",
    "tape.gradient(scaled, model.trainable_variables)",
)
POLICY = "tf.keras.mixed_precision.set_global_policy('mixed_bfloat16')\n"


def judged(
    folder: Path, original: str, rewritten: str, level: int = 2, env: str = "tf215", **asked: object
) -> Validation:
    for name, text in (("train.py", original), ("train_fast.py", rewritten)):
        (folder / name).write_text(textwrap.dedent(text))
    before, after = pair(folder / "train.py", folder / "train_fast.py", [])
    runs = {"pairs": asked.pop("pairs", 0), "seeds": asked.pop("seeds", 3)}
    conditions = Conditions(str(tf_env(env)), **asked)  # type: ignore[arg-type]
    return validate(before, after, conditions, level, **runs)  # type: ignore[arg-type]


def failing(result: Validation) -> set[str]:
    assert result.parity is not None, result.failure
    return {finding.kind for finding in result.parity.findings if finding.fails}


def replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


@pytest.mark.parametrize("level", [1, 2])
def test_a_learning_rate_three_times_off(level: int, tmp_path: Path) -> None:
    result = judged(tmp_path, TRAIN, replaced(TRAIN, "Adam(0.003)", "Adam(0.009)"), level)
    assert "learning-rate" in failing(result)


def test_a_learning_rate_that_no_configuration_shows(tmp_path: Path) -> None:
    """The losses alone must tell it, too."""
    hidden = replaced(TRAIN, "'binary_crossentropy')", "lambda t, p: 3 * tf.keras.losses.binary_crossentropy(t, p))")
    sgd = TRAIN.replace("Adam(0.003)", "SGD(0.1)"), hidden.replace("Adam(0.003)", "SGD(0.1)")
    result = judged(tmp_path, *sgd)
    assert "loss" in failing(result)


def test_labels_shuffled_against_inputs(tmp_path: Path) -> None:
    wrong = replaced(TRAIN, "slices((x, y))", "slices((x, rng.permutation(y)))")
    assert "labels" in failing(judged(tmp_path, TRAIN, wrong))


def test_augmentation_frozen_by_a_cache(tmp_path: Path) -> None:
    wrong = replaced(IMAGES, ".map(augment)", ".map(augment).cache()")
    assert "augmentation-frozen" in failing(judged(tmp_path, IMAGES, wrong))


def test_a_dropped_loss_scale(tmp_path: Path) -> None:
    assert "underflow" in failing(judged(tmp_path, HALF, WITHOUT_SCALE))


def test_evaluation_on_the_training_set(tmp_path: Path) -> None:
    wrong = replaced(EVALUATED, "validation_data=held_out", "validation_data=ds")
    assert "validation-data" in failing(judged(tmp_path, EVALUATED, wrong))


def test_half_of_the_data_lost_by_sharding_twice(tmp_path: Path) -> None:
    horovod = TRAIN.replace(
        "import tensorflow as tf", "import tensorflow as tf\nimport horovod.tensorflow.keras as hvd\nhvd.init()"
    )
    horovod = replaced(
        horovod, "tf.keras.optimizers.Adam(0.003)", "hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.003))"
    )
    horovod = replaced(horovod, ".shuffle(1024).batch(32)", ".shard(hvd.size(), hvd.rank()).shuffle(1024).batch(16)")
    horovod = replaced(horovod, "verbose=0", "verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]")
    assert not failing(judged(tmp_path, TRAIN, horovod, ranks=2))
    twice = replaced(horovod, ".shard(hvd.size(), hvd.rank())", ".shard(hvd.size(), hvd.rank()).shard(2, 0)")
    assert "samples" in failing(judged(tmp_path, TRAIN, twice, ranks=2))


def test_mixed_precision_without_effect(tmp_path: Path) -> None:
    late = replaced(TRAIN, "model.compile", POLICY + "model.compile")
    result = judged(tmp_path, TRAIN, late)
    assert result.parity is not None
    assert [f.kind for f in result.parity.findings] == ["no-effect"]
    assert result.verdict == "pass"


def test_a_nan_is_named(tmp_path: Path) -> None:
    wrong = replaced(TRAIN, "'binary_crossentropy'", "lambda t, p: tf.math.log(tf.reduce_mean(t - p))")
    assert "nan" in failing(judged(tmp_path, TRAIN, wrong, level=1))


@pytest.mark.parametrize(
    ("level", "new"),
    [
        (1, "model.compile(tf.keras.optimizers.Adam(0.003), 'binary_crossentropy', steps_per_execution=8)"),
        (2, POLICY + "model.compile(tf.keras.optimizers.Adam(0.003), 'binary_crossentropy', jit_compile=True)"),
    ],
)
def test_what_is_the_same_passes(level: int, new: str, tmp_path: Path) -> None:
    old = "model.compile(tf.keras.optimizers.Adam(0.003), 'binary_crossentropy')"
    assert not failing(judged(tmp_path, TRAIN, replaced(TRAIN, old, new), level))


def test_the_command_line(tmp_path: Path) -> None:
    """Both in one go: verdict, exit code and JSON, and nothing in the folder has changed."""
    saving = (
        TRAIN.replace("epochs=6", "epochs=int(__import__('sys').argv[1])")
        + "model.save('model.keras')\nopen('log', 'w').close()\n"
    )
    (tmp_path / "train.py").write_text(saving)
    out = tmp_path / "out"
    out.mkdir()
    (out / "train.py").write_text(
        saving.replace("'binary_crossentropy'", "'binary_crossentropy', steps_per_execution=8")
    )
    asked = ["--budget", "3", "--pairs", "3", "--python", str(tf_env("tf215")), "-O", "1", "--format", "json"]
    done = tfboost("validate", "train.py", "out/train.py", *asked, "--", "40", cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    document = json.loads(done.stdout)
    assert document["verdict"] == "pass"
    assert document["speed"]["answer"] in ("faster", "no difference shown"), document["speed"]
    assert {run["ending"] for run in document["runs"]} <= {"finished", "budget"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "train.py"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import tensorflow as tf\nprint(1)\n", "never trained a step"),
        ("import tensorflow as tf\nraise ValueError('no luck')\n", "ValueError: no luck"),
        ("import sys\nsys.exit(3)\n", "exit code 3"),
        ("open('data.csv')\n", "needs data that is not there: FileNotFoundError"),
        ("import time\ntime.sleep(60)\n", "within"),
    ],
)
def test_what_cannot_be_run_is_told(script: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script)
    asked = ["--timeout", "20" if "sleep" not in script else "3", "--python", str(tf_env("tf215"))]
    done = tfboost("validate", "train.py", "train.py", *asked, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stdout.decode()
