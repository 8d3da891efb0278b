"""Programs that train with Estimators, converted and run on two ranks."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.distribution.ranks import converted, run, trained
from tests.envs import tf_env

pytestmark = pytest.mark.tf


@pytest.fixture(params=["tf215", "tf115"])
def env(request: pytest.FixtureRequest) -> str:
    return has_horovod(request.param)


def has_horovod(env: str) -> str:
    """An environment, where Horovod is built in it."""
    if not tf_env(env).with_name("horovodrun").exists():
        pytest.skip(f"there is no Horovod in {env}")
    return env


HEAD = """
import os
import numpy as np
import tensorflow.compat.v1 as tf

RANK = os.environ.get("HOROVOD_RANK", "0")
BATCH = int(os.environ.get("BATCH", "16"))
X = np.random.RandomState(0).rand(int(os.environ.get("COUNT", "96")), 4).astype("float32")
Y = X[:, :1] * 3 + 1
OFF = int(os.environ.get("OFF", "0")) * int(RANK)
seen, losses = [], []


class Record(tf.train.SessionRunHook):
    def before_run(self, context):
        return tf.train.SessionRunArgs(["seen:0", "the_loss:0"])

    def after_run(self, context, values):
        seen.append(values.results[0][:, 0].tolist())
        losses.append(float(values.results[1]))


def model_fn(features, labels, mode):
    x = tf.identity(features["x"], name="seen")
    w = tf.get_variable("w", [4, 1], initializer=tf.random_normal_initializer(seed=1 + OFF))
    b = tf.get_variable("b", [1], initializer=tf.zeros_initializer())
    predicted = tf.matmul(x, w) + b
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"y": predicted})
    loss = tf.identity(tf.reduce_mean(tf.square(predicted - labels)), name="the_loss")
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, loss=loss)
    TRAIN
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
"""
MOMENTUM = """optimizer = tf.train.MomentumOptimizer(0.05, 0.9)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())"""
CLIPPED = """tvars = tf.trainable_variables()
    grads, _ = tf.clip_by_global_norm(tf.gradients(loss, tvars), 1.0)
    optimizer = tf.train.AdamOptimizer(0.05)
    train_op = optimizer.apply_gradients(zip(grads, tvars), global_step=tf.train.get_global_step())"""
TOLD = """
told = {"weights": [est.get_variable_value(n).tolist() for n in ("w", "b")], "losses": losses, "seen": seen}
told["step"] = int(est.get_variable_value("global_step"))
"""


def program(rest: str, train: str = MOMENTUM) -> str:
    return HEAD.replace("TRAIN\n", train + "\n") + rest


def together(text: str, folder: Path, env: str = "tf215") -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the program tells in one process, and on two ranks with half of the batch."""
    (one,) = trained(text + TOLD, folder / "one", env=env, BATCH="16")
    both = trained(converted(text, env=env, lr_scaling=False) + TOLD, folder / "two", env=env, ranks=2, BATCH="8")
    assert both[0]["weights"] == both[1]["weights"]
    _close(one["weights"], both[0]["weights"])
    assert one["step"] == both[0]["step"] == both[1]["step"]
    means = [(a + b) / 2 for a, b in zip(both[0]["losses"], both[1]["losses"], strict=True)]
    assert means == pytest.approx(one["losses"], rel=1e-4)
    return one, both


def _close(one: list[Any], other: list[Any]) -> None:
    import numpy as np

    for a, b in zip(one, other, strict=True):
        assert np.allclose(a, b, atol=2e-5), (a, b)


def _same_samples(one: dict[str, Any], both: list[dict[str, Any]]) -> None:
    assert len(one["seen"]) == len(both[0]["seen"]) == len(both[1]["seen"])
    for step, batch in enumerate(one["seen"]):
        assert sorted(both[0]["seen"][step] + both[1]["seen"][step]) == pytest.approx(sorted(batch))


def written(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith(("told", "launch", "train")))


FINITE = """
def input_fn(training):
    ds = tf.data.Dataset.from_tensor_slices(({"x": X}, Y))
    if training:
        ds = ds.repeat(3)
    return ds.batch(BATCH)


est = tf.estimator.Estimator(model_fn, model_dir="model_%s" % RANK)
est.train(lambda: input_fn(True), hooks=[Record()])
result = est.evaluate(lambda: input_fn(False))
with open("result_%s" % RANK, "w") as file:
    for name in sorted(result):
        file.write("%s %s" % (name, result[name]))
for row in est.predict(lambda: input_fn(False)):
    print("PREDICTED", row["y"])
"""


