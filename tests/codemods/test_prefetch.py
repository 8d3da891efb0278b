from pathlib import Path

import pytest

from tests.check import Check

check = Check("prefetch")

HEAD = """
import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
"""


def test_appends_to_the_last_stage() -> None:
    check.fixes(
        HEAD
        + """ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
model.fit(ds)
""",
        HEAD
        + """ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32).prefetch(tf.data.AUTOTUNE)
model.fit(ds)
""",
    )


def test_training_and_validation_and_evaluation() -> None:
    check.fixes(
        HEAD
        + """train = tf.data.Dataset.from_tensor_slices(a).batch(32).repeat()
val = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
test = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
model.fit(train, validation_data=val, steps_per_epoch=10)
model.evaluate(test)
""",
        HEAD
        + """train = tf.data.Dataset.from_tensor_slices(a).batch(32).repeat().prefetch(tf.data.AUTOTUNE)
val = tf.data.Dataset.from_tensor_slices((x, y)).batch(32).prefetch(tf.data.AUTOTUNE)
test = tf.data.Dataset.from_tensor_slices((x, y)).batch(32).prefetch(tf.data.AUTOTUNE)
model.fit(train, validation_data=val, steps_per_epoch=10)
model.evaluate(test)
""",
    )


def test_one_edit_serves_a_function_used_for_training_and_validation() -> None:
    result = check.fixes(
        HEAD
        + """def make(files, training):
    ds = tf.data.TFRecordDataset(files)
    if training:
        ds = ds.shuffle(100).repeat()
    return ds.batch(32)
train, val = make("a", True), make("b", False)
model.fit(train, validation_data=val)
""",
        HEAD
        + """def make(files, training):
    ds = tf.data.TFRecordDataset(files)
    if training:
        ds = ds.shuffle(100).repeat()
    return ds.batch(32).prefetch(tf.data.AUTOTUNE)
train, val = make("a", True), make("b", False)
model.fit(train, validation_data=val)
""",
    )
    assert len(result.applied) == 1


def test_where_branches_of_a_function_meet() -> None:
    check.fixes(
        HEAD
        + """def make(training):
    ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    if training:
        ds = ds.repeat()
    return ds
model.fit(make(True), steps_per_epoch=3, validation_data=make(False))
""",
        HEAD
        + """def make(training):
    ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    if training:
        ds = ds.repeat()
    return ds.prefetch(tf.data.AUTOTUNE)
model.fit(make(True), steps_per_epoch=3, validation_data=make(False))
""",
    )


def test_where_branches_of_a_script_meet() -> None:
    check.fixes(
        HEAD
        + """if augment:
    ds = tf.data.Dataset.from_tensor_slices((x, y)).map(flip).batch(32)
else:
    ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
model.fit(ds)
""",
        HEAD
        + """if augment:
    ds = tf.data.Dataset.from_tensor_slices((x, y)).map(flip).batch(32)
else:
    ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
model.fit(ds.prefetch(tf.data.AUTOTUNE))
""",
    )


def test_tuples_dicts_attributes_and_parameters() -> None:
    check.fixes(
        """import tensorflow as tf
class Data:
    def __init__(self):
        self.train_ds = tf.data.Dataset.from_tensor_slices(a).batch(8)
def pair():
    train = tf.data.Dataset.from_tensor_slices(b).batch(8)
    return train, tf.data.Dataset.from_tensor_slices(c).batch(8)
def run(model, ds):
    model.fit(ds)
model = tf.keras.Sequential([])
data = Data()
model.fit(data.train_ds)
train, val = pair()
sets = {"train": train, "val": val}
model.fit(sets["train"], validation_data=sets["val"])
run(model, tf.data.Dataset.from_tensor_slices(d).batch(8))
""",
        """import tensorflow as tf
class Data:
    def __init__(self):
        self.train_ds = tf.data.Dataset.from_tensor_slices(a).batch(8).prefetch(tf.data.AUTOTUNE)
def pair():
    train = tf.data.Dataset.from_tensor_slices(b).batch(8).prefetch(tf.data.AUTOTUNE)
    return train, tf.data.Dataset.from_tensor_slices(c).batch(8).prefetch(tf.data.AUTOTUNE)
def run(model, ds):
    model.fit(ds)
model = tf.keras.Sequential([])
data = Data()
model.fit(data.train_ds)
train, val = pair()
sets = {"train": train, "val": val}
model.fit(sets["train"], validation_data=sets["val"])
run(model, tf.data.Dataset.from_tensor_slices(d).batch(8).prefetch(tf.data.AUTOTUNE))
""",
    )


