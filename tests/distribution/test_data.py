"""Data that is not arrays or `tf.data` from the start: converted, and run on two ranks that note what they see."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.distribution.ranks import converted, trained
from tests.envs import tf_env

pytestmark = pytest.mark.tf

#: Every rank notes the samples of its steps; the last lines tell them.
TOP = """
import os
import numpy as np
import tensorflow as tf

RANK = int(os.environ.get("HOROVOD_RANK", "0"))
seen = []


class Model(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1)

    def call(self, x, training=None):
        if training:
            seen.append(np.round(x.numpy().reshape(len(x), -1)[:, 0]).astype(int).tolist())
        return self.dense(tf.reshape(x, [len(x), -1])[:, :1] / 100)


model = Model()
model.compile(tf.keras.optimizers.SGD(0.01), "mse", run_eagerly=True)
"""
TOLD = """
told = {"seen": seen, "weights": [w.tolist() for w in model.get_weights()]}
"""


def ranks(folder: Path, program: str, **options: Any) -> list[list[list[int]]]:
    """The batches that each of two ranks trains on; both end with the same weights."""
    text = converted(TOP + textwrap.dedent(program), **options)
    both = trained(text + TOLD, folder, ranks=2, **options)
    assert both[0]["weights"] == both[1]["weights"]
    return [rank["seen"] for rank in both]


def images_are_read() -> None:
    """Keras reads and changes images with Pillow and SciPy."""
    found = subprocess.run([tf_env("tf215"), "-c", "import PIL, scipy"], capture_output=True)
    if found.returncode:
        pytest.skip("the environment has no Pillow, or no SciPy")


def epochs(seen: list[list[list[int]]], number: int) -> list[list[list[int]]]:
    """For each epoch the samples of each rank."""
    found = []
    for epoch in range(number):
        parts = []
        for rank in seen:
            steps = len(rank) // number
            assert steps * number == len(rank) and len(rank) == len(seen[0])
            parts.append([v for batch in rank[steps * epoch : steps * (epoch + 1)] for v in batch])
        found.append(parts)
    return found


def each_once(seen: list[list[list[int]]], samples: int, *, number: int = 3) -> None:
    """Every sample is on one rank in every epoch."""
    for parts in epochs(seen, number):
        assert sorted(parts[0] + parts[1]) == list(range(samples)), parts


SEQUENCE = """
class Rows(tf.keras.utils.Sequence):
    def __init__(self, rows, size, shuffle=True):
        self.rows, self.size, self.shuffle = rows, size, shuffle
        self.on_epoch_end()

    def __len__(self):
        return int(np.ceil(len(self.rows) / self.size))

    def on_epoch_end(self):
        self.order = np.arange(len(self.rows))
        if self.shuffle:
            np.random.shuffle(self.order)

    def __getitem__(self, number):
        taken = self.rows[self.order[number * self.size:(number + 1) * self.size]]
        noise = np.random.uniform(-0.1, 0.1, len(taken) if number else 1)
        return (taken + noise[0])[:, None], taken[:, None] / 100


"""


@pytest.mark.parametrize("more", ["", ", workers=2", ", workers=2, use_multiprocessing=True"])
def test_a_sequence_of_the_program(tmp_path: Path, more: str) -> None:
    """It is shuffled at every end of an epoch, and draws noise as often as a rank has batches."""
    program = f"""\
rows = Rows(np.arange(46.0), 4)
model.fit(rows, epochs=3, validation_data=Rows(np.arange(9.0), 3){more})
"""
    seen = ranks(tmp_path, SEQUENCE + program)
    each_once(seen, 46)
    orders = [parts[0] for parts in epochs(seen, 3)]
    assert orders[0] != orders[1] != orders[2]


def test_a_sequence_under_keras_3(tmp_path: Path) -> None:
    program = "model.fit(Rows(np.arange(46.0), 4), epochs=3, validation_data=Rows(np.arange(9.0), 3))\n"
    seen = [rank[1:] for rank in ranks(tmp_path, SEQUENCE + program, env="tf218")]  # it is built with the first batch
    each_once(seen, 46)
    orders = [parts[0] for parts in epochs(seen, 3)]
    assert orders[0] != orders[1] != orders[2]


IMAGES = """
import tempfile

folder = tempfile.mkdtemp()
for number in range(22):
    kind = os.path.join(folder, "even" if number % 2 == 0 else "odd")
    os.makedirs(kind, exist_ok=True)
    picture = tf.io.encode_png(np.full((4, 4, 3), number, "uint8"))
    tf.io.write_file(os.path.join(kind, f"{number:02}.png"), picture)
