"""`--distribute mirrored` for programs that train with `fit`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewriter.engine import Options, rewrite
from rewriter.target import named
from tests.check import Check

check = Check("mirrored")

HEAD = "import tensorflow as tf\nfrom tensorflow import keras\nfrom tensorflow.keras import layers\n"
DATA = "(x, y), (x_test, y_test) = keras.datasets.mnist.load_data()\n"
MODEL = "model = keras.Sequential([layers.Dense(1)])\n"
FIT = "model.fit(x, y, batch_size=100)\n"
STRATEGY = "\nstrategy = tf.distribute.MirroredStrategy()\n"


def indented(text: str, by: str = "    ") -> str:
    return "".join(by + line if line.strip() else line for line in text.splitlines(keepends=True))


def scoped(text: str) -> str:
    return "with strategy.scope():\n" + indented(text)


@pytest.mark.parametrize(
    "made",
    [
        MODEL + 'model.compile("adam", "mse")\n',
        'model = keras.Sequential()\nmodel.add(layers.Dense(1))\nmodel.summary()\nmodel.compile("adam", "mse")\n',
        "i = keras.Input((784,))\nx = layers.Dense(3)(i)\nx = x + 1\nx = x * 2\nx = tf.concat([x, x], 1)\n"
        'model = keras.Model(i, layers.Dense(1)(x))\nmodel.compile("adam", "mse")\n',
        'model = keras.applications.VGG16()\nmodel.trainable = False\nmodel.compile("adam", "mse")\n',
        f'metric = keras.metrics.AUC()\noptimizer = keras.optimizers.Adam(1e-3)\n{MODEL}model.compile(optimizer, "mse", metrics=[metric])\n',
        f'{MODEL}model.build((None, 784))\nmodel.compile("adam", "mse")\n',
        'for n in (1, 2):\n    model = keras.Sequential()\n    model.add(layers.Dense(n))\nmodel.compile("adam", "mse")\n',
        'model = keras.models.load_model("start.h5")\nmodel.compile("adam", "mse")\n',
    ],
)
def test_what_makes_variables(made: str) -> None:
    data = DATA.replace("(x, y)", "(a, b)")
    fit = FIT.replace("x, y", "a, b")
    check.fixes(HEAD + data + made + fit, HEAD + STRATEGY + data + scoped(made) + fit)


def test_two_ranges() -> None:
    between = "rows = len(x)\ncolumns = 3\nnames = []\n"
    check.fixes(
        HEAD + MODEL + DATA + between + 'model.compile("adam", "mse")\n' + FIT,
        HEAD + STRATEGY + scoped(MODEL) + DATA + between + scoped('model.compile("adam", "mse")\n') + FIT,
    )


def test_builder() -> None:
    """A function that makes the model is called under the scope; the one that trains has the scope inside."""
    build = 'def build():\n    model = keras.Sequential([layers.Dense(1)])\n    model.compile("adam", "mse")\n    return model\n\n\n'
    before = f"{HEAD}\n\n{build}def main():\n    x, y = load()\n    model = build()\n    {FIT}\n\nmain()\n"
    check.fixes(
        before,
        before.replace(HEAD, HEAD + STRATEGY).replace(
            "    model = build()\n", "    with strategy.scope():\n        model = build()\n"
        ),
    )


def test_a_class_that_trains() -> None:
    before = (
        f"{HEAD}{DATA}\n\nclass Trainer:\n    def __init__(self):\n        self.model = keras.Sequential([layers.Dense(1)])\n\n"
        '    def train(self):\n        self.model.compile("adam", "mse")\n        self.model.fit(x, y, batch_size=100)\n\n\n'
        "trainer = Trainer()\ntrainer.train()\n"
    )
    after = before.replace(HEAD, HEAD + STRATEGY).replace("trainer = Trainer()\n", scoped("trainer = Trainer()\n"))
    after = after.replace(
        '        self.model.compile("adam", "mse")\n',
        '        with strategy.scope():\n            self.model.compile("adam", "mse")\n',
    )
    check.fixes(before, after)


def test_layers_of_a_library() -> None:
    """`hub.KerasLayer` makes variables, too; so does the first call of a layer."""
    made = 'layer = hub.KerasLayer("x")\nmodel = keras.Sequential()\nmodel.add(layer)\nmodel.compile("adam", "mse")\n'
    head = HEAD + "import tensorflow_hub as hub\n"
    check.fixes(head + DATA + made + FIT, head + STRATEGY + DATA + scoped(made) + FIT)


def test_adapt() -> None:
    made = "norm = layers.Normalization()\nnorm.adapt(x)\nmodel = keras.Sequential([norm, layers.Dense(1)])\n"
    made += 'model.compile("adam", "mse")\n'
    check.fixes(HEAD + DATA + made + FIT, HEAD + STRATEGY + DATA + scoped(made) + FIT)


def test_behind_the_devices() -> None:
    """Once the strategy is there, devices can no longer be configured."""
    gpus = (
        "for gpu in tf.config.list_physical_devices('GPU'):\n    tf.config.experimental.set_memory_growth(gpu, True)\n"
    )
    model = MODEL + 'model.compile("adam", "mse")\n'
    check.fixes(HEAD + gpus + DATA + model + FIT, HEAD + gpus + STRATEGY + DATA + scoped(model) + FIT)


def test_compile_arguments() -> None:
    """What does not go together with a strategy is left out."""
    model = MODEL + 'model.compile("adam", "mse", jit_compile=True, steps_per_execution=8)\n'
    left = MODEL + 'model.compile("adam", "mse", steps_per_execution=8)\n'
    check.fixes(HEAD + DATA + model + FIT, HEAD + STRATEGY + DATA + scoped(left) + FIT)
    left = MODEL + 'model.compile("adam", "mse")\n'
    check.fixes(HEAD + DATA + model + FIT, HEAD + STRATEGY + DATA + scoped(left) + FIT, target="keras3")


def test_batch_normalization() -> None:
    model = 'model = keras.Sequential([layers.BatchNormalization()])\nmodel.compile("adam", "mse")\n'
    after = HEAD + STRATEGY + DATA + scoped(model.replace("Normalization()", "Normalization(synchronized=True)")) + FIT
    check.fixes(HEAD + DATA + model + FIT, after)
    result = check.fixes(HEAD + DATA + model + FIT, HEAD + STRATEGY + DATA + scoped(model) + FIT, target="tf2.8")
    assert any("the part of the batch" in n for n in result.applied[0].notes)


SCALAR = "def loss(a, b):\n    return tf.reduce_mean(tf.square(a - b))\n\n\n"
VECTOR = "def loss(a, b):\n    return tf.reduce_mean(tf.square(a - b), axis=-1)\n\n\n"
COMPILED = MODEL + 'model.compile("adam", loss)\n'


def test_own_losses() -> None:
    """Keras 3 adds up the numbers that own losses give for the parts of a batch."""
    fit = "model.fit(x, y, batch_size=33)\n"
    for own, target in ((VECTOR, "tf2.15"), (VECTOR, "keras3")):
        before = HEAD + "\n\n" + own + DATA + COMPILED + fit
        check.fixes(before, HEAD + STRATEGY + "\n\n" + own + DATA + scoped(COMPILED) + fit, target=target)
    check.refuses(HEAD + SCALAR + DATA + COMPILED + fit, "one number for a batch", target="keras3")
    check.refuses(HEAD + SCALAR + DATA + COMPILED + fit, "`loss` takes a mean itself")
    even = "model.fit(x[:200], y[:200], batch_size=100)\n"
    before = (
        HEAD + "\n\n" + SCALAR + "x, y = tf.zeros((200, 1)).numpy(), tf.zeros((200, 1)).numpy()\n" + COMPILED + even
    )
    assert check.run(before, target="keras3").applied == []


def test_a_rest_is_left_out() -> None:
    """A mean over a part without samples is not a number."""
    data = DATA + "ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(33)\n"
    before = HEAD + "\n\n" + SCALAR + data + COMPILED + "model.fit(ds)\n"
    after = before.replace(HEAD, HEAD + STRATEGY).replace(COMPILED, scoped(COMPILED))
    check.fixes(before, after.replace(".batch(33)", ".batch(33, drop_remainder=True)"))
    both = before + "model.evaluate(ds)\n"
    check.refuses(both, "takes a mean itself")


STEP = """
class Net(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = LOSS
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


"""


@pytest.mark.parametrize("loss", ["self.compute_loss(x, y, y_pred)", "self.compiled_loss(y, y_pred)"])
def test_own_step(loss: str) -> None:
    made = 'model = Net()\nmodel.compile("adam", "mse")\n'
    before = HEAD + "\n" + STEP.replace("LOSS", loss) + DATA + made + FIT
    after = before.replace(HEAD, HEAD + STRATEGY).replace(made, scoped(made))
    times = "loss * self.distribute_strategy.num_replicas_in_sync"
    check.fixes(before, after.replace('{"loss": loss}', f'{{"loss": {times}}}'))


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        ("tf.reduce_mean(tf.square(y - y_pred))", "it is not seen that each has its part"),
        ("self.compiled_loss(y, y_pred) + sum(self.losses)", "it is not seen that each has its part"),
        ("self.loss_fn(y, y_pred)", "it is not seen that each has its part"),
    ],
)
def test_own_step_refused(loss: str, reason: str) -> None:
    made = 'model = Net()\nmodel.compile("adam", "mse")\n'
    check.refuses(HEAD + STEP.replace("LOSS", loss) + DATA + made + FIT, reason)


@pytest.mark.parametrize(
    ("change", "reason", "target"),
    [
        (("import tensorflow as tf\n", "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\nimport tensorflow as tf\n"), "leaves one GPU", "tf2.15"),
        ((MODEL, "with tf.device('/gpu:0'):\n    " + MODEL), "it computes on '/gpu:0'", "tf2.15"),
        ((MODEL, "model = keras.Sequential([layers.LSTM(3, stateful=True)])\n"), "fixes the size of a batch", "tf2.15"),
        ((MODEL, "model = keras.Sequential([layers.Dense(3, batch_input_shape=(32, 4))])\n"), "fixes the size", "tf2.15"),
        ((MODEL, "make = lambda: keras.Sequential([layers.Dense(1)])\nmodel = make()\n"), "made in a lambda", "tf2.15"),
        ((FIT, FIT + 'model.load_weights("best.weights.h5")\n'), "cannot load weights of this kind", "tf2.15"),
        ((DATA, 'keras.mixed_precision.set_global_policy("mixed_float16")\n' + DATA), "loss scaling of Keras 3", "keras3"),
        (('"adam"', "keras.optimizers.Adam(clipnorm=1.0)"), "applies `clipnorm` on every GPU by itself", "keras3"),
        ((MODEL, "model = keras.Sequential([layers.TextVectorization()])\n"), "given text under a strategy", "keras3"),
        ((FIT, "model.fit(batches(), steps_per_epoch=3)\n"), "takes batches of a generator before it trains", "keras3"),
        ((HEAD, "import horovod.tensorflow.keras as hvd\n" + HEAD), "distributed already, by Horovod", "tf2.15"),
        ((FIT, FIT), "TensorFlow 2.4 and later", "tf1.15"),
    ],
)  # fmt: skip
def test_refused(change: tuple[str, str], reason: str, target: str) -> None:
    generator = "def batches():\n    yield x, y\n\n\n"
    source = HEAD + generator + DATA + MODEL + 'model.compile("adam", "mse")\n' + FIT
    assert change[0] in source
    check.refuses(source.replace(*change), reason, target=target)


def test_model_of_another_file(tmp_path: Path) -> None:
    """What is made when another file is imported is made before the strategy."""
    (tmp_path / "net.py").write_text("from tensorflow import keras\n" + MODEL.replace("layers.", "keras.layers."))
    source = "import tensorflow as tf\nfrom net import model\nx, y = load()\n" + 'model.compile("adam", "mse")\n' + FIT
    check.refuses(source, "in another file", folder=tmp_path)


@pytest.mark.parametrize(("target", "codemod"), [("tf2.15", "horovod"), ("tf2.21", "mirrored")])
def test_auto(target: str, codemod: str) -> None:
    """One of them acts: Horovod where it can be built."""
    path, goal = Path("/nowhere/train.py"), named(target)
    text = HEAD + DATA + MODEL + 'model.compile("adam", "mse")\n' + FIT
    (result,) = rewrite([path], Options(1, frozenset(), distribute="auto"), lambda _: goal, {path: text.encode()})
    assert [a.codemod for a in result.applied] == [codemod]
    assert not result.refused
