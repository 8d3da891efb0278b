import ast
from pathlib import Path

import pytest

from tests.check import Check
from tests.envs import run_script, tf_env

check = Check("parallel-reads", level=2)

HEAD = """
import glob
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
files = glob.glob("train-*.tfrecord")
"""
PARSE = "def parse(r):\n    return tf.io.parse_single_example(r, {})\n"
AUTO = "num_parallel_calls=tf.data.AUTOTUNE"
SHUFFLED = ".map(parse).shuffle(1000).batch(32)"
WIDE = "cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE"
FREE = WIDE + ", deterministic=False"


def fixes(before: str, after: str, **options: object) -> None:
    check.fixes(HEAD + PARSE + before + "\n", HEAD + PARSE + after + "\n", **options)


def refuses(source: str, reason: str, **options: object) -> None:
    check.refuses(HEAD + PARSE + source + "\n", reason, **options)


@pytest.mark.parametrize(
    "reader",
    [
        "TFRecordDataset(files",
        "TextLineDataset(['a', 'b', 'c']",
        "FixedLengthRecordDataset(sorted(files), 8",
        "TFRecordDataset(files[:-1], 'GZIP'",
        "TFRecordDataset(filenames=[f + '.gz' for f in files]",
        "TFRecordDataset(tf.data.Dataset.list_files('*')",
        "TFRecordDataset(FLAGS.train_files",
    ],
)
def test_several_files_that_are_shuffled(reader: str) -> None:
    text = "ds = tf.data.{})" + SHUFFLED + "\nmodel.fit(ds)"
    fixes(text.format(reader), text.format(reader + ", num_parallel_reads=tf.data.AUTOTUNE"), level=1)


def test_files_for_evaluation() -> None:
    text = "ds = tf.data.TFRecordDataset(files{}).map(parse).batch(32)\nmodel.evaluate(ds)"
    fixes(text.format(""), text.format(", num_parallel_reads=tf.data.AUTOTUNE"), level=1)


@pytest.mark.parametrize(
    "prepare",
    [
        "ds = tf.data.TFRecordDataset(files{}).map(parse).batch(32)",
        "ds = tf.data.TFRecordDataset(files{}).map(parse).batch(32).shuffle(10)",
        "tf.random.set_seed(1)\nds = tf.data.TFRecordDataset(files{}).shuffle(1000).batch(32)",
        "ds = tf.data.TFRecordDataset(files{}).shuffle(1000, seed=1).batch(32)",
        "ds = tf.data.TFRecordDataset(files{})\nif train:\n    ds = ds.shuffle(10)\nds = ds.batch(32)",
    ],
)
def test_an_order_that_training_sees(prepare: str) -> None:
    text = prepare + "\nmodel.fit(ds)"
    fixes(text.format(""), text.format(", num_parallel_reads=8"))
    refuses(text.format(""), "changes more than -O1 allows", level=1)


def test_no_more_readers_than_files() -> None:
    text = "ds = tf.data.TextLineDataset(['a', 'b']{}).batch(32)\nmodel.fit(ds)"
    fixes(text.format(""), text.format(", num_parallel_reads=2"))


@pytest.mark.parametrize(
    "function", ["tf.data.TFRecordDataset", "lambda f: tf.data.TextLineDataset(f).skip(1)", "read"]
)
def test_flat_map_over_files(function: str) -> None:
    read = "def read(name):\n    return tf.data.TFRecordDataset(name, compression_type='GZIP')\n"
    text = read + "ds = tf.data.Dataset.from_tensor_slices(files).{}" + SHUFFLED + "\nmodel.fit(ds)"
    fixes(text.format(f"flat_map({function})"), text.format(f"interleave({function}, {FREE})"), level=1)


def test_a_seed_keeps_it_deterministic() -> None:
    text = "tf.keras.utils.set_random_seed(1)\nds = tf.data.Dataset.list_files('*').{}" + SHUFFLED + "\nmodel.fit(ds)"
    fixes(text.format("flat_map(tf.data.TFRecordDataset)"), text.format(f"interleave(tf.data.TFRecordDataset, {WIDE})"))


def test_evaluation_under_a_seed() -> None:
    text = "tf.random.set_seed(1)\nds = tf.data.Dataset.list_files('*').{}.batch(2)\nmodel.evaluate(ds)"
    fixes(
        text.format("flat_map(tf.data.TFRecordDataset)"),
        text.format(f"interleave(tf.data.TFRecordDataset, {WIDE})"),
        level=1,
    )


