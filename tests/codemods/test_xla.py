"""XLA: only where all of the step compiles and its shapes are fixed; on Keras 3 off, where it cannot compile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rewriter.engine import Options, rewrite
from rewriter.target import named
from tests.check import Check
from tests.envs import run_script, tf_env

check = Check("xla")

HEAD = """
import numpy as np
import tensorflow as tf
from tensorflow import keras
L = keras.layers
x, y = np.zeros((100, 4)), np.zeros((100, 1))
"""
MODEL = "model = keras.Sequential([keras.Input((4,)), L.Dense(8), L.Dense(1)])\n"
COMPILE = 'model.compile("adam", "mse")\n'
FIXED = 'model.compile("adam", "mse", jit_compile=True)\n'
FIT = "model.fit(x, y)\n"


def fixes(before: str, after: str, **options: object) -> None:
    check.fixes(HEAD + before, HEAD + after, **options)


def refuses(text: str, reason: str, **options: object) -> None:
    check.refuses(HEAD + text, reason, **options)


def ignores(text: str, **options: object) -> None:
    check.ignores(HEAD + text, **options)


@pytest.mark.parametrize(
    "build",
    [
        "model = keras.Sequential([keras.Input((4,)), L.Dense(8), L.Dense(1)])",
        "model = keras.Sequential([L.Dense(8, input_shape=(4,)), L.BatchNormalization(), L.Dropout(0.1), L.Dense(1)])",
        "model = keras.Sequential()\nmodel.add(L.Dense(8, input_dim=4))\nmodel.add(L.Dense(1))",
        "model = keras.Sequential([L.Dense(1)])",
        "i = keras.Input((4,))\nmodel = keras.Model(i, L.Dense(1)(tf.math.sqrt(L.Dense(3)(i))))",
        "i = keras.Input(shape=x.shape[1:])\nmodel = keras.Model(i, L.Dense(1)(i))",
        "i = keras.Input((4,))\nmodel = keras.Model(i, L.Dense(1)(L.Lambda(lambda t: tf.abs(t) * 2)(i)))",
        "i = keras.Input((4,))\nmodel = keras.Model(i, L.Dense(1)(L.LSTM(3, activation='relu')(L.RepeatVector(2)(i))))",
        "i = keras.Input((4,))\nmodel = keras.Model(i, L.Dense(1)(L.GRU(3, unroll=True)(L.RepeatVector(2)(i))))",
        "model = keras.Sequential([keras.Input((4,)), L.Discretization([0.1, 0.5]), L.CategoryEncoding(3), L.Dense(1)])",
        "class Net(keras.Model):\n    def __init__(self):\n        super().__init__()\n        self.d = L.Dense(1)\n"
        "        self.hidden = [L.Dense(4) for _ in range(3)]\n"
        "    def call(self, t):\n        for layer in self.hidden:\n            t = layer(t)\n"
        "        return self.d(tf.nn.relu(t))\nmodel = Net()",
        "class Scale(L.Layer):\n    def build(self, shape):\n        print(shape)\n        self.w = self.add_weight()\n"
        "    def call(self, t):\n        return t * self.w\n"
        "model = keras.Sequential([keras.Input((4,)), Scale(), L.Dense(1)])",
    ],
)  # fmt: skip
def test_models_that_compile(build: str) -> None:
    fixes(f"{build}\n{COMPILE}{FIT}", f"{build}\n{FIXED}{FIT}")


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        ("i = keras.Input((1,), dtype='string')\nmodel = keras.Model(i, L.Dense(1)(L.StringLookup()(i)))",
         "`StringLookup`"),
        ("model = keras.Sequential([L.TextVectorization(100), L.Embedding(100, 4), L.Dense(1)])", "TextVectorization"),
        ("model = keras.Sequential([L.IntegerLookup(), L.Dense(1)])", "`IntegerLookup`"),
        ("model = keras.Sequential([keras.Input((9, 4)), L.LSTM(8), L.Dense(1)])", "would lose its fused GPU kernel"),
        ("model = keras.Sequential([keras.Input((9, 4)), L.Bidirectional(L.GRU(8)), L.Dense(1)])", "would lose its fused"),
        ("model = keras.Sequential([keras.Input((9, 4)), L.LSTM(8, activation='tanh'), L.Dense(1)])", "lose its fused"),
        ("model = keras.Sequential([keras.Input((9, 4)), L.LSTM(8, activation=act), L.Dense(1)])", "lose its fused"),
        ("model = keras.Sequential([keras.Input((8, 8, 3)), L.RandomRotation(0.1), L.Flatten(), L.Dense(1)])",
         "`RandomRotation`"),
        ("model = keras.Sequential([keras.Input((8, 8, 3)), L.RandomCrop(4, 4), L.Flatten(), L.Dense(1)])",
         "`RandomCrop` (line 6) compiles only where no image is smaller"),
        ("model = keras.Sequential([keras.Input((8, 8, 3)), L.CenterCrop(4, 4), L.Flatten(), L.Dense(1)])",
         "`CenterCrop` (line 6) compiles only where no image is smaller"),
        ("model = keras.Sequential([keras.Input((4,)), L.CategoryEncoding(3, sparse=True), L.Dense(1)])",
         "may give sparse tensors"),
        ("model = keras.Sequential([keras.Input((4, 4, 3)), L.Conv2D(3, 1), L.UpSampling2D(2), L.Flatten(), L.Dense(1)])",
         "`UpSampling2D`"),
        ("model = keras.Sequential([keras.Input((8, 8, 3)), L.Resizing(4, 4, 'bicubic'), L.Flatten(), L.Dense(1)])",
         "`Resizing`"),
        ("model = keras.Sequential([keras.Input((None, 4)), L.GlobalMaxPooling1D(), L.Dense(1)])", "varies: `(None, 4)`"),
        ("model = keras.Sequential([L.Conv2D(3, 3, input_shape=(None, None, 3)), L.GlobalMaxPooling2D()])", "varies"),
        ("model = keras.Sequential([keras.Input((4,), ragged=True), L.Dense(1)])", "ragged tensors"),
        ("model = keras.models.load_model('m')", "loaded from a file"),
        ("model = build()", ""),
        ("i = keras.Input((4,))\nf = lambda t: tf.py_function(abs, [t], tf.float32)\n"
         "model = keras.Model(i, L.Dense(1)(L.Lambda(f)(i)))", "`tf.py_function` (line 7) runs Python code"),
        ("class Net(keras.Model):\n    def __init__(self):\n        super().__init__()\n        self.d = L.Dense(1)\n"
         "    def call(self, t):\n        return self.d(self.scale(t))\n"
         "    def scale(self, t):\n        tf.print(t)\n        return t\nmodel = Net()", "`tf.print`"),
        ("class Text(L.Layer):\n    def call(self, t):\n        return tf.strings.length(t)\n"
         "model = keras.Sequential([keras.Input((4,)), Text(), L.Dense(1)])", "works on strings"),
        ("import tensorflow_addons as tfa\n"
         "model = keras.Sequential([keras.Input((4,)), tfa.layers.WeightNormalization(L.Dense(1))])", "not a layer that is known"),
        ("class Net(keras.Model):\n    def __init__(self, f):\n        super().__init__()\n        self.f = f\n"
         "        self.d = L.Dense(1)\n    def call(self, t):\n        return self.d(self.f(t))\nmodel = Net(thing)",
         "`self.f`"),
        ("i = keras.Input((8, 8, 3))\nbig = tf.image.resize(i, (16, 16), 'bicubic')\n"
         "model = keras.Model(i, L.Dense(1)(L.Flatten()(big)))", "bicubic"),
        ("i = keras.Input((8, 8, 3))\nbig = tf.image.resize(L.Dense(3)(i), (16, 16), 'nearest')\n"
         "model = keras.Model(i, L.Dense(1)(L.Flatten()(big)))", "the gradient of `tf.image.resize`"),
    ],
)  # fmt: skip
def test_models_that_do_not_compile(build: str, reason: str) -> None:
    if reason:
        refuses(f"{build}\n{COMPILE}{FIT}", reason)
    else:
        ignores(f"{build}\n{COMPILE}{FIT}")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ('model.compile("adam", lambda t, p: tf.reduce_mean((t - p) ** 2))', ""),
        ('model.compile("adam", loss=keras.losses.MeanSquaredError(), metrics=["mae", keras.metrics.AUC()])', ""),
        ('model.compile(optimizer=keras.optimizers.SGD(0.1), loss={"a": "mse"})', ""),
        ('model.compile(optimizer=tf.keras.optimizers.legacy.Adam(), loss="mse")', ""),
        ('model.compile("adam", lambda t, p: tf.py_function(f, [t, p], tf.float32))', "`tf.py_function`"),
        ('model.compile("adam", "mse", [keras.metrics.MeanMetricWrapper(lambda t, p: tf.numpy_function(f, [p], tf.float32))])',
         "`tf.numpy_function`"),
        ('model.compile("adam", other_library.loss)', "`other_library.loss` computes is not seen"),
        ('model.compile(other_library.Optimizer(), "mse")', "the optimizer"),
        ('model.compile(tf.compat.v1.train.AdamOptimizer(), "mse")', "the optimizer"),
        ('model.compile("adam", "mse", run_eagerly=True)', "`run_eagerly=True`"),
        ('model.compile("adam", "mse", **options)', "may hold `jit_compile`"),
    ],
)  # fmt: skip
def test_losses_metrics_and_optimizers(call: str, reason: str) -> None:
    text = MODEL + "{}\n" + FIT
    if reason:
        refuses(text.format(call), reason)
    else:
        fixes(text.format(call), text.format(call[:-1] + ", jit_compile=True)"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("def batches():\n    while True: yield x, y\nmodel.fit(batches(), steps_per_epoch=3)", "come from Python code"),
        ("class S(keras.utils.Sequence):\n    pass\nmodel.fit(S())", "come from Python code"),
        ("model.fit(load())", "the shapes of the data `load()` are not seen"),
        ("model.fit(x, y, batch_size=len(x[draw()]))", "may be another at every call: `len(x[draw()])`"),
        ("b = x[draw()]\nmodel.fit(b, y, batch_size=b.shape[0])", "may be another at every call: `b.shape[0]`"),
        ("d = tf.data.Dataset.from_tensor_slices((x, y)).padded_batch(8)\nmodel.fit(d)", "`padded_batch`"),
        ("d = tf.data.Dataset.from_tensor_slices((x, y)).padded_batch(8, ([None], []))\nmodel.fit(d)", "`padded_batch`"),
        ("d = tf.data.Dataset.from_tensor_slices((x, y)).bucket_by_sequence_length(len, [9], [8, 8])\nmodel.fit(d)",
         "`bucket_by_sequence_length`"),
        ("d = tf.data.Dataset.from_generator(g, tf.float32).batch(8)\nmodel.fit(d)", "`from_generator`"),
        ("d = tf.data.Dataset.from_generator(g, output_signature=tf.TensorSpec((None, 4))).batch(8)\nmodel.fit(d)",
         "`from_generator`"),
        ("model.fit(x, y, validation_data=tf.data.Dataset.from_tensor_slices((x, y)).ragged_batch(8))", "`ragged_batch`"),
        ("s = tf.distribute.MirroredStrategy()\nmodel.fit(x, y)", "`MirroredStrategy`"),
        ("import horovod.tensorflow.keras as hvd\nmodel.fit(x, y)", "Horovod"),
        ("tf.config.run_functions_eagerly(True)\nmodel.fit(x, y)", "switches graphs off"),
        ("tf.compat.v1.disable_v2_behavior()\nmodel.fit(x, y)", "graph mode"),
        ("model.fit(x, y); explain(model)", "handed to `explain`"),
        ("from tensorflow.python.keras import backend as K\nmodel.fit(x, y)", "an old copy of Keras, take no `jit_compile`"),
        ("from tensorflow.python import keras as K\nmodel.fit(x, y)", "`tensorflow.python.keras` (line 8)"),
        ("model.train_on_batch(x, y)", "whether all batches of `train_on_batch` (line 8) have one shape is not seen"),
        ("model.fit(x, y)\nmodel.train_on_batch(x[:9], y[:9])", "`train_on_batch` (line 9)"),
    ],
)  # fmt: skip
def test_data_and_surroundings(data: str, reason: str) -> None:
    refuses(MODEL + COMPILE + data + "\n", reason)


@pytest.mark.parametrize(
    "data",
    [
        "model.fit(x, y)",
        "model.fit(load_x(), load_y())",
        "g = keras.preprocessing.image.ImageDataGenerator().flow(x, y)\nmodel.fit(g)",
        "d = tf.data.Dataset.from_tensor_slices((x, y)).batch(25)\nmodel.fit(d)",
        "d = tf.data.Dataset.from_tensor_slices((x, y)).padded_batch(8, ([4], [1]))\nmodel.fit(d)",
        "d = tf.data.Dataset.from_generator(g, output_signature=tf.TensorSpec((4,))).batch(8)\nmodel.fit(d)",
        "d = tf.data.TFRecordDataset('f').map(parse).batch(8)\nmodel.fit(d, validation_data=d)",
        "model.fit(x, y, validation_data=(x, y))",
    ],
)
def test_data_of_fixed_shape(data: str) -> None:
    fixes(f"{MODEL}{COMPILE}{data}\n", f"{MODEL}{FIXED}{data}\n")


SHUFFLED = "d = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(32{}){}\n"


def test_the_last_batch_is_left_out() -> None:
    rest = "model.fit(d, epochs=2)\n"
    fixes(
        SHUFFLED.format("", "") + MODEL + COMPILE + rest,
        SHUFFLED.format(", drop_remainder=True", "") + MODEL + FIXED + rest,
    )
    fixes(
        SHUFFLED.format("", ".prefetch(1)") + MODEL + COMPILE + rest,
        SHUFFLED.format(", drop_remainder=True", ".prefetch(1)") + MODEL + FIXED + rest,
    )


@pytest.mark.parametrize(
    "data",
    [
        SHUFFLED.format("", "") + "{}model.fit(d, validation_data=d)\n",
        SHUFFLED.format("", "") + "{}model.fit(d)\nmodel.evaluate(d)\n",
        SHUFFLED.format("", "") + "{}model.fit(d)\nfor a, b in d: print(a)\n",
        SHUFFLED.format("", "") + "{}model.fit(d, steps_per_epoch=4)\n",
        SHUFFLED.format("", "") + "{}model.fit(d)\nmodel.fit(d, epochs=3, steps_per_epoch=4)\n",
        SHUFFLED.format("", "") + "{}model.fit(d)\nmodel.fit(d, **options)\n",
        SHUFFLED.format("", "") + "{}model.fit(d)\nother = keras.Sequential([L.Dense(1)])\n"
        'other.compile("adam", "mse", jit_compile=True)\nother.fit(d, None, None, 3, 1, [], 0, None, True, None, None, 0, 4)\n',
        SHUFFLED.format("", "") + "{}print(len(d))\nmodel.fit(d)\n",
        SHUFFLED.format("", "") + "v = d.take(1)\n{}model.fit(d, validation_data=v)\n",
        SHUFFLED.format(", False", "") + "{}model.fit(d)\n",
        SHUFFLED.format("", "").replace("32", "64") + "{}model.fit(d)\n",  # one batch would be left
        SHUFFLED.format("", "").replace("32", "128") + "{}model.fit(d)\n",  # none would be left
        SHUFFLED.format("", "").replace("32", "25") + "{}model.fit(d)\n",  # nothing is left over
        SHUFFLED.format("", "").replace(".shuffle(100)", "") + "{}model.fit(d)\n",  # the same samples, every epoch
        SHUFFLED.format("", "").replace("(100)", "(100, reshuffle_each_iteration=False)") + "{}model.fit(d)\n",
        SHUFFLED.format("", "").replace("(100)", "(100).cache()") + "{}model.fit(d)\n",
        SHUFFLED.format("", "").replace("(100)", "(100).repeat()") + "{}model.fit(d, steps_per_epoch=3)\n",
        SHUFFLED.format("", "").replace("(x, y)", "(load(), load())") + "{}model.fit(d)\n",
        SHUFFLED.format("", "") + "def make():\n    return d\n{}model.fit(make())\nmodel.evaluate(make())\n",
    ],
)
def test_the_last_batch_stays(data: str) -> None:
    fixes(data.format(MODEL + COMPILE), data.format(MODEL + FIXED))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("model.fit(x, y)", True),
        ("model.fit(x, y, batch_size=25)", False),
        ("model.fit(x, y, batch_size=25, validation_split=0.1)", True),
        ("model.fit(x, y, batch_size=size)", True),
        ("model.fit(load(), load(), 25)", True),
        ("model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(32))", True),
        ("model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(25))", False),
        ("model.fit(tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(32), steps_per_epoch=3)", False),
        ("model.fit(tf.data.TFRecordDataset('f').map(parse).batch(32))", True),
        ("model.fit(tf.data.TFRecordDataset('f').map(parse).batch(32, drop_remainder=True))", False),
        ("model.fit(tf.data.TFRecordDataset('f').map(parse).batch(32, True), steps_per_epoch=n)", False),
        ("model.fit(tf.data.TFRecordDataset('f').map(parse).batch(32, drop_remainder=drop))", True),
        ("model.fit(keras.utils.image_dataset_from_directory('a'))", True),
    ],
)
def test_what_is_said_of_a_smaller_last_batch(data: str, told: bool) -> None:
    model = "model = keras.Sequential([keras.Input((4,)), L.Dense(1)])\n"
    result = check.run(HEAD + model + COMPILE + data + "\n")
    assert [("a smaller last batch" in a.message) for a in result.applied] == [told]


@pytest.mark.parametrize(
    "text",
    [
        MODEL + 'model.compile("adam", "mse", jit_compile=False)\n' + FIT,
        MODEL + 'model.compile("adam", "mse", jit_compile=True)\n' + FIT,
        MODEL + COMPILE + "model.predict_on_batch(x)\n",
        MODEL + COMPILE + "model.evaluate(x, y)\n",
        'import re\nre.compile("x")\nthing.engine.compile("y")\nthing.engine.fit(x)\n',
    ],
)
def test_left_alone(text: str) -> None:
    ignores(text)


def test_versions() -> None:
    for target in ("tf1.15", "tf2.7"):
        refuses(MODEL + COMPILE + FIT, "from TensorFlow 2.8 on (TensorFlow", target=target)
    fixes(MODEL + COMPILE + FIT, MODEL + FIXED + FIT, target="tf2.8")
    refuses(MODEL + COMPILE + FIT, "nothing to add: Keras 3 compiles on a GPU by itself", target="keras3")
    ignores(MODEL + 'model.compile("adam", "mse", run_eagerly=True)\n' + FIT, target="keras3")
    ignores("import torch\n" + MODEL + COMPILE + FIT, target="keras3")
    refuses(
        "def f(t, p):\n    return tf.reduce_mean(tf.boolean_mask(t - p, t > 0))\n" + MODEL
        + 'model.compile("adam", f)\n' + FIT, "compiles from TensorFlow 2.15 on only", target="tf2.10",
    )  # fmt: skip


CLASS = """
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.d = L.Dense(1)

    def compile(self, opt, **kwargs):
        {call}
        self.opt = opt

    def train_step(self, data):
        t, p = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.d(t) - p))
        {more}
        w = self.trainable_variables
        self.opt.apply_gradients(zip(tape.gradient(loss, w), w))
        return {{"loss": loss}}

    def call(self, t):
        return self.d(t)

