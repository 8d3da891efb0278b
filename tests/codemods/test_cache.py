from pathlib import Path

import pytest

from rewriter.engine import Options, Result, rewrite
from rewriter.target import named
from tests.check import Check
from tests.envs import run_script, tf_env

check = Check("cache")  # named, as `--select cache` does it

MODEL = """model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
"""
DECODE = """import tensorflow as tf
def decode(path, label):
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.image.resize(image, (8, 8)) / 255.0, label
def augment(image, label):
    return tf.image.random_flip_left_right(image), label
"""
SOURCE = "ds = tf.data.Dataset.from_tensor_slices((paths, labels))\n"


def fixes(before: str, after: str, fit: str = "model.fit(ds, epochs=3)\n", **options: object) -> Result:
    head = DECODE + SOURCE
    return check.fixes(head + before + MODEL + fit, head + after + MODEL + fit, **options)


def refuses(body: str, reason: str, fit: str = "model.fit(ds, epochs=3)\n", **options: object) -> None:
    check.refuses(DECODE + SOURCE + body + MODEL + fit, reason, **options)  # type: ignore[arg-type]


def ignores(body: str, fit: str = "model.fit(ds, epochs=3)\n", **options: object) -> None:
    check.ignores(DECODE + SOURCE + body + MODEL + fit, **options)


