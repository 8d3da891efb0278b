from pathlib import Path

import pytest

from tests.check import Check

check = Check("loader-workers")

K2 = """
import numpy as np
import tensorflow as tf

class Rows(tf.keras.utils.Sequence):
    def __init__(self, names):
        self.names = names
    def __len__(self):
        return len(self.names)
    def __getitem__(self, i):
        batch = self.load(i)
        batch[0] = 1
        return batch, batch
    def load(self, i):
        return np.load(self.names[i])
    def on_epoch_end(self):
        np.random.shuffle(self.names)

model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
"""


def test_keras_2_takes_workers_in_fit() -> None:
    check.fixes(
        K2 + "model.fit(Rows(names), epochs=2)\n", K2 + "model.fit(Rows(names), epochs=2, workers=4)\n", target="tf2.8"
    )


def test_five_seconds_an_epoch_are_not_worth_it() -> None:
    check.refuses(K2 + "model.fit(Rows(names))\n", "waits 5 s at the end of every epoch", line=20, target="tf2.15")


@pytest.mark.parametrize("arguments", ["workers=2", "use_multiprocessing=True", "**options"])
def test_the_users_choice_stays(arguments: str) -> None:
    check.ignores(K2 + f"model.fit(Rows(names), {arguments})\n", target="tf2.8")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("self.served += 1", "__getitem__ writes self.served"),
        ("self.cache[i] = 1", "__getitem__ writes self.cache[i]"),
        ("COUNT[0] += 1", "__getitem__ writes COUNT[0]"),
        ("global TOTAL; TOTAL = 1", "writes TOTAL"),
        ("x = np.random.rand(3)", "draws random numbers"),
        ("import random; random.random()", "draws random numbers"),
        ("self.seen.append(i)", "calls self.seen.append"),
        ("x = next(self.it)", "takes the next item"),
        ("x = self.file[i]", "reads the open file self.file"),
        ("x = self.rng.integers(3)", "self.rng"),
        ("x = tf.image.resize(self.x, (3, 3))", "calls TensorFlow"),
        ("bump(self)", "bump"),
        ("self.helper()", "helper writes self.state"),
    ],
)
def test_loaders_with_state_stay_alone(body: str, reason: str) -> None:
    check.refuses(
        f"""
import random
import h5py
import numpy as np
import tensorflow as tf
COUNT = [0]
def bump(loader):
    COUNT[0] += 1
class Rows(tf.keras.utils.Sequence):
    def __init__(self):
        self.file = h5py.File("a.h5")
        self.rng = np.random.default_rng(3)
    def __len__(self):
        return 3
    def helper(self):
        self.state = 1
    def __getitem__(self, i):
        {body}
        return np.ones((4, 3)), np.ones((4, 1))
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(Rows())
""",
        reason,
        target="tf2.8",
    )


def test_generators_get_no_workers() -> None:
    check.ignores(
        """
import tensorflow as tf
def batches():
    while True:
        yield 1, 2
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(batches(), steps_per_epoch=3)
""",
        target="tf2.8",
    )


K3 = """
import numpy as np
import keras

class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return np.ones((4, 3)), np.ones((4, 1))

net = keras.Sequential([keras.layers.Dense(1)])
net.compile("sgd", "mse")
"""


def test_keras_3_takes_workers_on_the_loader() -> None:
    check.fixes(
        K3 + "train, val = Rows(), Rows()\nnet.fit(train, validation_data=val)\n",
        K3 + "train, val = Rows(workers=4), Rows(workers=4)\nnet.fit(train, validation_data=val)\n",
        target="keras3",
    )


def test_keras_3_constructor_that_forwards() -> None:
    forwards = K3.replace(
        "    def __len__",
        "    def __init__(self, n, **kw):\n        super().__init__(**kw)\n        self.n = n\n    def __len__",
    )
    check.fixes(forwards + "net.fit(Rows(3))\n", forwards + "net.fit(Rows(3, workers=4))\n", target="keras3")


def test_keras_3_constructor_that_does_not_forward() -> None:
    check.refuses(
        K3.replace("    def __len__", "    def __init__(self):\n        super().__init__()\n    def __len__")
        + "net.fit(Rows())\n",
        "does not pass `**kwargs` on",
        target="keras3",
    )


FIT_GENERATOR = """
import keras
def batches():
    while True:
        yield 1, 2
net = keras.Sequential([keras.layers.Dense(1)])
net.compile("sgd", "mse")
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "net.fit_generator(batches(), 10, 3, verbose=0)",
            "net.fit(batches(), steps_per_epoch=10, epochs=3, verbose=0)",
        ),
        (
            "net.fit_generator(generator=batches(), steps_per_epoch=10, workers=1, max_queue_size=10)",
            "net.fit(x=batches(), steps_per_epoch=10)",
        ),
        ("net.fit(batches(), steps_per_epoch=3, workers=1)", "net.fit(batches(), steps_per_epoch=3)"),
        ("net.predict_generator(batches(), 5)", "net.predict(batches(), steps=5)"),
        ("score = net.evaluate_generator(batches(), steps=5)", "score = net.evaluate(batches(), steps=5)"),
    ],
)
def test_keras_3_has_no_fit_generator(before: str, after: str) -> None:
    check.fixes(FIT_GENERATOR + before + "\n", FIT_GENERATOR + after + "\n", target="keras3")


def test_lines_below_the_opening_bracket_stay_below_it() -> None:
    indent = " " * len("net.fit_generator(")
    before = (
        f"net.fit_generator(batches(),\n{indent}steps_per_epoch=10,  # all\n{indent}workers=1,\n{indent}epochs=3)\n"
    )
    after = before.replace(f"{indent}workers=1,\n", "").replace("_generator", "").replace(indent, " " * 8)
    check.fixes(FIT_GENERATOR + before, FIT_GENERATOR + after, target="keras3")


def test_names_of_keras_1_are_refused() -> None:
    check.refuses(
        FIT_GENERATOR + "net.fit_generator(batches(), samples_per_epoch=100, nb_epoch=2)\n",
        "names of Keras 1",
        target="keras3",
    )
    check.refuses(FIT_GENERATOR + "net.fit_generator(batches(), **options)\n", "through `*` or `**`", target="keras3")


def test_fit_generator_stays_where_it_works() -> None:
    check.ignores(FIT_GENERATOR + "net.fit_generator(batches(), 10, 3)\n", target="tf2.15")


def test_random_flow_with_a_seed() -> None:
    flow = """
import numpy as np
import tensorflow as tf
gen = tf.keras.preprocessing.image.ImageDataGenerator(rotation_range=10)
net = tf.keras.Sequential([tf.keras.layers.Dense(1)])
net.compile("sgd", "mse")
"""
    check.fixes(flow + "net.fit(gen.flow(x, y))\n", flow + "net.fit(gen.flow(x, y), workers=4)\n", target="tf2.8")
    check.refuses(flow + "np.random.seed(1)\nnet.fit(gen.flow(x, y))\n", "sets a seed", target="tf2.8")


def test_loader_in_a_module_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(
        "import keras\nclass Rows(keras.utils.PyDataset):\n    def __len__(self):\n"
        "        return 3\n    def __getitem__(self, i):\n        self.n = i\n"
        "        return i\n"
    )
    check.refuses(
        "import keras\nfrom data import Rows\nnet = keras.Sequential([])\nnet.fit(Rows())\n",
        "__getitem__ writes self.n (data.py:6)",
        target="keras3",
        folder=tmp_path,
    )