def test_an_interleave_with_a_cycle_keeps_its_order() -> None:
    text = (
        "tf.random.set_seed(1)\nnames = tf.data.Dataset.list_files('*')\n"
        "ds = names.interleave(tf.data.TFRecordDataset, {})\n"
        "both = tf.data.Dataset.zip((ds, tf.data.Dataset.range(10))).skip(1)\nmodel.predict(both)"
    )
    fixes(text.format("cycle_length=4"), text.format(f"cycle_length=4, {AUTO}"), level=1)
    fixes(text.format("4, 2"), text.format(f"4, 2, {AUTO}"), level=1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("interleave(tf.data.TFRecordDataset)", f"interleave(tf.data.TFRecordDataset, {FREE})"),
        (
            "interleave(tf.data.TFRecordDataset, tf.data.AUTOTUNE)",
            f"interleave(tf.data.TFRecordDataset, 16, {AUTO}, deterministic=False)",
        ),
        (
            "interleave(tf.data.TFRecordDataset, cycle_length=-1, block_length=2)",
            f"interleave(tf.data.TFRecordDataset, cycle_length=16, block_length=2, {AUTO}, deterministic=False)",
        ),
    ],
)
def test_an_interleave_whose_order_depends_on_the_machine(before: str, after: str) -> None:
    text = "ds = tf.data.Dataset.list_files('*').{}" + SHUFFLED + "\nmodel.fit(ds)"
    fixes(text.format(before), text.format(after), level=1)


def test_older_versions() -> None:
    text = "ds = tf.data.Dataset.list_files('*').{}.shuffle(10).batch(32)\nmodel.fit(ds)"
    fixes(
        text.format("flat_map(tf.data.TFRecordDataset)"),
        text.format(
            "interleave(tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=tf.data.experimental.AUTOTUNE)"
        ),
        target="tf2.1",
    )


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        ("model.fit(tf.data.Dataset.zip((ds, labels)).shuffle(10).batch(2))", "zipped"),
        ("pairs = (ds, labels)\nmodel.fit(tf.data.Dataset.zip(pairs).shuffle(10).batch(2))", "zipped"),
        ("model.fit(labels.zip(ds).shuffle(10).batch(2))", "zipped"),
        ("model.fit(ds.skip(1).shuffle(10).batch(2))", "`skip`"),
        ("model.fit(ds.take(100).shuffle(10).batch(2))", "`take`"),
        ("model.fit(ds.shuffle(10).skip(9).batch(2), validation_data=ds.shuffle(10).take(9).batch(2))", "`skip`"),
        ("model.fit(ds.enumerate().shuffle(10).batch(2))", "`enumerate`"),
        ("model.fit(ds.window(5).flat_map(join).shuffle(10).batch(2))", "`window`"),
        ("model.fit(ds.scan(0, step).batch(2))", "`scan`"),
        ("model.fit(ds.shard(2, 0).shuffle(10).batch(2))", "`shard`"),
        ("model.fit(ds.cache('file').shuffle(10).batch(2))", "`cache`"),
        ("model.fit(ds.snapshot('file').shuffle(10).batch(2))", "`snapshot`"),
        ("model.fit(ds.batch(5).map(lambda v: v + v).batch(2))", "batched twice"),
        ("model.fit(ds.apply(custom).shuffle(10).batch(2))", "`apply`"),
        ("model.fit(ds.map(lambda r: tf.py_function(f, [r], tf.string)).shuffle(10).batch(2))", "py_function"),
        ("model.fit(ds.batch(2))\nprint(model.predict(ds.batch(2)))", "`predict`"),
        ("model.fit(ds.batch(2), validation_data=ds.batch(2), validation_steps=3)", "`validation_steps`"),
        ("model.evaluate(ds.batch(2), steps=3)", "`steps`"),
        ("model.fit(elsewhere(ds))", "`elsewhere`"),
        ("for r in ds:\n    print(r)", "the loop"),
        ("rows = list(ds)", "in order"),
        ("def make():\n    return ds.shuffle(10).batch(2)", "whoever calls `make`"),
        ("sets = {}\nsets['a'] = ds\nmodel.fit(ds.shuffle(10).batch(2))", "a container"),
    ],
)
def test_what_depends_on_the_order(use: str, reason: str) -> None:
    names = "from somewhere import elsewhere, custom, step, split, join\nlabels = tf.data.Dataset.range(10)\n"
    refuses(f"{names}ds = tf.data.TextLineDataset(files)\n{use}", reason)
    refuses(f"{names}ds = tf.data.Dataset.list_files('*').flat_map(tf.data.TextLineDataset)\n{use}", reason)