def test_a_pipeline_that_ends(env: str, tmp_path: Path) -> None:
    """Loss, weights, samples and files; every rank makes as many steps."""
    one, both = together(program(FINITE), tmp_path, env)
    _same_samples(one, both)
    assert written(tmp_path / "two") == ["model_0", "result_0"]
    assert (tmp_path / "two" / "model_0" / "eval").is_dir()
    first = [x for batch in both[0]["seen"][:6] + both[1]["seen"][:6] for x in batch]
    assert len(first) == len(set(first)) == 96


def test_a_sample_that_is_left_over(tmp_path: Path) -> None:
    """97 samples: both ranks end after 48."""
    both = trained(converted(program(FINITE)) + TOLD, tmp_path, ranks=2, BATCH="8", COUNT="97", OFF="1")
    assert [len(b["seen"]) for b in both] == [18, 18]
    assert both[0]["weights"] == both[1]["weights"]


ARRAYS = """
train_input = tf.estimator.inputs.numpy_input_fn({"x": X}, Y, batch_size=BATCH, num_epochs=2, shuffle=False)
eval_input = tf.estimator.inputs.numpy_input_fn({"x": X}, Y, batch_size=BATCH, num_epochs=1, shuffle=False)
config = tf.estimator.RunConfig(model_dir="model_%s" % RANK, save_checkpoints_steps=3)
est = tf.estimator.Estimator(model_fn, config=config)
train_spec = tf.estimator.TrainSpec(train_input, max_steps=int(os.environ["STEPS"]), hooks=[Record()])
eval_spec = tf.estimator.EvalSpec(eval_input, throttle_secs=0)
tf.estimator.train_and_evaluate(est, train_spec, eval_spec)
"""


def test_arrays_and_evaluation_on_the_way(env: str, tmp_path: Path) -> None:
    """`train_and_evaluate`: rank 0 evaluates at its checkpoints, while the other waits for its next step."""
    (one,) = trained(program(ARRAYS) + TOLD, tmp_path / "one", env=env, BATCH="16", STEPS="10")
    text = converted(program(ARRAYS), env=env, lr_scaling=False) + TOLD
    both = trained(text, tmp_path / "two", env=env, ranks=2, BATCH="8", STEPS="20")
    assert both[0]["weights"] == both[1]["weights"]
    _close(one["weights"], both[0]["weights"])
    _same_samples(one, both)
    assert written(tmp_path / "two") == ["model_0"]
    assert list((tmp_path / "two" / "model_0" / "eval").iterdir())


RECORDS = """
if not os.path.exists("data"):
    pass
def parse(record):
    x = tf.io.parse_single_example(record, {"x": tf.FixedLenFeature([4], tf.float32)})["x"]
    return {"x": x}, x[:1] * 3 + 1


def read(path):
    return tf.data.TFRecordDataset(path)


def train_input_fn():
    dataset = read("../data.tfrecord").map(parse)
    dataset = dataset.batch(BATCH)
    iterator = tf.data.make_one_shot_iterator(dataset)
    features, labels = iterator.get_next()
    return features, labels


def eval_input_fn():
    return read("../data.tfrecord").map(parse).batch(BATCH)


def main(_):
    global est
    est = tf.estimator.Estimator(model_fn=model_fn, model_dir="model_%s" % RANK)
    for epoch in range(2):
        est.train(input_fn=train_input_fn, hooks=[Record()])
        metrics = est.evaluate(input_fn=eval_input_fn)
        print("epoch", epoch, metrics["loss"])


main(None)
""".replace('if not os.path.exists("data"):\n    pass\n', "")
WRITE = """
import numpy as np
import tensorflow.compat.v1 as tf

with tf.io.TFRecordWriter("../data.tfrecord") as writer:
    for x in np.random.RandomState(0).rand(97, 4):
        feature = tf.train.Feature(float_list=tf.train.FloatList(value=x))
        writer.write(tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString())
told = {}
"""


def test_records_whose_number_is_not_known(env: str, tmp_path: Path) -> None:
    """As many on each rank, clipped gradients, and an evaluation after every epoch."""
    trained(WRITE, tmp_path / "write", env=env)
    text = converted(program(RECORDS, CLIPPED), env=env, lr_scaling=False) + TOLD
    both = trained(text, tmp_path / "two", env=env, ranks=2, BATCH="8", OFF="1")
    assert [len(b["seen"]) for b in both] == [12, 12]
    assert both[0]["weights"] == both[1]["weights"]
    epoch = [x for b in both for batch in b["seen"][:6] for x in batch]
    assert len(epoch) == len(set(epoch)) == 96
    assert both[0]["losses"][-1] < both[0]["losses"][0]
    assert written(tmp_path / "two") == ["model_0"]