def by_level(source: str, level: int = 1, target: str = "tf2.15") -> Result:
    """As `-O1` does it, where nobody named the codemod."""
    path = Path("/nowhere/train.py")
    (result,) = rewrite([path], Options(level), lambda _: named(target), {path: source.encode()})
    assert result.error is None, result.error
    return result


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ds = ds.map(decode).batch(8)\n", "ds = ds.map(decode).cache().batch(8)\n"),
        ("ds = ds.map(decode).shuffle(9).batch(8)\n", "ds = ds.map(decode).cache().shuffle(9).batch(8)\n"),
        (
            "ds = ds.map(decode).map(augment).batch(8)\n",
            "ds = ds.map(decode).cache().map(augment).batch(8)\n",
        ),
        (
            "ds = ds.map(decode)\nds = ds.shuffle(9)\nds = ds.batch(8).prefetch(1)\n",
            "ds = ds.map(decode).cache()\nds = ds.shuffle(9)\nds = ds.batch(8).prefetch(1)\n",
        ),
        (
            "ds = (\n    ds\n    .map(decode)  # read\n    .map(lambda x, y: (x * 2, y))\n    .shuffle(9)\n    .batch(8)\n)\n",
            "ds = (\n    ds\n    .map(decode)  # read\n    .cache()\n    .map(lambda x, y: (x * 2, y))\n"
            "    .shuffle(9)\n    .batch(8)\n)\n",
        ),
        ("ds = ds.map(decode).prefetch(1).batch(8)\n", "ds = ds.map(decode).cache().prefetch(1).batch(8)\n"),
        ("ds = ds.skip(9).map(decode).batch(8)\n", "ds = ds.skip(9).map(decode).cache().batch(8)\n"),
        ("ds = ds.map(decode).take(99).batch(8)\n", "ds = ds.map(decode).take(99).cache().batch(8)\n"),
        ("ds = ds.map(decode).skip(99).batch(8)\n", "ds = ds.map(decode).cache().skip(99).batch(8)\n"),
        (
            "ds = ds.shuffle(9, reshuffle_each_iteration=False).map(decode).batch(8)\n",
            "ds = ds.shuffle(9, reshuffle_each_iteration=False).map(decode).cache().batch(8)\n",
        ),
        (
            "ds = ds.batch(4).unbatch().map(decode).batch(8)\n",
            "ds = ds.batch(4).unbatch().map(decode).cache().batch(8)\n",
        ),
        (
            "ds = ds.filter(lambda p, y: y > 0).map(decode).batch(8)\n",
            "ds = ds.filter(lambda p, y: y > 0).map(decode).cache().batch(8)\n",
        ),
        ("ds = ds.map(decode).repeat(2).batch(8)\n", "ds = ds.map(decode).cache().repeat(2).batch(8)\n"),
    ],
)
def test_place(before: str, after: str) -> None:
    fixes(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ds = ds.shuffle(9).map(decode).batch(8)\n", "ds = ds.map(decode).cache().shuffle(9).batch(8)\n"),
        (
            "ds = ds.shuffle(len(paths), seed=4).map(decode, num_parallel_calls=4).batch(8)\n",
            "ds = ds.map(decode, num_parallel_calls=4).cache().shuffle(len(paths), seed=4).batch(8)\n",
        ),
        (
            "ds = ds.shuffle(9)\nds = ds.map(decode)\nds = ds.map(augment)\nds = ds.batch(8)\n",
            "ds = ds.map(decode).cache()\nds = ds.shuffle(9)\nds = ds.map(augment)\nds = ds.batch(8)\n",
        ),
        (
            "ds = ds.shuffle(9).repeat().map(decode).batch(8)\n",
            "ds = ds.map(decode).cache().shuffle(9).repeat().batch(8)\n",
        ),
        (
            "ds = ds.shuffle(9).map(decode).map(lambda x, y: (tf.image.rot90(x), y)).batch(8)\n",
            "ds = ds.map(decode).map(lambda x, y: (tf.image.rot90(x), y)).cache().shuffle(9).batch(8)\n",
        ),
        (
            "ds = (\n    ds\n    .shuffle(9)\n    .map(\n        decode,\n        num_parallel_calls=2,\n    )\n    .batch(8)\n)\n",
            "ds = (\n    ds\n    .map(\n        decode,\n        num_parallel_calls=2,\n    )\n    .cache()\n    .shuffle(9)\n"
            "    .batch(8)\n)\n",
        ),
        (
            "# mix\nds = ds.shuffle(9)\n# read\nds = ds.map(decode)  # slow\nds = ds.batch(8)\n",
            "# read\nds = ds.map(decode)  # slow\nds = ds.cache()\n# mix\nds = ds.shuffle(9)\nds = ds.batch(8)\n",
        ),
        (
            "n = 9\nraw = ds.shuffle(n)\nds = raw.map(decode).batch(8)\n",
            "n = 9\nraw = ds.map(decode).cache()\nds = raw.shuffle(n).batch(8)\n",
        ),
    ],
)
def test_a_shuffle_goes_behind_it(before: str, after: str) -> None:
    fixes(
        before,
        after,
        "model.fit(ds, epochs=3, steps_per_epoch=4)\n" if "repeat" in before else "model.fit(ds, epochs=3)\n",
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("ds = ds.shuffle(9).batch(4).unbatch().map(decode).batch(8)\n", "would keep the order of the first epoch"),
        ("raw = ds.shuffle(9)\nds = raw.map(decode).batch(8)\nprint(list(raw.take(1)))\n", "cannot be moved behind it"),
        ("n = 9\nraw = ds.shuffle(n)\nn = 3\nds = raw.map(decode).batch(n)\n", "`n` is given a value between"),
        ("ds = ds.shuffle(9)\n# why\nds = ds.map(decode).batch(8)\n", "comments stand between"),
        ("ds = ds.map(lambda p, y: augment(*decode(p, y))).batch(8)\n", "draws random numbers"),
        ("ds = ds.map(augment).map(decode).batch(8)\n", "draws random numbers"),
        ("ds = ds.map(lambda p, y: (tf.py_function(load, [p], tf.float32), y)).batch(8)\n", "Python code"),
        ("ds = ds.map(lambda p, y: (tf.numpy_function(load, [p], tf.float32), y)).batch(8)\n", "Python code"),
        ("ds = ds.map(load).batch(8)\n", "what `load` does is not seen"),
        ("ds = ds.map(decode, num_parallel_calls=4, deterministic=False).batch(8)\n", "gives up the order"),
        ("v = tf.Variable(8)\nds = ds.map(lambda p, y: (decode(p, y)[0] * v, y)).batch(8)\n", "another value"),
        ("ds = ds.map(lambda p, y: (decode(p, y)[0], tf.timestamp())).batch(8)\n", "another value"),
        ("ds = ds.apply(tf.data.experimental.unique()).map(decode).batch(8)\n", "`apply`"),
        (
            "base = tf.keras.applications.VGG16()\nds = ds.map(lambda p, y: (base(decode(p, y)[0]), y)).batch(8)\n",
            "weights",
        ),
        (
            "dense = tf.keras.layers.Dense(3)\nds = ds.map(lambda p, y: (dense(decode(p, y)[0]), y)).batch(8)\n",
            "weights",
        ),
        ("def f(p, y):\n    tf.print(p)\n    return decode(p, y)\nds = ds.map(f).batch(8)\n", "it prints"),
        ("options = tf.data.Options()\noptions.deterministic = False\nds = ds.map(decode).batch(8)\n", "one order"),
        ("ds = ds.shuffle(9).map(decode).take(99).batch(8)\n", "`take`"),
        ("ds = ds.repeat().filter(lambda p, y: y > 0).map(decode).batch(8)\n", "`repeat`"),
    ],
)
def test_refusals(body: str, reason: str) -> None:
    refuses(body, reason)


