"""Input pipelines of TensorFlow 1: stages go before the iterator, and Estimators' input functions are followed."""

from pathlib import Path

import pytest

from rewriter.engine import Options, rewrite
from rewriter.target import named
from tests.check import Check
from tests.envs import run_script, tf_env

prefetch = Check("prefetch", target="tf1.15")
parallel_map = Check("parallel-map", target="tf1.15")
parallel_reads = Check("parallel-reads", target="tf1.15")

TRAIN = """\
loss = tf.losses.sparse_softmax_cross_entropy(y, tf.layers.dense(x, 2))
train = tf.train.AdamOptimizer(0.1).minimize(loss)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(train)
"""
AUTO = "tf.data.experimental.AUTOTUNE"


def script(data: str) -> str:
    return f"import tensorflow as tf\n\n{data}{TRAIN}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "x, y = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(8).make_one_shot_iterator().get_next()\n",
            "x, y = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(8).PREFETCH.make_one_shot_iterator().get_next()\n",
        ),
        (
            "ds = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)\nit = ds.make_initializable_iterator()\n"
            "x, y = it.get_next()\n",
            "ds = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).PREFETCH\nit = ds.make_initializable_iterator()\n"
            "x, y = it.get_next()\n",
        ),
        (
            "ds = tf.data.TextLineDataset(F).batch(8)\nx, y = tf.compat.v1.data.make_one_shot_iterator(ds).get_next()\n",
            "ds = tf.data.TextLineDataset(F).batch(8).PREFETCH\n"
            "x, y = tf.compat.v1.data.make_one_shot_iterator(ds).get_next()\n",
        ),
        (
            "ds = tf.data.TextLineDataset(F).batch(8)\n"
            "it = tf.data.Iterator.from_structure(ds.output_types, ds.output_shapes)\n"
            "start = it.make_initializer(ds)\nx, y = it.get_next()\n",
            "ds = tf.data.TextLineDataset(F).batch(8).PREFETCH\n"
            "it = tf.data.Iterator.from_structure(ds.output_types, ds.output_shapes)\n"
            "start = it.make_initializer(ds)\nx, y = it.get_next()\n",
        ),
        (
            "ds = tf.data.TextLineDataset(F)\nds = ds.apply(tf.contrib.data.map_and_batch(parse, 8))\n"
            "x, y = ds.make_one_shot_iterator().get_next()\n",
            "ds = tf.data.TextLineDataset(F)\nds = ds.apply(tf.contrib.data.map_and_batch(parse, 8)).PREFETCH\n"
            "x, y = ds.make_one_shot_iterator().get_next()\n",
        ),
    ],
)
def test_prefetch_before_the_iterator(before: str, after: str) -> None:
    prefetch.fixes(script(before), script(after.replace("PREFETCH", f"prefetch({AUTO})")))


def test_prefetch_that_is_there() -> None:
    prefetch.ignores(
        script("ds = tf.data.TextLineDataset(F).batch(8).prefetch(1)\nx, y = ds.make_one_shot_iterator().get_next()\n")
    )


def test_training_in_another_file(tmp_path: Path) -> None:
    data = "import tensorflow as tf\n\ndef batches():\n    ds = tf.data.TextLineDataset(F).batch(8)%s\n    return ds.make_one_shot_iterator().get_next()\n"
    files = {
        tmp_path / "train.py": b"import tensorflow as tf\nfrom data import batches\n\nx, y = batches()\n"
        + TRAIN.encode(),
        tmp_path / "data.py": (data % "").encode(),
    }
    results = rewrite([*files], Options(2, frozenset({"prefetch"})), lambda _: named("tf1.15"), files)
    assert results[1].after.decode() == data % f".prefetch({AUTO})"


ESTIMATOR = """\
import tensorflow as tf

def input_fn(files):
    ds = tf.data.TextLineDataset(files).batch(8)%s
    return %s

est = tf.estimator.Estimator(model_fn)
%s
"""