def test_a_start_from_a_checkpoint(tmp_path: Path) -> None:
    """Only rank 0 finds it: the other goes on from there, too."""
    text = converted(program(FINITE)) + TOLD
    first = trained(text, tmp_path, ranks=2, BATCH="8")
    second = trained(text, tmp_path, ranks=2, BATCH="8", OFF="1")
    assert second[0]["weights"] == second[1]["weights"] != first[0]["weights"]
    assert second[0]["step"] == second[1]["step"] == 2 * first[0]["step"]


CANNED = """
import os
import numpy as np
import tensorflow as tf

RANK = os.environ.get("HOROVOD_RANK", "0")
BATCH = int(os.environ.get("BATCH", "16"))
x = np.random.RandomState(0).rand(96, 3).astype("float32")
y = (x.sum(axis=1) > 1.5).astype("int32")


def input_fn():
    return tf.data.Dataset.from_tensor_slices(({"v": x}, y)).repeat().batch(BATCH)


columns = [tf.feature_column.numeric_column("v", shape=(3,))]
config = tf.estimator.RunConfig(tf_random_seed=1)
est = tf.estimator.MADE
est.train(input_fn, steps=int(os.environ["STEPS"]))
told = {"weights": [est.get_variable_value(n).tolist() for n in sorted(est.get_variable_names()) if NAME in n]}
"""


@pytest.mark.parametrize(
    ("env", "made", "name"),
    [
        ("tf215", 'DNNClassifier([4], columns, optimizer=tf.keras.optimizers.legacy.Adam(0.05), config=config)', "dnn/hidden"),
        ("tf215", "DNNClassifier([4], columns, config=config)", "dnn/hidden"),
        ("tf115", 'DNNClassifier([4], columns, optimizer=tf.train.AdamOptimizer(0.05), config=config, loss_reduction="weighted_mean")', "dnn/hidden"),
        ("tf115", 'DNNRegressor([4], columns, optimizer="Adam", config=config, loss_reduction="weighted_mean")', "dnn/hidden"),
    ],
)  # fmt: skip
def test_canned(env: str, made: str, name: str, tmp_path: Path) -> None:
    """One process of the conversion against two: TensorFlow 1 draws other first weights where a graph has more nodes."""
    text = CANNED.replace("MADE", made).replace("NAME", repr(name))
    text = converted(text, env=has_horovod(env), lr_scaling=False)
    (one,) = trained(text, tmp_path / "one", env=env, BATCH="16", STEPS="8")
    both = trained(text, tmp_path / "two", env=env, ranks=2, BATCH="8", STEPS="16")
    assert both[0]["weights"] == both[1]["weights"] and both[0]["weights"]
    _close(one["weights"], both[0]["weights"])


KERAS = """
import os
import numpy as np
import tensorflow as tf

RANK = os.environ.get("HOROVOD_RANK", "0")
x = np.random.RandomState(0).rand(96, 3).astype("float32")
y = x.sum(axis=1)
model = tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=(3,), name="v"), tf.keras.layers.Dense(1)])
model.compile(optimizer=tf.keras.optimizers.legacy.Adam(0.01), loss="mse")
first = model.get_weights()[0].tolist()
est = tf.keras.estimator.model_to_estimator(keras_model=model, model_dir="model_%s" % RANK)


def input_fn():
    return tf.data.Dataset.from_tensor_slices(({"v_input": x}, y)).repeat().batch(8)


est.train(input_fn, steps=60)
names = [n for n in est.get_variable_names() if n.startswith("layer_with_weights") and "SLOT" not in n]
told = {"weights": [est.get_variable_value(n).tolist() for n in sorted(names)], "first": first}
"""


def test_a_keras_model(tmp_path: Path) -> None:
    """Every rank draws its own first weights, and takes those of rank 0."""
    both = trained(converted(KERAS), tmp_path, ranks=2)
    assert both[0]["first"] != both[1]["first"]
    assert both[0]["weights"] == both[1]["weights"] and both[0]["weights"]
    assert written(tmp_path) == ["model_0"]


def test_a_rank_that_is_killed_ends_the_job(tmp_path: Path) -> None:
    kill = f'        if len(seen) == 4 and RANK == "1":\n            os.kill(os.getpid(), {int(signal.SIGKILL)})\n'
    text = converted(program(FINITE)).replace(
        "    def after_run(self, context, values):\n", f"    def after_run(self, context, values):\n{kill}"
    )
    started = time.monotonic()
    done = run(text + TOLD, tmp_path, ranks=2, BATCH="8", timeout=120)
    assert done.returncode != 0 and time.monotonic() - started < 110
