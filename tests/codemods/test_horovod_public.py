"""Kinds of programs under `--distribute horovod` that were first met in published scripts, as text."""

from __future__ import annotations

import textwrap

import pytest

from tests.check import Check

check = Check("horovod")

NUMPY = "import numpy as np\nimport tensorflow as tf\n\n"
FIT = """
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, epochs=2)
"""
DATASET = """
ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
"""
LOOP = """
optimizer = tf.keras.optimizers.SGD(0.1)
for epoch in range(3):
    for images, targets in ds:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(images) - targets) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
"""
SEED = "np.random.seed(0)  # the order of the data is the same on every rank\n"
NOTE = "a seed is set, for the data to be the same on every rank before it is split"


def converted(source: str, **options: object) -> str:
    """The program on several ranks; a second run leaves it alone."""
    result = check.run(source, **options)  # type: ignore[arg-type]
    after = result.after.decode()
    assert result.applied, [(r.line, r.reason) for r in result.refused]
    again = check.run(after, **options)  # type: ignore[arg-type]
    assert again.after == again.before, again.after.decode()
    compile(after, "train.py", "exec")
    return after


class TestDrawnData:
    """Data that is drawn at random, without a seed: every rank would learn something else."""

    BY_FUNCTION = """
def make_data(n):
    w = np.random.randn(10, 1)
    x = np.random.randn(n, 10)
    return x, x @ w


x, y = make_data(1000)
"""
    PLAIN = "\nx = np.random.rand(1000, 10)\ny = x @ np.random.rand(10, 1)\n"
    FILLED = """
w = np.random.rand(10)
x, y = np.zeros((1000, 10)), np.zeros((1000, 1))
for i in range(1000):
    x[i] = np.random.rand(10)
    y[i] = x[i] @ w
"""
    APPENDED = """
w = np.random.rand(10)
x, y = [], []
for _ in range(1000):
    row = np.random.rand(10)
    x.append(row)
    y.append(row @ w)
x, y = np.array(x), np.array(y)
"""
    PASSED = """
def prepare(x, w):
    return x / 2, x @ w


x, y = prepare(np.random.rand(1000, 10), np.random.rand(10, 1))
"""
    KINDS = (BY_FUNCTION, PLAIN, FILLED, APPENDED, PASSED)

    @pytest.mark.parametrize("data", KINDS)
    def test_arrays_of_fit(self, data: str) -> None:
        after = converted(NUMPY + data + FIT)
        assert after.index(SEED) < after.index("np.random.r")

    @pytest.mark.parametrize("data", KINDS)
    def test_a_dataset_of_fit(self, data: str) -> None:
        assert SEED in converted(NUMPY + data + DATASET + 'model.compile("sgd", "mse")\nmodel.fit(ds, epochs=2)\n')

    @pytest.mark.parametrize("data", KINDS)
    def test_a_loop(self, data: str) -> None:
        assert SEED in converted(NUMPY + data + DATASET + LOOP)

    def test_a_loop_over_slices(self) -> None:
        loop = """
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        optimizer = tf.keras.optimizers.SGD(0.1)
        for epoch in range(3):
            for i in range(0, len(x), 32):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x[i:i + 32]) - y[i:i + 32]) ** 2)
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        """
        assert SEED in converted(NUMPY + self.PLAIN + textwrap.dedent(loop))

    def test_what_is_handed_to_the_function_that_trains(self) -> None:
        train = """
        def train(x, y):
            model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            model.fit(x, y, epochs=2)


        train(np.random.rand(1000, 10), np.random.rand(1000, 1))
        """
        assert SEED in converted(NUMPY + textwrap.dedent(train))

    def test_it_is_told(self) -> None:
        (applied,) = check.run(NUMPY + self.PLAIN + FIT).applied
        assert NOTE in applied.notes

    def test_sklearn_makes_it_with_numpy(self) -> None:
        data = "from sklearn.datasets import make_regression\n\nx, y = make_regression(1000, 10)\n"
        after = converted("import tensorflow as tf\n" + data + FIT)
        assert "import numpy as np\n" in after and SEED in after

    def test_python_draws_it(self) -> None:
        data = "x = np.array([[random.random()] for _ in range(1000)])\ny = x * random.random()\n"
        assert "random.seed(0)  #" in converted("import random\n" + NUMPY + data + FIT)

    def test_a_generator_of_its_own(self) -> None:
        data = "rng = np.random.default_rng()\nx = rng.normal(size=(1000, 10))\ny = x @ rng.normal(size=(10, 1))\n"
        after = converted(NUMPY + data + FIT)
        assert "rng = np.random.default_rng(0)\n" in after and "np.random.seed" not in after

    def test_tensors(self) -> None:
        data = "x = tf.random.normal([1000, 10])\ny = tf.matmul(x, tf.random.normal([10, 1]))\n"
        after = converted("import tensorflow as tf\n" + data + FIT)
        assert "x = tf.random.normal([1000, 10], seed=0)\n" in after
        assert "y = tf.matmul(x, tf.random.normal([10, 1], seed=0))\n" in after

    @pytest.mark.parametrize("seed", ["np.random.seed(7)", "tf.keras.utils.set_random_seed(7)"])
    def test_it_is_seeded(self, seed: str) -> None:
        assert "seed(0)" not in converted(NUMPY + seed + self.PLAIN + FIT)

    def test_tensors_are_seeded(self) -> None:
        data = "tf.random.set_seed(7)\nx = tf.random.normal([1000, 10])\ny = x[:, :1]\n"
        assert "seed=0" not in converted("import tensorflow as tf\n" + data + FIT)

    def test_what_is_drawn_for_something_else(self) -> None:
        data = "\nx, y = np.load('x.npy'), np.load('y.npy')\n"
        show = "for i in np.random.randint(0, 1000, 3):\n    print(model.predict(x[i:i + 1]))\n"
        assert "seed" not in converted(NUMPY + data + FIT + show)

    def test_what_a_model_draws(self) -> None:
        model = """
        class Noisy(tf.keras.Model):
            def call(self, inputs):
                return inputs + tf.random.normal(tf.shape(inputs))


        noisy = Noisy()
        x, y = noisy(np.load("x.npy")), np.load("y.npy")
        """
        assert "seed" not in converted(NUMPY + textwrap.dedent(model) + FIT)

    def test_noise_of_training_has_to_differ(self) -> None:
        noise = LOOP.replace("model(images)", "model(images + np.random.normal(size=images.shape))")
        check.refuses(
            NUMPY + self.PLAIN + DATASET + noise, "gives every rank other data, of which it would take a part"
        )