@pytest.mark.parametrize(
    "body",
    [
        "ds = ds.map(decode).cache().batch(8)\n",
        "ds = ds.map(decode).shuffle(9).batch(8).cache()\n",
        "ds = ds.cache().map(decode).batch(8)\n",
        "ds = ds.map(decode).cache('/tmp/x').batch(8)\n",
        "ds = ds.map(decode).snapshot('/tmp/x').batch(8)\n",
        "ds = ds.shuffle(9).batch(8)\n",
        "ds = ds.map(lambda x, y: (tf.cast(x, tf.float32) / 255.0, tf.one_hot(y, 10))).batch(8)\n",
        "ds = ds.map(lambda x, y: (y, x)).batch(8)\n",
        "ds = ds.batch(8)\n",
    ],
)
def test_nothing_to_gain(body: str) -> None:
    ignores(body)


MAPPED = "ds = ds.map(decode).batch(8)\n"
CACHED = "ds = ds.map(decode).cache().batch(8)\n"


@pytest.mark.parametrize(
    "fit",
    [
        "model.fit(ds, epochs=2)\n",
        "for round in range(3):\n    model.fit(ds)\n",
        "model.fit(x, y, epochs=2, validation_data=ds)\n",
        "for epoch in range(3):\n    for x, y in ds:\n        model.train_on_batch(x, y)\n",
        "for epoch in range(3):\n    for i, (x, y) in enumerate(ds):\n        if i == 3:\n            continue\n"
        "        model.train_on_batch(x, y)\n",
        "def train(data):\n    for x, y in data:\n        model.train_on_batch(x, y)\nwhile True:\n    train(ds)\n",
        "for epoch in range(3):\n    model.evaluate(ds)\n",
        "model.fit(ds.repeat(), epochs=2, steps_per_epoch=10)\n",
        "model.fit(ds, epochs=FLAGS.epochs)\n",
    ],
)
def test_read_often(fit: str) -> None:
    fixes(MAPPED, CACHED, fit)


@pytest.mark.parametrize(
    "fit",
    [
        "model.fit(ds)\n",
        "model.fit(ds, epochs=1)\n",
        "model.evaluate(ds)\n",
        "model.fit(x, y, validation_data=ds)\n",
        "for x, y in ds:\n    model.train_on_batch(x, y)\n",
        "def train(data):\n    for x, y in data:\n        model.train_on_batch(x, y)\ntrain(ds)\n",
        "for x, y in ds.take(2):\n    print(x)\n",
    ],
)
def test_read_once(fit: str) -> None:
    ignores(MAPPED, fit)


def test_made_anew_for_every_epoch() -> None:
    ignores(
        "def make():\n    return ds.map(decode).batch(8)\n",
        "for epoch in range(3):\n    for x, y in make():\n        model.train_on_batch(x, y)\n",
    )
    ignores(
        "",
        "for epoch in range(3):\n    data = ds.map(decode).batch(8)\n    for x, y in data:\n"
        "        model.train_on_batch(x, y)\n",
    )


