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


def own_loss(body: str) -> str:
    indented_body = indented(body)
    data = "ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32, drop_remainder=True)\n"
    return f"{HEAD}from tensorflow.keras import backend as K\nSIZE = 32\n\n\ndef loss(a, b):\n{indented_body}\n\n" + (
        DATA + data + COMPILED + "model.fit(ds)\n"
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return tf.reduce_sum(tf.square(a - b)) / SIZE\n", "it is a sum over the batch"),
        ("return -K.sum(a * K.log(b))\n", "it is a sum over the batch"),
        ("a, b = K.flatten(a), K.flatten(b)\nreturn 1 - (2 * K.sum(a * b) + 1) / (K.sum(a) + K.sum(b) + 1)\n", "adds a sum over the batch"),
        ("return tf.sqrt(tf.reduce_mean(tf.square(a - b)))\n", "is no mean over the batch"),
        ("z = tf.math.l2_normalize(b, axis=1)\nreturn tf.reduce_mean(tf.matmul(z, z, transpose_b=True), axis=1)\n", "computes with several samples together"),
        ("return keras.losses.MeanSquaredError()(a, b)\n", "the mean of a loss of Keras"),
        ("return tf.reduce_mean(tf.norm(a - b))\n", "computes with several samples together"),
    ],
)  # fmt: skip
def test_own_losses_that_are_no_means(body: str, reason: str) -> None:
    """Keras averages what the GPUs have: that is the loss of the batch only where it is a mean."""
    check.refuses(own_loss(body), reason)


def test_own_means_and_weights() -> None:
    """The mean of a part times the mean of its weights is another number than that of the whole batch."""
    source = own_loss("return tf.reduce_mean(tf.square(a - b))\n").replace(
        "model.fit(ds)", "model.fit(ds, class_weight=w)"
    )
    check.refuses(source, "takes a mean itself, which `class_weight` weights")
    assert check.run(source.replace("class_weight=w", "class_weight=None")).applied