def test_attributes_of_the_dataset_are_kept() -> None:
    check.fixes(
        HEAD
        + """train = tf.keras.utils.image_dataset_from_directory("a", batch_size=32)
model.fit(train)
print(train.class_names)
""",
        HEAD
        + """train = tf.keras.utils.image_dataset_from_directory("a", batch_size=32)
model.fit(train.prefetch(tf.data.AUTOTUNE))
print(train.class_names)
""",
    )


def test_attributes_before_a_further_stage_do_not_matter() -> None:
    check.fixes(
        HEAD
        + """train = tf.keras.utils.image_dataset_from_directory("a")
names = train.class_names
train = train.cache()
model.fit(train)
""",
        HEAD
        + """train = tf.keras.utils.image_dataset_from_directory("a")
names = train.class_names
train = train.cache().prefetch(tf.data.AUTOTUNE)
model.fit(train)
""",
    )


def test_extended_elsewhere() -> None:
    check.fixes(
        HEAD
        + """ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
for batch in ds.take(1):
    print(batch)
model.fit(ds)
""",
        HEAD
        + """ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
for batch in ds.take(1):
    print(batch)
model.fit(ds.prefetch(tf.data.AUTOTUNE))
""",
    )


def test_an_earlier_prefetch_is_not_the_end() -> None:
    check.fixes(
        HEAD
        + """ds = tf.data.Dataset.from_tensor_slices(a).prefetch(2).batch(32)
model.fit(ds)
""",
        HEAD
        + """ds = tf.data.Dataset.from_tensor_slices(a).prefetch(2).batch(32).prefetch(tf.data.AUTOTUNE)
model.fit(ds)
""",
    )


def test_what_unpacking_gives_is_prefetched_where_it_is_used() -> None:
    check.fixes(
        HEAD
        + """import tensorflow_datasets as tfds
(train, test), info = tfds.load("mnist", split=["train", "test"], with_info=True, batch_size=32)
model.fit(train, validation_data=test)
""",
        HEAD
        + """import tensorflow_datasets as tfds
(train, test), info = tfds.load("mnist", split=["train", "test"], with_info=True, batch_size=32)
model.fit(train.prefetch(tf.data.AUTOTUNE), validation_data=test.prefetch(tf.data.AUTOTUNE))
""",
    )


def test_module_level_names_in_functions_are_the_last_ones() -> None:
    check.fixes(
        HEAD
        + """ds = tf.data.Dataset.from_tensor_slices((x, y))
ds = ds.shuffle(100).batch(32)
def main():
    model.fit(ds)
main()
""",
        HEAD
        + """ds = tf.data.Dataset.from_tensor_slices((x, y))
ds = ds.shuffle(100).batch(32).prefetch(tf.data.AUTOTUNE)
def main():
    model.fit(ds)
main()
""",
    )


def test_training_loop() -> None:
    check.fixes(
        """import tensorflow as tf
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = f(x, y)
for epoch in range(3):
    for i, (a, b) in enumerate(ds.take(100)):
        step(a, b)
""",
        """import tensorflow as tf
ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32).prefetch(tf.data.AUTOTUNE)
@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = f(x, y)
for epoch in range(3):
    for i, (a, b) in enumerate(ds.take(100)):
        step(a, b)
""",
    )


def test_iterator_by_hand() -> None:
    check.fixes(
        """import tensorflow as tf
model = tf.keras.Sequential([])
it = iter(tf.data.Dataset.from_tensor_slices((x, y)).batch(32))
for step in range(100):
    model.train_on_batch(*next(it))
""",
        """import tensorflow as tf
model = tf.keras.Sequential([])
it = iter(tf.data.Dataset.from_tensor_slices((x, y)).batch(32).prefetch(tf.data.AUTOTUNE))
for step in range(100):
    model.train_on_batch(*next(it))
""",
    )