@pytest.mark.parametrize(
    ("fit", "reason"),
    [
        ("model.fit(ds, epochs=3, steps_per_epoch=5)\n", "`steps_per_epoch` may end a pass"),
        ("model.fit(x, y, epochs=3, validation_data=ds, validation_steps=5)\n", "`validation_steps` may end a pass"),
        ("model.fit(ds.shuffle(3).take(5), epochs=3)\n", "`take`"),
        (
            "for epoch in range(3):\n    for i, (x, y) in enumerate(ds):\n        if i == 3:\n            break\n"
            "        model.train_on_batch(x, y)\n",
            "the loop may end before",
        ),
        ("model.fit(ds, epochs=3, **more)\n", "may cut a pass short"),
    ],
)
def test_a_pass_is_cut_short(fit: str, reason: str) -> None:
    refuses(MAPPED, reason, fit)


def test_steps_that_are_all_there_are() -> None:
    source = "import tensorflow as tf\nds = tf.data.Dataset.range(40).map(tf.io.encode_base64)"
    fit = "model.fit(ds, epochs=3, steps_per_epoch=5)\n"
    check.fixes(
        f"{source}.batch(8)\n{MODEL}{fit}",
        f"{source}.cache().batch(8)\n{MODEL}{fit}",
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('tf.data.Dataset.list_files("*.jpg")', "another order in every epoch"),
        ('tf.data.Dataset.list_files("*.jpg", seed=3)', "another order in every epoch"),
        ("tf.data.Dataset.from_generator(g, tf.string)", "Python code"),
        ("tf.data.Dataset.random(3)", "is not known"),
        ('tf.data.experimental.make_csv_dataset("a.csv", 8)', "is not known"),
        (
            "tf.data.Dataset.from_tensor_slices(f).interleave(lambda p: tf.data.TFRecordDataset(p).shuffle(9))",
            "would keep the order",
        ),
        (
            "tf.data.Dataset.from_tensor_slices(f).interleave(tf.data.TFRecordDataset, num_parallel_calls=4, "
            "deterministic=False)",
            "gives up the order",
        ),
        ("tf.data.Dataset.zip((tf.data.Dataset.list_files('a*'), tf.data.Dataset.range(3)))", "another order"),
        ("tf.data.Dataset.sample_from_datasets([a, b])", "is not known"),
    ],
)
def test_sources_that_vary(source: str, reason: str) -> None:
    check.refuses(
        f"{DECODE}ds = {source}.map(lambda p: tf.io.decode_raw(p, tf.uint8)).batch(8)\n{MODEL}model.fit(ds, epochs=3)\n",
        reason,
    )


@pytest.mark.parametrize(
    "source",
    [
        'tf.data.Dataset.list_files("*.jpg", shuffle=False)',
        "tf.data.TFRecordDataset(files)",
        "tf.data.TFRecordDataset(files, num_parallel_reads=4)",
        "tf.data.Dataset.from_tensor_slices(f).interleave(tf.data.TFRecordDataset, cycle_length=4)",
        "tf.data.Dataset.from_tensor_slices(f).interleave(lambda p: tf.data.TextLineDataset(p).skip(1))",
        "tf.data.Dataset.from_tensor_slices(f).flat_map(tf.data.TFRecordDataset)",
        "tf.data.Dataset.zip((tf.data.TFRecordDataset(a), tf.data.TFRecordDataset(b)))",
    ],
)
def test_steady_sources(source: str) -> None:
    body = f"{DECODE}ds = {source}.map(lambda *p: tf.io.decode_raw(p[0], tf.uint8))%s.batch(8)\n{MODEL}model.fit(ds, epochs=3)\n"
    check.fixes(body % "", body % ".cache()")


DIRECTORY = 'import tensorflow as tf\nds = tf.keras.utils.image_dataset_from_directory("a"%s)%s\n' + MODEL
IMAGES = DIRECTORY + "model.fit(ds, epochs=3)\n"


def test_directories() -> None:
    check.fixes(IMAGES % (", shuffle=False", ""), IMAGES % (", shuffle=False", ".cache()"))
    check.refuses(IMAGES % (", shuffle=False", "") + "print(ds.class_names)\n", "attribute")
    validation = DIRECTORY + "model.fit(x, y, epochs=3, validation_data=ds)\n"
    check.fixes(validation % (", seed=3", ""), validation % (", seed=3", ".cache()"))