@pytest.mark.parametrize("returned", ["ds", "ds.make_one_shot_iterator().get_next()"])
@pytest.mark.parametrize(
    "use",
    [
        "est.train(lambda: input_fn(FILES), steps=9)",
        "est.train(input_fn=lambda: input_fn(FILES))",
        "tf.estimator.train_and_evaluate(est, tf.estimator.TrainSpec(input_fn=lambda: input_fn(FILES)), spec)",
    ],
)
def test_input_functions(returned: str, use: str) -> None:
    prefetch.fixes(ESTIMATOR % ("", returned, use), ESTIMATOR % (f".prefetch({AUTO})", returned, use))


def test_parallel_map_before_the_iterator() -> None:
    text = (
        "def parse(line):\n    return tf.decode_csv(line, [[0.0], [0]])\n\n"
        "x, y = tf.data.TextLineDataset(F).map(parse%s).batch(8).make_one_shot_iterator().get_next()\n"
    )
    parallel_map.fixes(script(text % ""), script(text % f", num_parallel_calls={AUTO}"))
    parallel_map.ignores(script(text % ", num_parallel_calls=4"))


def test_parallel_reads_of_shuffled_records() -> None:
    text = (
        "ds = tf.data.TFRecordDataset(['a', 'b']%s).shuffle(100).batch(8)\n"
        "x, y = ds.make_one_shot_iterator().get_next()\n"
    )
    parallel_reads.fixes(script(text % ""), script(text % f", num_parallel_reads={AUTO}"), level=1)


def test_parallel_reads_keep_what_a_session_may_use_in_order() -> None:
    parallel_reads.refuses(
        script("ds = tf.data.TFRecordDataset(['a', 'b']).batch(8)\nx, y = ds.make_one_shot_iterator().get_next()\n"),
        "what a session gets from it may be used in order",
    )


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        ("x, y = tf.train.slice_input_producer([X, Y])\n", "Dataset.from_tensor_slices((inputs, labels))"),
        (
            "files = tf.train.string_input_producer(F)\nx, y = tf.train.batch([a, b], 8)\n",
            "Dataset.from_tensor_slices(files)",
        ),
        ("x, y = tf.train.shuffle_batch([a, b], 8, 100, 10)\n", "shuffle(n).batch(size)"),
    ],
)
def test_queues_are_reported_once(call: str, hint: str) -> None:
    result = prefetch.refuses(script(call), "fills a queue from threads of Python", line=3)
    assert len(result.refused) == 1 and hint in result.refused[0].hint


RUNS = """
import os
import tempfile

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
folder = tempfile.mkdtemp()
for name in "ab":
    with open(os.path.join(folder, name), "w") as out:
        out.write("".join("%d,%d\\n" % (i, i % 2) for i in range(ord(name), ord(name) + 10)))


def parse(line):
    number, label = tf.decode_csv(line, [[0.0], [0]])
    return number / 10.0, label


def input_fn():
    ds = tf.data.TextLineDataset([os.path.join(folder, name) for name in "ab"]).map(parse).batch(4)
    return tf.data.make_one_shot_iterator(ds).get_next()


x, y = input_fn()
ds = tf.data.TextLineDataset(os.path.join(folder, "a")).map(parse).batch(4)
start = tf.data.make_initializable_iterator(ds)
other, _ = start.get_next()
weight = tf.get_variable("w", [], initializer=tf.zeros_initializer())
loss = tf.reduce_mean(tf.square(x * weight - tf.cast(y, tf.float32))) + 0.0 * tf.reduce_mean(other)
train = tf.train.GradientDescentOptimizer(0.001).minimize(loss)
with tf.Session() as sess:
    sess.run([tf.global_variables_initializer(), start.initializer])
    print("RESULT", [sess.run([x, y, other, train])[:3] for _ in range(3)])
"""


@pytest.mark.tf
@pytest.mark.parametrize("env", ["tf115", "tf215"])
def test_same_elements(env: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(RUNS)
    selected = frozenset({"prefetch", "parallel-map", "parallel-reads"})
    (result,) = rewrite([path], Options(3, selected), lambda _: named({"tf115": "tf1.15", "tf215": "tf2.15"}[env]))
    assert result.after.count(b"prefetch(") == 2 and result.after.count(b"num_parallel_calls") == 2
    lines = []
    for data in (result.before, result.after):
        path.write_bytes(data)
        done = run_script(tf_env(env), path, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        lines.append([line for line in done.stdout.splitlines() if line.startswith("RESULT")])
    assert lines[0] == lines[1] and lines[0]