class TestDeletedModels:
    """`del model` before it is read back: the other ranks have none then."""

    SAVED = (
        NUMPY
        + 'x, y = np.load("x.npy"), np.load("y.npy")\n'
        + FIT
        + 'model.save("model.h5")\ndel model\nmodel = tf.keras.models.load_model("model.h5")\n'
    )

    def test_all_that_uses_it_is_for_rank_0(self) -> None:
        used = 'model.compile("sgd", "mse")\nmodel.evaluate(x, y)\n'
        after = converted(self.SAVED + used)
        assert after.endswith(
            "if hvd.rank() == 0:\n"
            '    model.save("model.h5")\n'
            "del model\n"
            "if hvd.rank() == 0:\n"
            '    model = tf.keras.models.load_model("model.h5")\n'
            '    model.compile("sgd", "mse")\n'
            "    model.evaluate(x, y)\n"
        )

    def test_not_deleted_the_others_keep_theirs(self) -> None:
        after = converted(self.SAVED.replace("del model\n", "") + "scores = model.evaluate(x, y)\n")
        assert after.endswith("\nscores = model.evaluate(x, y, verbose=1 if hvd.rank() == 0 else 0)\n")

    def test_it_cannot_be_trained_on(self) -> None:
        used = 'model.compile("sgd", "mse")\nmodel.fit(x, y)\n'
        check.refuses(self.SAVED + used, "what only rank 0 may read here is trained on every rank")