"""


@pytest.mark.parametrize("arguments", ["", ", seed=5", ", shuffle=False"])
def test_images_of_a_directory(tmp_path: Path, arguments: str) -> None:
    images_are_read()
    program = f"""\
images = tf.keras.preprocessing.image.ImageDataGenerator(horizontal_flip=True, channel_shift_range=0.2)
train = images.flow_from_directory(folder, target_size=(4, 4), batch_size=3, class_mode="binary"{arguments})
rest = images.flow_from_directory(folder, target_size=(4, 4), batch_size=5, class_mode="binary")
model.fit(train, steps_per_epoch=train.samples // 3 + 1, epochs=3, validation_data=rest, validation_steps=2)
"""
    seen = ranks(tmp_path, IMAGES + program)
    each_once(seen, 22)


def test_a_dataset_of_a_directory(tmp_path: Path) -> None:
    """It is shuffled without a seed, and batched, before it can be split."""
    program = """\
train = tf.keras.utils.image_dataset_from_directory(folder, image_size=(4, 4), batch_size=3)
print(train.class_names)
for images, labels in train.take(1):
    print(images.shape)
model.fit(train, epochs=3)
"""
    seen = ranks(tmp_path, IMAGES + program)
    each_once(seen, 22)
    orders = [parts[0] for parts in epochs(seen, 3)]
    assert orders[0] != orders[1] != orders[2]


def test_a_generator_that_shuffles(tmp_path: Path) -> None:
    """The validation draws from the same random numbers, in a thread of its own."""
    program = """\
np.random.seed(7)


def batches(rows, size):
    order = np.arange(len(rows))
    while True:
        np.random.shuffle(order)
        for start in range(0, len(rows), size):
            taken = rows[order[start:start + size]] + np.random.uniform(-0.1, 0.1)
            yield taken[:, None], taken[:, None] / 100


model.fit(batches(np.arange(48.0), 4), steps_per_epoch=48 // 4, epochs=3,
          validation_data=batches(np.arange(30.0), 4), validation_steps=3)
"""
    each_once(ranks(tmp_path, program), 48)


@pytest.mark.parametrize("seed", ["", "np.random.seed(1)"])
def test_a_generator_that_picks(tmp_path: Path, seed: str) -> None:
    """Ranks pick other samples than each other, with a seed and without one."""
    program = f"""\
{seed}


def batches(rows, size):
    while True:
        taken = rows[np.random.randint(0, len(rows), size)]
        yield taken[:, None], taken[:, None] / 100


model.fit(batches(np.arange(4000.0), 4), steps_per_epoch=20, epochs=3)
"""
    first, second = ranks(tmp_path, program)
    assert len(first) == len(second) == 30
    assert not {tuple(b) for b in first} & {tuple(b) for b in second}


def test_a_dataset_from_a_generator(tmp_path: Path) -> None:
    """It shuffles in every pass; some elements are looked at before."""
    program = """\
def rows():
    for number in np.random.permutation(45):
        yield [number + np.random.uniform(-0.1, 0.1)], [number / 100]


signature = (tf.TensorSpec([1], tf.float32), tf.TensorSpec([1], tf.float32))
train = tf.data.Dataset.from_generator(rows, output_signature=signature).batch(4).prefetch(2)
for x, y in train.take(1):
    print(x.shape)
model.fit(train, epochs=3)
"""
    seen = ranks(tmp_path, program)
    for parts in epochs(seen, 3):
        assert len(set(parts[0]) | set(parts[1])) == 44 == len(parts[0] + parts[1])
    assert epochs(seen, 3)[0][0] != epochs(seen, 3)[1][0]


def test_elements_that_are_left_out_and_a_function_for_all_data(tmp_path: Path) -> None:
    """The part is taken behind a filter, where a shuffle has got a seed."""
    program = """\
def prepare(rows, size, shuffle=True):
    ds = tf.data.Dataset.from_tensor_slices((rows[:, None], rows[:, None] / 100))
    if shuffle:
        ds = ds.shuffle(len(rows))
    return ds.filter(lambda x, y: x[0] < 48).batch(size)


model.fit(prepare(np.arange(60.0), 4), epochs=3, validation_data=prepare(np.arange(9.0), 4, shuffle=False))
"""
    each_once(ranks(tmp_path, program), 48)