def test_before_an_iterator_of_tensorflow_1() -> None:
    result = check.fixes(
        """import tensorflow as tf
tf.set_random_seed(1)
x, y = tf.data.Dataset.from_tensor_slices(a).repeat().batch(8).make_one_shot_iterator().get_next()
train = tf.train.AdamOptimizer(0.1).minimize(f(x, y))
""",
        """import tensorflow as tf
tf.set_random_seed(1)
x, y = tf.data.Dataset.from_tensor_slices(a).repeat().batch(8).prefetch(tf.data.experimental.AUTOTUNE)\
.make_one_shot_iterator().get_next()
train = tf.train.AdamOptimizer(0.1).minimize(f(x, y))
""",
        target="tf1.15",
    )
    assert "seed" in result.applied[0].message


def test_estimator() -> None:
    check.fixes(
        """import tensorflow as tf
def train_input():
    return tf.data.TFRecordDataset("a").shuffle(10).batch(32)
est = tf.estimator.Estimator(f)
est.train(input_fn=train_input)
est.evaluate(input_fn=lambda: tf.data.TFRecordDataset("b").batch(32))
""",
        """import tensorflow as tf
def train_input():
    return tf.data.TFRecordDataset("a").shuffle(10).batch(32).prefetch(tf.data.AUTOTUNE)
est = tf.estimator.Estimator(f)
est.train(input_fn=train_input)
est.evaluate(input_fn=lambda: tf.data.TFRecordDataset("b").batch(32).prefetch(tf.data.AUTOTUNE))
""",
    )


def test_before_distribution() -> None:
    check.fixes(
        """import tensorflow as tf
strategy = tf.distribute.MirroredStrategy()
ds = tf.data.Dataset.from_tensor_slices(a).batch(8)
dist = strategy.experimental_distribute_dataset(ds)
def per_worker(context):
    return tf.data.Dataset.from_tensor_slices(a).batch(8)
other = strategy.distribute_datasets_from_function(per_worker)
""",
        """import tensorflow as tf
strategy = tf.distribute.MirroredStrategy()
ds = tf.data.Dataset.from_tensor_slices(a).batch(8).prefetch(tf.data.AUTOTUNE)
dist = strategy.experimental_distribute_dataset(ds)
def per_worker(context):
    return tf.data.Dataset.from_tensor_slices(a).batch(8).prefetch(tf.data.AUTOTUNE)
other = strategy.distribute_datasets_from_function(per_worker)
""",
    )


@pytest.mark.parametrize(
    ("imports", "spelling", "target"),
    [
        ("import tensorflow as tf\nAUTOTUNE = tf.data.experimental.AUTOTUNE", "AUTOTUNE", "tf2.15"),
        ("import tensorflow as tf", "tf.data.experimental.AUTOTUNE", "tf2.3"),
        ("import tensorflow as tf", "tf.data.AUTOTUNE", "keras3"),
        ("import tensorflow", "tensorflow.data.AUTOTUNE", "tf2.15"),
    ],
)
def test_spelling(imports: str, spelling: str, target: str) -> None:
    text = """
from tensorflow import keras
from tensorflow.data import Dataset
model = keras.Sequential([])
model.fit(Dataset.from_tensor_slices((x, y)).batch(32){})
"""
    after = text.format(f".prefetch({spelling})")
    check.fixes(imports + text.format(""), imports + after, target=target)


def test_no_import_for_what_tensorflow_does_unasked() -> None:
    before = """from tensorflow import keras
model = keras.Sequential([])
train = keras.utils.image_dataset_from_directory("a")
model.fit(train)
"""
    after = before.replace("keras\nmodel", "keras\nimport tensorflow as tf\nmodel")
    after = after.replace('directory("a")', 'directory("a").prefetch(tf.data.AUTOTUNE)')
    check.fixes(before, after, target="tf2.10")
    check.ignores(before, target="tf2.11")
    check.ignores(before, target="keras3")


@pytest.mark.parametrize("block", ["if True:", "if gpu:", "for _ in (1,):"])
def test_an_import_in_a_block(block: str) -> None:
    text = f"""{block}
    import tensorflow as tf
model = tf.keras.Sequential([])
model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8)%s)
"""
    check.fixes(text % "", text % ".prefetch(tf.data.AUTOTUNE)")


def test_splits_that_are_nested() -> None:
    text = """import tensorflow_datasets as tfds
(train, val), test = tfds.load("mnist", split=[["train[:80%]", "train[80%:]"], "test"])
model.fit(train{}, validation_data=val{})
model.evaluate(test{})
"""
    check.fixes(HEAD + text.format("", "", ""), HEAD + text.format(*3 * [".prefetch(tf.data.AUTOTUNE)"]))


