"""`--distribute multiworker` for programs that train with `fit`."""

from __future__ import annotations

import pytest

from tests.check import Check
from tests.codemods.test_mirrored import DATA, FIT, HEAD, MODEL, scoped

check = Check("multiworker")

COMPILE = 'model.compile("adam", "mse")\n'
MADE = MODEL + COMPILE
STRATEGY = "\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
SEED = "tf.random.set_seed(0)  # the same order of the data on every worker\n"
CHIEF = (
    "worker = strategy.cluster_resolver\n"
    'is_chief = worker.task_type != "worker" or (worker.task_id == 0 and "chief" not in worker.cluster_spec().jobs)\n'
)
OPTIONS = (
    "options = tf.data.Options()\n"
    "options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA\n"
)
PATHS = '''

def path_of_worker(path):
    """Every worker takes part in saving; only the chief keeps its files."""
    return path if is_chief else os.path.join(folder_of_worker, os.path.basename(path))


'''


def test_arrays() -> None:
    """`fit` shuffles arrays, in the same way on every worker."""
    result = check.fixes(HEAD + DATA + MADE + FIT, HEAD + STRATEGY + SEED + DATA + scoped(MADE) + FIT)
    assert any("TF_CONFIG=" in note for note in result.applied[0].notes)
    fit = "model.fit(x, y, shuffle=False)\n"
    check.fixes(HEAD + DATA + MADE + fit, HEAD + STRATEGY + DATA + scoped(MADE) + fit)
    seeded = "keras.utils.set_random_seed(3)\n"
    check.fixes(HEAD + seeded + DATA + MADE + FIT, HEAD + STRATEGY + seeded + DATA + scoped(MADE) + FIT)


def test_random_arrays() -> None:
    """What is drawn at random is the same on every worker."""
    head = "import numpy as np\n" + HEAD
    data = "x = np.random.rand(100, 3)\ny = x * 2\n"
    seed = SEED.replace("tf.random.set_seed", "np.random.seed")
    check.fixes(head + data + MADE + FIT, head + STRATEGY + seed + SEED + data + scoped(MADE) + FIT)


def test_shuffles() -> None:
    ds = "ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(50).prefetch(2)\n"
    before = HEAD + DATA + ds + MADE + "model.fit(ds)\n"
    after = HEAD + STRATEGY + DATA + ds.replace("(100)", "(100, seed=0)") + scoped(MADE) + "model.fit(ds)\n"
    check.fixes(before, after)


def test_files() -> None:
    """Samples are divided, not files, of which there may be fewer than workers."""
    ds = "train, test = (tf.data.TFRecordDataset(n).batch(50) for n in ('a', 'b'))\n"
    ds = "train = tf.data.TFRecordDataset('a').batch(50)\ntest = tf.data.TFRecordDataset('b').batch(50)\n"
    fit = "model.fit(train, validation_data=test)\nmodel.evaluate(test)\n"
    after = fit.replace("train,", "train.with_options(options),").replace("test)", "test.with_options(options))")
    check.fixes(HEAD + ds + MADE + fit, HEAD + STRATEGY + OPTIONS + ds + scoped(MADE) + after)


def test_writes() -> None:
    """The chief writes; all workers take part in saving the model."""
    head = "import os\nimport tempfile\nimport numpy as np\n" + HEAD
    end = (
        'history = model.fit(x, y, batch_size=100, callbacks=[keras.callbacks.CSVLogger("log.csv"), '
        'keras.callbacks.ModelCheckpoint("best.h5")])\nmodel.save("model.h5")\n'
        'np.save("history.npy", history.history["loss"])\nprint(model.evaluate(x, y))\nmodel.load_weights("model.h5")\n'
    )
    after = end.replace('"log.csv"', 'path_of_worker("log.csv")').replace('"model.h5"', 'path_of_worker("model.h5")')
    after = after.replace("np.save(", "if is_chief:\n    np.save(")
    folder = "folder_of_worker = tempfile.mkdtemp()\n"
    check.fixes(head + DATA + MADE + end, head + STRATEGY + PATHS + SEED + CHIEF + folder + DATA + scoped(MADE) + after)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ('cb = keras.callbacks.ModelCheckpoint("b.h5")\nmodel.fit(x, y, callbacks=[cb])\nmodel.load_weights("b.h5")\n', "only the chief has written"),
        ('model.fit(x, y)\nnp.save("p.npy", model.predict(x))\n', "all workers take part in `model.predict`"),
        ("model.fit(batches(), steps_per_epoch=3)\n", "is given a generator"),
        ("model.fit(keras.preprocessing.image.ImageDataGenerator().flow(x, y))\n", "is given a loader"),
        ("ds = tf.data.Dataset.range(9).map(f, num_parallel_calls=4, deterministic=False).batch(3)\nmodel.fit(ds)\n", "`deterministic` is given"),
        ("model.fit(x, y, callbacks=[Unknown()])\n", "is not a callback that is known"),
        ("model.fit(x, y)\nmodel.train_on_batch(x, y)\n", "train_on_batch"),
    ],
)  # fmt: skip
def test_refused(end: str, reason: str) -> None:
    generator = "import numpy as np\n\n\ndef batches():\n    yield x, y\n\n\n"
    check.refuses(HEAD + generator + DATA + MADE + end, reason)


@pytest.mark.parametrize("asks", ["os.path.exists('m.h5')", "tf.train.latest_checkpoint('.') is not None"])
def test_what_an_earlier_run_has_written(asks: str) -> None:
    """Only the chief's host may have it: the workers would start from other weights."""
    resume = f"if {asks}:\n    model.load_weights('m.h5')\n"
    check.refuses("import os\n" + HEAD + DATA + MADE + resume + FIT, "may differ from host to host")


def test_keras3() -> None:
    source = HEAD + DATA + MADE + FIT
    check.refuses(source, "`fit` of Keras 3 fails", target="keras3")