net = Net()
net.compile(keras.optimizers.Adam(){given})
net.fit(x, y)
"""


def test_a_compile_of_its_own() -> None:
    fixes(
        CLASS.format(call="super().compile()", given="", more="pass"),
        CLASS.format(call="super().compile(jit_compile=True)", given="", more="pass"),
    )
    fixes(
        CLASS.format(call="super().compile(**kwargs)", given="", more="pass"),
        CLASS.format(call="super().compile(**kwargs)", given=", jit_compile=True", more="pass"),
    )
    refuses(
        CLASS.format(call="super().compile()", given="", more="tf.summary.scalar('l', loss, 1)"), "writes summaries"
    )


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("tf.print(loss)", "`tf.print`"),
        ("loss += tf.py_function(f, [loss], tf.float32)", "`tf.py_function`"),
        ("tf.image.resize(t, (3, 3), method='area')", "area interpolation"),
        ("tf.strings.as_string(loss)", "works on strings"),
        ("loss += tf.linalg.det(t)", "no XLA kernel"),
    ],
)
def test_keras_3_is_told_not_to_compile(more: str, reason: str) -> None:
    before = CLASS.format(call="super().compile()", given="", more=more)
    result = check.fixes(
        HEAD + before, HEAD + before.replace("super().compile()", "super().compile(jit_compile=False)"), target="keras3"
    )
    assert reason in result.applied[0].message


def test_keras_3_layers_that_do_not_tell() -> None:
    model = (
        "model = keras.Sequential([keras.Input((8, 8, 3)), L.Resizing(4, 4, interpolation='bicubic'), L.Flatten()])\n"
    )
    fixes(model + COMPILE + FIT, model + FIXED.replace("True", "False") + FIT, target="keras3")


@pytest.mark.parametrize("method", ["", ", method='nearest'", ", method=how"])
def test_keras_3_where_it_may_compile(method: str) -> None:
    more = f"tf.image.resize(t, (3, 3){method})"
    refuses(CLASS.format(call="super().compile()", given="", more=more), "nothing to add", target="keras3")


def test_keras_3_where_it_does_not_compile_anyway() -> None:
    text = CLASS.format(call="super().compile(run_eagerly=True)", given="", more="tf.print(loss)")
    result = check.run(HEAD + text, target="keras3")
    assert result.after == result.before
    text = "s = tf.distribute.MirroredStrategy()\n" + CLASS.format(
        call="super().compile()", given="", more="tf.print(loss)"
    )
    result = check.run(HEAD + text, target="keras3")
    assert result.after == result.before


@pytest.mark.parametrize("target", ["tf2.15", "keras3"])
def test_a_cpu(target: str, tmp_path: Path) -> None:
    """Only where it is named: by the user, or by `tune`, which measures."""
    path = tmp_path / "train.py"
    cpu = replace(named(target), cpu=True)
    before, after = ((HEAD + MODEL + compiled + FIT).encode() for compiled in (COMPILE, FIXED))
    (result,) = rewrite([path], Options(2), lambda _: cpu, {path: before})
    assert b"jit_compile" not in result.after
    assert any("runs on a CPU" in r.reason and "tune" in r.hint for r in result.refused)
    (result,) = rewrite([path], Options(2, frozenset({"xla"})), lambda _: cpu, {path: before})
    assert result.after == after


@pytest.mark.parametrize("layer", ["LSTM(8)", "Bidirectional(L.GRU(8))"])
def test_recurrent_layers_have_no_fused_kernel_on_a_cpu(layer: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    cpu = replace(named("tf2.15"), cpu=True)
    build = f"model = keras.Sequential([keras.Input((9, 4)), L.{layer}, L.Dense(1)])\n"
    before, after = ((HEAD + build + compiled + FIT).encode() for compiled in (COMPILE, FIXED))
    (result,) = rewrite([path], Options(2, frozenset({"xla"})), lambda _: cpu, {path: before})
    assert result.after == after


PROOF = """
import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(1)
x = np.random.RandomState(0).rand(410, 8, 8, 2).astype("float32")
y = x.sum((1, 2, 3))
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(410, seed=2).batch(50)
L = tf.keras.layers