LAYER = """
class Own(layers.Layer):
    def call(self, x, training=None, mask=None):
        BODY


"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("mean, var = tf.nn.moments(x, axes=[0])\nreturn (x - mean) / tf.sqrt(var)", "takes statistics of the batch"),
        ("return x - tf.reduce_mean(x, axis=0, keepdims=True)", "with what the whole batch has"),
        ("self.add_loss(tf.reduce_sum(tf.square(x)))\nreturn x", "no mean over the batch"),
        ("return x + tf.random.normal((32, 10))", "draws rows of a fixed number"),
        ("self.count.assign_add(1.0)\nreturn x", "sets a variable that does not say"),
        ("return tf.nn.softmax(x, axis=0)", "computes with several samples together"),
        ("return tf.expand_dims(x, 0)", "computes with several samples together"),
    ],
)
@pytest.mark.parametrize("target", ["tf2.15", "keras3"])
def test_layers_over_the_batch(body: str, reason: str, target: str) -> None:
    """They would see the part of the batch that their GPU has."""
    own = LAYER.replace("BODY", body.replace("\n", "\n        "))
    made = 'model = keras.Sequential([Own()])\nmodel.compile("adam", "mse")\n'
    check.refuses(HEAD + own + DATA + made + FIT, reason, target=target)


@pytest.mark.parametrize(
    "body",
    [
        "mean, var = tf.nn.moments(x, axes=[1, 2], keepdims=True)\nreturn (x - mean) / tf.sqrt(var)",
        "self.add_loss(tf.reduce_mean(tf.square(x)))\nself.add_metric(tf.reduce_sum(x), name='s')\nreturn x",
        "keep = tf.random.uniform((tf.shape(x)[0],) + (1,) * (len(x.shape) - 1))\nreturn x * tf.floor(keep + 0.9)",
        "if training:\n    x = x + tf.random.normal(tf.shape(x))\nreturn tf.nn.softmax(x)",
        "return tf.math.l2_normalize(x, axis=-1) * tf.norm(x, axis=-1, keepdims=True)",
        "if mask is not None:\n    x = x * tf.cast(mask, x.dtype)\nreturn {k: v for k, v in [('x', x)]}",
        "return self.dense(x) * tf.random.normal((1, 10))",
    ],
)
def test_layers_of_samples(body: str) -> None:
    own = LAYER.replace("BODY", body.replace("\n", "\n        "))
    made = 'model = keras.Sequential([Own()])\nmodel.compile("adam", "mse")\n'
    data = DATA + "ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(32, drop_remainder=True)\n"
    assert check.run(HEAD + own + data + made + "model.fit(ds)\n").applied


def test_lambda_of_a_fixed_size() -> None:
    function = "def noise(x):\n    return x + keras.backend.random_normal(shape=(SIZE, 10))\n\n\n"
    made = 'model = keras.Sequential([layers.Lambda(noise)])\nmodel.compile("adam", "mse")\n'
    source = f"{HEAD}SIZE = 100\n\n\n{function}{DATA}{made}{FIT}"
    check.refuses(source, "draws rows of a fixed number")
    assert check.run(source.replace("(SIZE, 10)", "(tf.shape(x)[0], 10)")).applied


def test_metrics_that_are_no_sums() -> None:
    metric = (
        "class Most(keras.metrics.Metric):\n    def __init__(self):\n        super().__init__()\n"
        '        self.most = self.add_weight(name="most")\n\n'
        "    def update_state(self, y, p, sample_weight=None):\n        self.most.assign(VALUE)\n\n"
        "    def result(self):\n        return self.most\n\n\n"
    )
    made = MODEL + 'model.compile("adam", "mse", metrics=[Most()])\n'
    source = f"{HEAD}\n\n{metric}{DATA}{made}{FIT}"
    check.refuses(source.replace("VALUE", "tf.maximum(self.most, tf.reduce_max(p))"), "keeps what is no sum")
    assert check.run(source.replace("VALUE", "self.most + tf.reduce_sum(p)")).applied


@pytest.mark.parametrize("name", ["compute_loss", "make_train_function"])
def test_models_that_replace_what_keras_does(name: str) -> None:
    net = f"class Net(keras.Model):\n    def {name}(self, x=None, y=None, y_pred=None):\n        return own(y, y_pred)\n\n\n"
    made = 'model = Net()\nmodel.compile("adam", "mse")\n'
    check.refuses(f"{HEAD}\n\n{net}{DATA}{made}{FIT}", "this model")


@pytest.mark.parametrize(
    ("optimizer", "fits"), [('"adam"', False), ("keras.optimizers.RMSprop(0.1)", False), ('"sgd"', True)]
)
def test_embeddings(optimizer: str, fits: bool) -> None:
    """Keras 3 squares the rows of both GPUs for a word that both have, not their sum."""
    made = f'model = keras.Sequential([layers.Embedding(9, 2), layers.Dense(1)])\nmodel.compile({optimizer}, "mse")\n'
    assert check.run(HEAD + DATA + made + FIT).applied
    if fits:
        assert check.run(HEAD + DATA + made + FIT, target="keras3").applied
    else:
        check.refuses(HEAD + DATA + made + FIT, "gradients of an embedding", target="keras3")


def test_optimizers_that_change_gradients() -> None:
    """They see those of one replica; in `update_step` they are added up."""
    own = "class Own(keras.optimizers.SGD):\n    def apply_gradients(self, pairs, **options):\n        return super().apply_gradients([(g / 2, v) for g, v in pairs])\n\n\n"
    source = f'{HEAD}\n\n{own}{DATA}{MODEL}model.compile(Own(0.1), "mse")\n{FIT}'
    check.refuses(source, "gets the gradients of one replica here")
    assert check.run(source.replace("apply_gradients(self, pairs", "update_step(self, pairs")).applied


@pytest.mark.parametrize(
    ("regularizer", "fits"),
    [
        ('"l1"', True),
        ("keras.regularizers.l2(1e-3)", True),
        ("lambda h: 1e-3 * tf.reduce_sum(tf.abs(h))", True),
        ("lambda h: 1e-3 * tf.reduce_mean(tf.abs(h))", False),
        ("lambda h: tf.reduce_sum(tf.square(tf.reduce_mean(h, axis=0)))", False),
    ],
)
def test_activity_regularizers(regularizer: str, fits: bool) -> None:
    """Keras divides what they give by the size of the batch, or of a part of it."""
    made = f'model = keras.Sequential([layers.Dense(1, activity_regularizer={regularizer})])\nmodel.compile("adam", "mse")\n'
    if fits:
        assert check.run(HEAD + DATA + made + FIT).applied
    else:
        check.refuses(HEAD + DATA + made + FIT, "and is no sum")


@pytest.mark.parametrize("added", ["keras.backend.sum(keras.backend.square(h))", "tf.reduce_sum(model.output)"])
def test_losses_added_to_models(added: str) -> None:
    made = "i = keras.Input((784,))\nh = layers.Dense(3)(i)\nmodel = keras.Model(i, layers.Dense(1)(h))\n"
    made += f'model.add_loss({added})\nmodel.add_metric(h, name="h")\nmodel.compile("adam", "mse")\n'
    data = (
        DATA.replace("(x, y)", "(a, b)")
        + "ds = tf.data.Dataset.from_tensor_slices((a, b)).batch(32, drop_remainder=True)\n"
    )
    check.refuses(HEAD + data + made + "model.fit(ds)\n", "adds a loss that is no mean over the batch")
    mean = made.replace("backend.sum", "backend.mean").replace("reduce_sum", "reduce_mean")
    fit = "model.fit(ds)\n"
    check.fixes(HEAD + data + mean + fit, HEAD + STRATEGY + data + scoped(mean) + fit)


@pytest.mark.parametrize(
    "calls", ["for seed in range(3):\n    run(seed)\n", "run(1)\nrun(2)\n", "[run(s) for s in range(3)]\n"]
)
def test_one_strategy_in_a_process(calls: str) -> None:
    """A second one would count what the GPUs tell each other from the start again, and fail."""
    gpus = (
        "for gpu in tf.config.list_physical_devices('GPU'):\n    tf.config.experimental.set_memory_growth(gpu, True)\n"
    )
    body = indented(gpus + DATA + MODEL + 'model.compile("adam", "mse")\n' + FIT)
    source = f"{HEAD}\n\ndef run(seed):\n{body}\n\n"
    check.refuses(source + calls, "more than once")
    assert check.run(source + "run(1)\n").applied


@pytest.mark.parametrize("index", ["gpus[0]", "gpu"])
def test_memory_growth_of_one_gpu(index: str) -> None:
    """TensorFlow does not start where only one of several GPUs has it."""
    gpus = "gpus = tf.config.list_physical_devices('GPU')\ngpu = gpus[0]\n"
    gpus += f"tf.config.experimental.set_memory_growth({index}, True)\n"
    check.refuses(HEAD + gpus + DATA + MODEL + 'model.compile("adam", "mse")\n' + FIT, "memory grows on one GPU only")


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


APPLY = "        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))\n"


@pytest.mark.parametrize(
    ("apply", "reason"),
    [
        ("        gradients = [g / tf.linalg.global_norm(gradients) for g in gradients]\n" + APPLY, "changes the gradients of one replica"),
        ("        for a, g in zip(self.sums, gradients):\n            a.assign_add(g)\n" + APPLY, "sets a variable that does not say"),
        ("        tf.cond(self.full, self.update, lambda: None)\n", "where the gradients of this step are applied is not seen"),
        ("        if self.steps % 4 == 0:\n" + indented(APPLY), "replicas apply them in all steps"),
    ],
)  # fmt: skip
def test_own_step_applies_gradients(apply: str, reason: str) -> None:
    made = 'model = Net()\nmodel.compile("adam", "mse")\n'
    step = STEP.replace("LOSS", "self.compiled_loss(y, y_pred)")
    assert APPLY in step
    check.refuses(HEAD + step.replace(APPLY, apply) + DATA + made + FIT, reason)


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