@pytest.mark.parametrize(
    ("arguments", "after", "batch"),
    [
        ("", ", batch_size=None", ".cache().shuffle(1024).batch(32)"),
        (", batch_size=8, seed=SEED", ", batch_size=None, seed=SEED", ".cache().shuffle(1024, seed=SEED).batch(8)"),
        (
            ", validation_split=0.2, subset='training', seed=1, batch_size=n",
            ", validation_split=0.2, subset='training', seed=1, batch_size=None",
            ".cache().shuffle(1024, seed=1).batch(n)",
        ),
    ],
)
def test_directories_that_are_shuffled(arguments: str, after: str, batch: str) -> None:
    result = check.fixes(IMAGES % (arguments, ""), IMAGES % (after, batch))
    assert "another order" in result.applied[0].message
    check.refuses(IMAGES % (arguments, ""), "changes more than -O1 allows", level=1)


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (", batch_size=None", ".shuffle(9).batch(8)"),
        (", subset='both', validation_split=0.2", ""),
        (", **more", ""),
        (", shuffle=flag", ""),
        ("", ".unbatch().batch(4)"),
        ("", ".take(4)"),
    ],
)
def test_directories_that_stay(arguments: str, more: str) -> None:
    before = IMAGES % (arguments, more)
    assert check.run(before).after.decode() == before


def test_directories_stay_where_nobody_named_it() -> None:
    result = by_level(IMAGES % ("", ""), 2)
    assert ".cache()" not in result.after.decode()
    assert any("shuffles in every epoch" in r.reason for r in result.refused)


def test_one_line_that_makes_several_datasets() -> None:
    """The training data is shuffled first, the validation data is not."""
    body = """def load(data, training):
    if training:
        data = data.shuffle(9)
    data = data.map(decode)
    return data.batch(8)
train, val = load(ds, True), load(ds, False)
"""
    refuses(body, "cannot be moved behind it", "model.fit(train, epochs=3, validation_data=val)\n")
    for other in (".shuffle(9)", ".repeat()", ".map(augment)", ".map(load_by_hand)"):
        text = f"def load(data):\n    return data.map(decode).batch(8)\nval = load(ds)\ntrain = load(ds{other})\n"
        refuses(text, "the same line makes another dataset", "model.fit(x, y, epochs=3, validation_data=val)\n")


def test_a_cache_in_one_branch() -> None:
    refuses(
        "ds = ds.map(decode)\nif flag:\n    ds = ds.shuffle(9).cache()\nds = ds.batch(8)\n",
        "cache already on another way",
    )


def test_a_repeat_that_is_not_read_twice() -> None:
    source = SIZED.replace(".shuffle(99)", ".repeat()") % (9000, 9000)
    fit = "model.fit(ds, epochs=2, steps_per_epoch=%s)\n"
    check.ignores(source + MODEL + fit % 1000)
    assert ".cache()" in check.run(source + MODEL + fit % 2000).after.decode()


def test_zipped_and_windows() -> None:
    fixes(
        "a = ds.map(decode)\nds = tf.data.Dataset.zip((a, ds)).shuffle(9).batch(8)\n",
        "a = ds.map(decode)\nds = tf.data.Dataset.zip((a, ds)).cache().shuffle(9).batch(8)\n",
    )
    fixes(
        "ds = ds.window(9).flat_map(lambda w: w.batch(9)).shuffle(9).batch(8)\n",
        "ds = ds.window(9).flat_map(lambda w: w.batch(9)).cache().shuffle(9).batch(8)\n",
    )
    refuses("a = ds.map(decode).map(augment)\nds = tf.data.Dataset.zip((a, ds)).batch(8)\n", "draws random numbers")


def test_preprocessing_layers() -> None:
    head = """import tensorflow as tf
vectorize = tf.keras.layers.TextVectorization(max_tokens=9)
texts = tf.data.TextLineDataset("a.txt")
"""
    adapt = "vectorize.adapt(texts)\n"
    ds = "ds = texts.map(vectorize)%s.batch(8)\n"
    end = MODEL + "model.fit(ds, epochs=3)\n"
    check.fixes(head + adapt + ds % "" + end, head + adapt + ds % ".cache()" + end)
    check.refuses(head + ds % "" + adapt + end, "may change what it does afterwards")