class Scale(L.Layer):
    def build(self, shape):
        self.w = self.add_weight(shape=(1,), initializer="ones", name="w")

    def call(self, t):
        return tf.nn.leaky_relu(t) * self.w


def loss(t, p):
    return tf.reduce_mean(tf.square(tf.cast(t, p.dtype) - tf.squeeze(p, -1)))


model = tf.keras.Sequential([tf.keras.Input((8, 8, 2)), L.Conv2D(4, 3), L.BatchNormalization(), Scale(), L.MaxPooling2D(), L.Flatten(), L.Dense(1)])
model.compile("adam", loss, metrics=["mae"])
h = model.fit(data, epochs=2, verbose=0, validation_data=(x[:70], y[:70]))
print(h.history["loss"][-1])
"""


@pytest.mark.tf
def test_a_compiled_step_trains_alike(tmp_path: Path) -> None:
    result = check.run(PROOF)
    assert b"jit_compile=True" in result.after and b"drop_remainder=True" in result.after
    printed = []
    for name, data in (("before", result.before), ("after", result.after)):
        path = tmp_path / f"{name}.py"
        path.write_bytes(data)
        done = run_script(tf_env("tf215"), path, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        printed.append(float(done.stdout))
    assert printed[1] == pytest.approx(printed[0], rel=0.1)  # 10 of 410 samples of each epoch are left out


def test_weights_that_hold_integers_are_out_of_reach_on_a_gpu() -> None:
    script = """
        import tensorflow as tf
        class Count(tf.keras.metrics.Metric):
            def __init__(self):
                super().__init__()
                self.n = self.add_weight(name="n", initializer="zeros", dtype="int32")
            def update_state(self, y_true, y_pred, sample_weight=None):
                self.n.assign_add(1)
            def result(self):
                return self.n
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])
        model.compile("sgd", "mse", metrics=[Count()])
        model.fit(tf.ones((64, 3)), tf.ones((64, 1)))
        """
    Check("xla").refuses(script, "`Count` keeps a weight of type int32")
    result = Check("xla").run(script, target="keras3")
    assert b"metrics=[Count()], jit_compile=False)" in result.after


@pytest.mark.parametrize(
    ("optimizer", "dense", "operation"),
    [
        ("tf.keras.optimizers.SGD(Rate())", "", "tf.print"),
        ("'sgd'", ", kernel_regularizer=shrink", "tf.numpy_function"),
        ("'sgd'", ", kernel_constraint=Bound()", "tf.py_function"),
    ],
)
def test_code_reached_through_the_optimizer_and_the_weights(optimizer: str, dense: str, operation: str) -> None:
    script = f"""
        import tensorflow as tf
        class Rate(tf.keras.optimizers.schedules.LearningRateSchedule):
            def __call__(self, step):
                tf.print(step)
                return 0.1
        def shrink(w):
            return tf.numpy_function(f, [w], tf.float32)
        class Bound(tf.keras.constraints.Constraint):
            def __call__(self, w):
                return tf.py_function(f, [w], tf.float32)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,){dense})])
        model.compile({optimizer}, "mse")
        model.fit(tf.ones((64, 3)), tf.ones((64, 1)))
        """
    Check("xla").refuses(script, f"`{operation}`")
    assert b", jit_compile=False)" in Check("xla").run(script, target="keras3").after


def test_what_another_file_defines_for_its_own_runs_is_no_part_of_the_step(tmp_path: Path) -> None:
    (tmp_path / "losses.py").write_text(
        "import tensorflow as tf\ndef loss(y, p):\n    return tf.reduce_mean(tf.square(y - p))\n"
        "if __name__ == '__main__':\n    import matplotlib.pyplot as plt\n"
        "    def loss(y, p):\n        plt.figure()\n"
    )
    text = "from losses import loss\n" + HEAD + MODEL + "model.compile('adam', loss{})\n" + FIT
    check.fixes(text.format(""), text.format(", jit_compile=True"), folder=tmp_path)
    (tmp_path / "losses.py").write_text((tmp_path / "losses.py").read_text().replace("if __name__", "if name"))
    check.refuses(text.format(""), "`plt.figure`", folder=tmp_path)