class TestSparse:
    def test_it_has_no_len_where_it_is_shuffled_first(self) -> None:
        """`X, T = shuffle(X, T)`: only what comes out is asked for `toarray`."""
        source = """
        import numpy as np
        import tensorflow.compat.v1 as tf
        from scipy.sparse import load_npz
        from sklearn.utils import shuffle

        tf.disable_v2_behavior()


        def train(X, T):
            x = tf.placeholder(tf.float32, [None, 4])
            y = tf.placeholder(tf.float32, [None, 4])
            loss = tf.losses.mean_squared_error(y, tf.layers.dense(x, 4))
            step = tf.train.AdamOptimizer(0.01).minimize(loss)
            with tf.Session() as sess:
                sess.run(tf.global_variables_initializer())
                N, D = X.shape
                for epoch in range(10):
                    X, T = shuffle(X, T)
                    for j in range(N // 16):
                        inputs = X[j * 16:j * 16 + 16].toarray()
                        targets = T[j * 16:j * 16 + 16].toarray()
                        sess.run(step, {x: inputs, y: targets})


        train(load_npz("x.npz"), load_npz("t.npz"))
        """
        after = converted(textwrap.dedent(source).lstrip("\n"), target="tf1.15")
        assert "X = X[hvd.rank():X.shape[0] // hvd.size() * hvd.size():hvd.size()]\n" in after
        assert "T = T[hvd.rank():T.shape[0] // hvd.size() * hvd.size():hvd.size()]\n" in after


class TestReadBack:
    """What rank 0 has written is read by rank 0 alone, and so is all that comes from there."""

    TWICE = NUMPY + 'x, y = np.load("x.npy"), np.load("y.npy")\n' + FIT

    def test_a_name_that_gets_two_models_one_after_the_other(self) -> None:
        again = """\
        model.save("a.h5")
        loaded = tf.keras.models.load_model("a.h5")
        scores = loaded.evaluate(x, y)
        model.save("b.h5")
        loaded = tf.keras.models.load_model("b.h5")
        scores = loaded.evaluate(x, y)
        """
        after = converted(self.TWICE + textwrap.dedent(again))
        assert after.endswith("if hvd.rank() == 0:\n" + textwrap.indent(textwrap.dedent(again), "    "))

    def test_a_name_that_gets_one_of_two_models(self) -> None:
        either = """\
        model.save("a.h5")
        if len(x) > 100:
            loaded = tf.keras.models.load_model("a.h5")
        else:
            loaded = tf.keras.models.load_model("a.h5", compile=False)
        loaded.summary()
        scores = loaded.predict(x)
        """
        after = converted(self.TWICE + textwrap.dedent(either))
        assert after.endswith("if hvd.rank() == 0:\n    loaded.summary()\n    scores = loaded.predict(x)\n")

    def test_a_saved_model(self) -> None:
        again = """\
        tf.saved_model.save(model, "folder")
        loaded = tf.saved_model.load("folder")
        print(loaded.signatures)
        """
        after = converted(self.TWICE + textwrap.dedent(again))
        assert after.endswith("if hvd.rank() == 0:\n" + textwrap.indent(textwrap.dedent(again), "    "))

    def test_a_model_that_others_saved(self) -> None:
        again = 'tf.saved_model.save(model, "folder")\nteacher = tf.saved_model.load("teacher")\n'
        assert converted(self.TWICE + again).endswith('\nteacher = tf.saved_model.load("teacher")\n')

    def test_an_array(self) -> None:
        again = 'np.save("scores.npy", model.predict(x))\nscores = np.load("scores.npy")\n'
        after = converted(self.TWICE + again)
        assert after.endswith("if hvd.rank() == 0:\n" + textwrap.indent(again, "    "))