@pytest.mark.parametrize(
    "source",
    [
        "model.fit(tf.data.TFRecordDataset('one').shuffle(10).batch(2))",
        "model.fit(tf.data.TFRecordDataset(['one']).shuffle(10).batch(2))",
        "path = os.path.join('a', 'b')\nmodel.fit(tf.data.TFRecordDataset([path]).batch(2))",
        "def read(filename):\n    return tf.data.TFRecordDataset(filename).batch(2)\nmodel.fit(read(path))",
        "model.fit(tf.data.TFRecordDataset(files, num_parallel_reads=4).batch(2))",
        "model.fit(tf.data.Dataset.list_files('*').interleave(tf.data.TFRecordDataset, 4, num_parallel_calls=4))",
        "model.fit(tf.data.Dataset.list_files('*').interleave(tf.data.TFRecordDataset, cycle_length=1).batch(2))",
        "model.fit(tf.data.Dataset.from_tensor_slices(x).window(5).flat_map(lambda w: w.batch(5)).batch(2))",
        "model.fit(tf.data.Dataset.range(3).interleave(lambda i: tf.data.Dataset.from_tensors(i).repeat(3), 2))",
        "model.fit(tf.data.Dataset.list_files('*').apply(tf.data.experimental.parallel_interleave("
        "tf.data.TFRecordDataset, cycle_length=4)).batch(2))",
        "ds = tf.data.TFRecordDataset(files)",
    ],
)
def test_nothing_to_do(source: str) -> None:
    check.ignores(HEAD + source + "\n")


@pytest.mark.parametrize(
    "function",
    [
        "lambda f: tf.data.TextLineDataset(f).map(tf.image.random_flip_left_right)",
        "lambda f: tf.data.Dataset.from_generator(gen, tf.float32, args=(f,))",
        "unseen",
    ],
)
def test_what_is_run_for_each_file(function: str) -> None:
    refuses(
        "tf.random.set_seed(1)\n"
        f"ds = tf.data.Dataset.list_files('*').interleave({function}, cycle_length=4)\n"
        "model.fit(ds.shuffle(10).batch(2))",
        "",
    )


def test_in_a_function_for_training_and_validation() -> None:
    text = """def make(names, training):
    ds = tf.data.TFRecordDataset(names{})
    if training:
        ds = ds.shuffle(1000)
    return ds.batch(32)
model.fit(make(files, True), validation_data=make(glob.glob("val-*"), False))"""
    fixes(text.format(""), text.format(", num_parallel_reads=8"))


PROOF = """
import collections, os, tempfile
import tensorflow as tf
folder = tempfile.mkdtemp()
for k in range(5):
    with open(os.path.join(folder, f"{k}.txt"), "w") as f:
        f.writelines(f"{k * 100 + j}\\n" for j in range(3 + 4 * (k % 3)))
names = sorted(os.path.join(folder, n) for n in os.listdir(folder))
files = tf.data.Dataset.from_tensor_slices(names)
kept = files.interleave(tf.data.TextLineDataset, cycle_length=3, block_length=2)
a = files.flat_map(tf.data.TextLineDataset).map(tf.strings.to_number).shuffle(10).batch(4)
b = tf.data.TextLineDataset(names).map(tf.strings.to_number).batch(4)
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
if False:
    model.fit(a, validation_data=b)
print("RESULT", [int(v) for v in kept])
print("RESULT", *(sorted(collections.Counter(int(v) for v in d.unbatch()).items()) for d in (a, b)))
"""


@pytest.mark.tf
@pytest.mark.parametrize("env", ["tf215", "tf221"])
def test_the_same_records(env: str, tmp_path: Path) -> None:
    source = PROOF.replace("for d in (a, b)", "for d in ()")  # the loops over it are no part of the pipeline
    result = check.run(source, level=1)
    after = result.after.decode()
    assert after.count("num_parallel_calls") == 2 and after.count("num_parallel_reads") == 1, after
    outputs = []
    for name, text in ("before.py", PROOF), ("after.py", after.replace("for d in ()", "for d in (a, b)")):
        ast.parse(text)
        (tmp_path / name).write_text(text)
        done = run_script(tf_env(env), tmp_path / name, timeout=300)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] and outputs[0].count("RESULT") == 2