def test_training_and_validation_of_one_dataset() -> None:
    fixes(
        "ds = ds.map(decode)\nval = ds.take(9).batch(8)\ntrain = ds.skip(9).shuffle(9).batch(8)\n",
        "ds = ds.map(decode).cache()\nval = ds.take(9).batch(8)\ntrain = ds.skip(9).shuffle(9).batch(8)\n",
        "model.fit(train, validation_data=val, epochs=3)\n",
    )


# -- how much memory -----------------------------------------------------------------------------------------

SIZED = """import numpy as np
import tensorflow as tf
def enlarge(image, label):
    return tf.image.resize(image, (96, 96)), label
images, labels = np.zeros((%d, 28, 28, 3), "float32"), np.zeros(%d)
ds = tf.data.Dataset.from_tensor_slices((images, labels)).map(enlarge).shuffle(99).batch(8)
"""


@pytest.mark.parametrize(
    ("count", "said", "named_too"),
    [(1280, "", "caching 142 MB in memory"), (6000, "it would take 664 MB", "caching 664 MB"), (100000, "11 GB", "")],
)
def test_memory(count: int, said: str, named_too: str) -> None:
    source = SIZED % (count, count) + MODEL + "model.fit(ds, epochs=2)\n"
    result = by_level(source)
    reasons = [r.reason for r in result.refused if r.codemod == "cache"]
    assert (".cache()" in result.after.decode()) == (said == "")
    assert any(said in r for r in reasons) or not said
    if named_too:
        assert any(named_too in a.message for a in check.run(source).applied)
    else:
        check.refuses(source, said)


def test_not_known_how_much() -> None:
    source = DECODE + SOURCE + MAPPED + MODEL + "model.fit(ds, epochs=2)\n"
    (refused,) = [r for r in by_level(source).refused if r.codemod == "cache"]
    assert "how much memory it takes is not known" in refused.reason and "tune" in refused.hint
    assert any("unknown amount" in a.message for a in check.run(source).applied)


def test_epochs_that_are_not_known() -> None:
    source = SIZED % (99, 99) + MODEL + "model.fit(ds, epochs=args.epochs)\n"
    (refused,) = [r for r in by_level(source).refused if r.codemod == "cache"]
    assert "how many epochs there are is not known: `args.epochs`" in refused.reason


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ("import horovod.tensorflow as hvd\n", "Horovod"),
        ("strategy = tf.distribute.MultiWorkerMirroredStrategy()\n", "every worker"),
    ],
)
def test_distributed(extra: str, reason: str) -> None:
    refuses(extra + MAPPED, reason)


def test_one_cache_where_one_dataset_is_made_from_another() -> None:
    body = "ds = ds.map(decode)%s\ntrain, val = ds.take(30), ds.skip(30)\n"
    fit = "model.fit(train.batch(8), validation_data=val.batch(8), epochs=3)\n"
    fixes(body % "", body % ".cache()", fit)


def test_tensorflow_1() -> None:
    ignores(MAPPED, target="tf1.15")


def test_with_the_other_codemods() -> None:
    source = SIZED % (99, 99) + MODEL + "model.fit(ds, epochs=2)\n"
    result = by_level(source, target="tf2.8")
    assert (
        ".map(enlarge, num_parallel_calls=tf.data.AUTOTUNE).cache().shuffle(99).batch(8).prefetch(tf.data.AUTOTUNE)"
        in "".join(result.after.decode().split("\n    ")).replace("\n)", "")
    )


# -- the same numbers ----------------------------------------------------------------------------------------