def test_message_names_tensorflow_2_11() -> None:
    source = HEAD + "model.fit(tf.data.Dataset.from_tensor_slices(x).batch(2))\n"
    assert "2.11" in check.run(source).applied[0].message
    assert "2.11" not in check.run(source, target="tf2.8").applied[0].message


@pytest.mark.parametrize(
    "fit",
    [
        "ds = tf.data.Dataset.from_tensor_slices(x).batch(32).prefetch(1)\nmodel.fit(ds)",
        "ds = tf.data.Dataset.from_tensor_slices(x).batch(32).prefetch(1).repeat()\nmodel.fit(ds)",
        "ds = tf.data.Dataset.from_tensor_slices(x).batch(32).prefetch(1).with_options(options)\nmodel.fit(ds)",
        "ds = tf.data.Dataset.from_tensor_slices(x).batch(32)\n"
        "model.fit(ds.apply(tf.data.experimental.prefetch_to_device('/gpu:0')))",
        "ds = tf.data.Dataset.from_tensor_slices(x).batch(32)\n"
        "model.fit(ds.apply(tf.data.experimental.copy_to_device('/gpu:0')))",
        "ds = tf.data.Dataset.from_tensor_slices(x).batch(32)\nif fast:\n    ds = ds.prefetch(8)\nmodel.fit(ds)",
        "model.fit(x, y, batch_size=32, validation_data=(a, b))",
        "model.fit(loader(), epochs=3)",
        "model.predict(tf.data.Dataset.from_tensor_slices(x).batch(2))",
        "model.fit(zip(x, y))",
        "for batch in tf.data.Dataset.from_tensor_slices(x).batch(32):\n    print(batch)",
        "print(next(iter(tf.data.Dataset.from_tensor_slices(x).batch(32))))",
        "for step in tf.data.Dataset.range(100):\n    model.train_on_batch(x, y)",
        "regressor.fit(tf.data.Dataset.from_tensor_slices(x).batch(2).map(f).prefetch(3))",
    ],
)
def test_nothing_to_do(fit: str) -> None:
    check.ignores(HEAD + fit + "\n")


def test_a_dataset_from_outside_is_refused() -> None:
    check.refuses(
        HEAD + "from elsewhere import load\nmodel.fit(load().shuffle(10).batch(32))\n", "cannot be followed", line=5
    )


def test_ignore_comment() -> None:
    fit = "model.fit(tf.data.Dataset.from_tensor_slices(x).batch(2))"
    check.ignores(HEAD + fit + "  # tfboost: ignore[prefetch]\n")


def test_class_names_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(
        "import tensorflow as tf\ndef load():\n    return tf.keras.utils.image_dataset_from_directory('a')\n"
    )
    check.fixes(
        """import tensorflow as tf
import data
model = tf.keras.Sequential([])
train = data.load()
model.fit(train)
print(train.class_names)
""",
        """import tensorflow as tf
import data
model = tf.keras.Sequential([])
train = data.load()
model.fit(train.prefetch(tf.data.AUTOTUNE))
print(train.class_names)
""",
        folder=tmp_path,
    )


def test_a_branch_that_is_also_used_by_itself() -> None:
    check.fixes(
        HEAD
        + """a = tf.data.Dataset.from_tensor_slices(x).batch(2)
b = tf.data.Dataset.from_tensor_slices(y).batch(2)
model.fit(a if flag else b)
model.evaluate(b)
""",
        HEAD
        + """a = tf.data.Dataset.from_tensor_slices(x).batch(2).prefetch(tf.data.AUTOTUNE)
b = tf.data.Dataset.from_tensor_slices(y).batch(2).prefetch(tf.data.AUTOTUNE)
model.fit(a if flag else b)
model.evaluate(b)
""",
    )


@pytest.mark.parametrize(
    "made", ["lib.make().shuffle(9).batch(8).cache()", "lib.make().batch(8)\nds = ds.map(f)\nds = ds.repeat()"]
)
def test_a_dataset_of_a_library_that_is_not_seen(made: str) -> None:
    text = f"{HEAD}import lib\nds = {made}\n"
    check.refuses(text + "model.fit(ds)\n", "the dataset `ds` cannot be followed to where it is made")
    check.ignores(text + "print(ds)\n")
    check.ignores(f"{HEAD}import lib\nds = lib.make().cache()\nmodel.fit(ds)\n")