class TestImports:
    def test_one_import_of_tensorflow_for_all(self) -> None:
        """Imports of Keras stand all over the file of a notebook."""
        source = """
        import keras
        from keras import layers

        inputs = keras.Input((4,))

        from keras.datasets import mnist

        model = keras.Model(inputs, layers.Dense(1)(inputs))
        model.compile(optimizer="rmsprop", loss="mse")
        (x, y), _ = mnist.load_data()
        model.fit(x, y)
        """
        after = converted(textwrap.dedent(source).lstrip("\n"))
        assert after.count("import tensorflow as tf\n") == 1
        assert after.startswith(
            "import keras\nfrom keras import layers\nimport tensorflow as tf\nimport horovod.tensorflow.keras as hvd\n"
        )


class TestOtherFiles:
    """Files besides models: what rank 0 alone has written after training."""

    FIT = NUMPY + 'x, y = np.load("x.npy"), np.load("y.npy")\n' + FIT

    @pytest.mark.parametrize(
        "lines",
        [
            'model.save_weights(f"{folder}/last.h5")\nnames = os.listdir(folder)\nprint(names)\n',
            'model.save_weights("runs/last.h5")\nnames = os.listdir("runs")\nprint(names)\n',
            'with open("log.json", "w") as f:\n    f.write("{}")\nwith open("log.json") as f:\n    log = f.read()\n',
            'plt.savefig("curve.png")\ncurve = plt.imread("curve.png")\nplt.imshow(curve)\n',
            'frame.to_csv("scores.csv")\nscores = pd.read_csv("scores.csv")\nprint(scores)\n',
        ],
    )
    def test_they_are_read_by_rank_0(self, lines: str) -> None:
        top = (
            "import os\nimport pandas as pd\nfrom matplotlib import pyplot as plt\n"
            'frame, folder = pd.DataFrame(), "folder/of/models"\n'
        )
        after = converted(top + self.FIT + lines)
        assert after.endswith("if hvd.rank() == 0:\n" + textwrap.indent(lines, "    "))

    def test_the_newest_checkpoint(self) -> None:
        """Its name is found out from the folder that the callback writes to."""
        lines = """\
        import os
        path = "training/cp-{epoch}.h5"
        folder = os.path.dirname(path)
        model.fit(x, y, callbacks=[tf.keras.callbacks.ModelCheckpoint(path)])
        model.load_weights(os.path.join(folder, "cp-1.h5"))
        """
        after = converted(self.FIT + textwrap.dedent(lines))
        assert after.endswith('if hvd.rank() == 0:\n    model.load_weights(os.path.join(folder, "cp-1.h5"))\n')

    def test_a_function_that_finds_the_newest_checkpoint(self) -> None:
        top = """\
        import os


        def newest(folder):
            return os.path.join(folder, max(os.listdir(folder)))


        """
        lines = """\
        path = "training/cp-{epoch}.h5"
        model.fit(x, y, callbacks=[tf.keras.callbacks.ModelCheckpoint(path)])
        latest = newest(os.path.dirname(path))
        model.load_weights(latest)
        """
        after = converted(textwrap.dedent(top) + self.FIT + textwrap.dedent(lines))
        assert after.endswith(
            "if hvd.rank() == 0:\n    latest = newest(os.path.dirname(path))\n    model.load_weights(latest)\n"
        )

    def test_others_are_read_by_all(self) -> None:
        lines = 'model.save_weights("last.h5")\nnames = os.listdir("data")\ntest = np.load("test.npy")\n'
        after = converted("import os\n" + self.FIT + lines)
        assert after.endswith('\nnames = sorted(os.listdir("data"))\ntest = np.load("test.npy")\n')

    def test_before_training_too(self) -> None:
        lines = 'old = os.listdir("runs")\n' + FIT + 'model.save("runs/last.h5")\n'
        top = NUMPY + 'import os\nx, y = np.load("x.npy"), np.load("y.npy")\n'
        assert '\nold = sorted(os.listdir("runs"))\n' in converted(top + lines)