HEAD = """
import os, tempfile
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(3)
folder = tempfile.mkdtemp()
paths = []
for i in range(40):
    paths.append(os.path.join(folder, f"{i}.png"))
    tf.io.write_file(paths[-1], tf.io.encode_png(np.random.randint(0, 255, (12, 12, 3)).astype("uint8")))
labels = np.random.rand(40).astype("float32")


def decode(path, label):
    image = tf.io.decode_png(tf.io.read_file(path), channels=3)
    return tf.image.resize(image, (8, 8)) / 255.0, label


def augment(image, label):
    return tf.image.random_flip_left_right(image), label


class Steps(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("RESULT", logs["loss"])
"""
TRAIN = """
model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(4, "relu"), tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(ds, validation_data=val, epochs=3, callbacks=[Steps()], verbose=0)
print("RESULT", history.history["val_loss"], [float(np.sum(w)) for w in model.get_weights()])
"""
PIPELINES = [
    "val = src.take(16).map(decode).batch(8)\nds = src.map(decode).shuffle(16).batch(8)",
    "val = src.take(16).map(decode).batch(8)\nds = src.shuffle(16).map(decode).batch(8)",
    "val = src.skip(20).map(decode).batch(8)\nraw = src.shuffle(16, seed=5)\nds = raw.map(decode).map(augment).batch(8)",
    "val = src.map(decode).take(9).batch(4)\nds = src.shuffle(7).repeat(2).map(decode).batch(8)",
]


@pytest.mark.tf
@pytest.mark.parametrize("env", ["tf215", "tf221"])
def test_losses_are_equal_to_the_last_bit(env: str, tmp_path: Path) -> None:
    source = "src = tf.data.Dataset.from_tensor_slices((paths, labels))\n"
    before = HEAD + "".join(source + p + TRAIN for p in PIPELINES)
    after = check.run(before, target="tf2.15" if env == "tf215" else "tf2.21").after.decode()
    assert after.count(".cache()") == 2 * len(PIPELINES)
    found = []
    for name, text in (("before", before), ("after", after)):
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        done = run_script(tf_env(env), path, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append([x for x in done.stdout.splitlines() if x.startswith("RESULT")])
    assert found[0] == found[1] and len(found[0]) == len(PIPELINES) * (3 * 5 + 1) + 15, after


EPOCHS = """
class Clear(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        orders.append(str(seen))
        seen.clear()
        for path in paths if epoch == 0 else []:
            os.remove(path)


def note(images, labels):
    tf.py_function(lambda x: seen.extend(x.numpy().tolist()), [labels], [])
    return images, labels


seen, orders = [], []
val = tf.data.Dataset.from_tensor_slices((paths, labels)).map(decode).batch(8)
ds = tf.data.Dataset.from_tensor_slices((paths, labels))
ds = ds.shuffle(40).map(decode).batch(8).map(note)
model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(ds, validation_data=val, epochs=3, callbacks=[Clear()], verbose=0)
print("RESULT", len(orders), len(set(orders)))
"""


@pytest.mark.tf
@pytest.mark.parametrize("env", ["tf215", "tf221"])
def test_files_are_read_once_and_every_epoch_has_an_order_of_its_own(env: str, tmp_path: Path) -> None:
    path = tmp_path / "after.py"
    path.write_text(check.run(HEAD + EPOCHS, target="tf2.15" if env == "tf215" else "tf2.21").after.decode())
    assert path.read_text().count(".cache()") == 2 and ".map(decode).cache().shuffle(40)" in path.read_text()
    done = run_script(tf_env(env), path, timeout=300)
    assert "RESULT 3 3" in done.stdout, done.stderr[-3000:]


def test_lists_of_texts_and_numbers_tell_their_size() -> None:
    source = """import random
import tensorflow as tf
texts = [f"text {i}" for i in range(2000)]
labels = [random.randrange(2) for text in texts]
vectorize = tf.keras.layers.TextVectorization(output_mode="int", output_sequence_length=32)
vectorize.adapt(tf.data.Dataset.from_tensor_slices(texts).batch(512))
ds = tf.data.Dataset.from_tensor_slices((texts, labels)).shuffle(100)
ds = ds.map(lambda text, label: (vectorize(text), label)).batch(8)
"""
    source += MODEL + "model.fit(ds, epochs=3)\n"
    assert any("528 kB" in a.message for a in by_level(source).applied), by_level(source)
    unknown = source.replace("random.randrange(2) for", "load(text) for")
    assert any("how large an element is" in r.reason for r in by_level(unknown).refused)
