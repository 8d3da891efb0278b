import pytest

from tests.check import Check

check = Check("lamb", target="keras3")

HEAD = """
import keras
model = keras.Sequential([keras.layers.Dense(1)])
"""
FIT = "model.fit(x, y, batch_size=1024)\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("keras.optimizers.Adam()", "keras.optimizers.Lamb(learning_rate=0.001)"),
        ("keras.optimizers.Adam(1e-2)", "keras.optimizers.Lamb(1e-2)"),
        ("keras.optimizers.Adam(lr=1e-2)", "keras.optimizers.Lamb(learning_rate=1e-2)"),
        ("keras.optimizers.Adam(1e-2, 0.8, 0.99, 1e-6)", "keras.optimizers.Lamb(1e-2, 0.8, 0.99, 1e-6)"),
        ("keras.optimizers.Adam(1e-2, beta_1=0.5, amsgrad=False)", "keras.optimizers.Lamb(1e-2, beta_1=0.5)"),
        (
            "keras.optimizers.Adam(1e-2, epsilon=1e-6, clipnorm=1.0)",
            "keras.optimizers.Lamb(1e-2, epsilon=1e-6, clipnorm=1.0)",
        ),
        (
            "keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-3, 100))",
            "keras.optimizers.Lamb(keras.optimizers.schedules.CosineDecay(1e-3, 100))",
        ),
        ("'adam'", "keras.optimizers.Lamb(learning_rate=0.001)"),
        ('"Adam"', "keras.optimizers.Lamb(learning_rate=0.001)"),
    ],
)
def test_adam_becomes_lamb(before: str, after: str) -> None:
    check.fixes(HEAD + f"model.compile({before}, 'mse')\n" + FIT, HEAD + f"model.compile({after}, 'mse')\n" + FIT)


def test_adamw_keeps_its_decay_off_biases_and_norms() -> None:
    check.fixes(
        HEAD + "opt = keras.optimizers.AdamW(1e-3, 0.01, 0.8)\nmodel.compile(opt, 'mse')\n" + FIT,
        HEAD
        + """opt = keras.optimizers.Lamb(1e-3, weight_decay=0.01, beta_1=0.8)
opt.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
model.compile(opt, 'mse')
"""
        + FIT,
    )


def test_adamw_default_decay_is_written_out_and_own_exemptions_stay() -> None:
    check.fixes(
        HEAD
        + """opt = keras.optimizers.AdamW(1e-3)
opt.exclude_from_weight_decay(var_names=["bias"])
model.compile(opt, 'mse')
"""
        + FIT,
        HEAD
        + """opt = keras.optimizers.Lamb(1e-3, weight_decay=0.004)
opt.exclude_from_weight_decay(var_names=["bias"])
model.compile(opt, 'mse')
"""
        + FIT,
    )


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        ("keras.optimizers.Adam(amsgrad=True)", "no amsgrad"),
        ("keras.optimizers.Adam(1e-3, 0.9, 0.99, 1e-7, True)", "no amsgrad"),
        ("keras.optimizers.Adam(decay=1e-4)", "schedule"),
        ("keras.optimizers.Adam(**options)", "arguments"),
        ("keras.optimizers.AdamW(1e-3)", "in a variable"),
        ("'adamw'", "as an object"),
        ("keras.optimizers.Adam(jit_compile=True)", "jit_compile"),
    ],
)
def test_what_has_no_match(optimizer: str, reason: str) -> None:
    check.refuses(HEAD + f"model.compile({optimizer}, 'mse')\n" + FIT, reason)


@pytest.mark.parametrize(
    ("fit", "reason"),
    [
        ("model.fit(x, y)", "the batch size is 32"),
        ("model.fit(x, y, batch_size=256)", "the batch size is 256"),
        ("model.fit(x, y, batch_size=n)", "is not known"),
        ("model.fit(x, y, **more)", "is not known"),
        ("model.fit(x, y, batch_size=1024)\nmodel.fit(x, y, batch_size=64)", "the batch size is 64"),
        ("model.fit(loader)", "is not known"),
        ("model.train_on_batch(x, y)", "no fit of this model is seen"),
    ],
)
def test_small_and_unknown_batches(fit: str, reason: str) -> None:
    check.refuses(HEAD + f"model.compile('adam', 'mse')\n{fit}\n", reason)


@pytest.mark.parametrize("optimizer", ["'sgd'", "keras.optimizers.SGD(0.1)", "keras.optimizers.Lamb(0.1)", "opt"])
def test_other_optimizers(optimizer: str) -> None:
    check.ignores(HEAD + f"model.compile({optimizer}, 'mse')\n" + FIT)


def test_batch_of_a_dataset() -> None:
    data = "import tensorflow as tf\nds = tf.data.Dataset.from_tensor_slices((x, y)).batch(2048).prefetch(1)\n"
    check.fixes(
        HEAD + data + "model.compile('adam', 'mse')\nmodel.fit(ds)\n",
        HEAD + data + "model.compile(keras.optimizers.Lamb(learning_rate=0.001), 'mse')\nmodel.fit(ds)\n",
    )


K2 = """
'''Trains.'''
import os
import tensorflow as tf
import numpy as np

N = 3
model = tf.keras.Sequential([tf.keras.layers.Dense(N)])
"""


@pytest.mark.parametrize("target", ["tf2.15", "tf2.11", "tf2.10", "tf2.4"])
def test_keras_2_gets_the_class(target: str) -> None:
    before = K2 + "model.compile(tf.keras.optimizers.Adam(0.01), 'mse')\n" + FIT
    result = check.run(before, target=target)
    text = result.after.decode()
    assert text.startswith(K2.lstrip().partition("\nN = 3")[0] + "\n\nclass LAMB(tf.keras.optimizers.Optimizer):\n")
    assert text.endswith(
        "\n\nN = 3\nmodel = tf.keras.Sequential([tf.keras.layers.Dense(N)])\nmodel.compile(LAMB(0.01), 'mse')\n" + FIT
    )
    assert ("_resource_apply_dense" in text) == (target in ("tf2.10", "tf2.4"))
    assert check.run(text, target=target).after.decode() == text


def test_two_optimizers_share_one_class() -> None:
    before = (
        K2 + "net = tf.keras.Sequential([tf.keras.layers.Dense(N)])\nmodel.compile('adam', 'mse')\n"
        "net.compile('adam', 'mse')\n" + FIT + FIT.replace("model", "net")
    )
    text = check.run(before, target="tf2.15").after.decode()
    assert text.count("class LAMB(") == 1 and text.count("LAMB(learning_rate=0.001)") == 2
    notebook = K2 + "model.compile('adam', 'mse')\n" + FIT + "import os\n" + before.lstrip()
    assert check.run(notebook, target="tf2.15").after.decode().count("class LAMB(") == 1


def test_names_of_the_users_own() -> None:
    before = K2.replace("N = 3", "LAMB = 3").replace("Dense(N)", "Dense(LAMB)") + "model.compile('adam', 'mse')\n" + FIT
    text = check.run(before, target="tf2.15").after.decode()
    assert "class LAMB_(" in text and "compile(LAMB_(learning_rate=0.001)" in text and "LAMB = 3" in text


def test_targets_without_lamb() -> None:
    script = K2 + "model.compile('adam', 'mse')\n" + FIT
    check.refuses(script, "needs TensorFlow 2.4", target="tf1.15")


EMBEDDINGS = {
    "in a list": (
        "model = keras.Sequential([keras.layers.Embedding(99, 8), keras.layers.Dense(1)])\n",
        "has an Embedding",
    ),
    "in a layer of the script's own": (
        """class Tokens(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.rows = keras.layers.Embedding(99, 8)

    def call(self, x):
        return self.rows(x)


model = keras.Sequential([Tokens(), keras.layers.Dense(1)])
""",
        "has an Embedding (line 5",
    ),
    "derived from": (
        "class Mine(keras.layers.Embedding):\n    pass\n\n\n"
        "model = keras.Sequential([Mine(99, 8), keras.layers.Dense(1)])\n",
        "has an Embedding",
    ),
    "by hand": (
        """class Rows(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(99, 8))

    def call(self, x):
        return keras.ops.take(self.table, x, axis=0)


model = keras.Sequential([Rows(), keras.layers.Dense(1)])
""",
        "may look up weights (line 7)",
    ),
    "in what is not seen": (
        "import zoo\nmodel = keras.Sequential([zoo.Block(), keras.layers.Dense(1)])\n",
        "an Embedding that is not seen",
    ),
}


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_rows_of_an_embedding(name: str) -> None:
    """Keras 3's Lamb squares the gradients of a row that occurs twice one by one; the class for Keras 2 adds first."""
    body, reason = EMBEDDINGS[name]
    rest = "model.compile('adam', 'mse')\n" + FIT
    check.refuses("import keras\n" + body + rest, reason)
    if name == "in a list":
        assert check.run("from tensorflow import keras\n" + body + rest, target="tf2.15").applied


SAVED = {
    "model.save('out.h5')": "Keras 3 cannot load",
    "path = 'out'\npath += '.h5'\nmodel.save(path)": "Keras 3 cannot load",
    "model.save('out', save_format='h5')": "Keras 3 cannot load",
    "keras.models.save_model(model, 'out.hdf5')": "Keras 3 cannot load",
    "cb = keras.callbacks.ModelCheckpoint('best.h5')": "Keras 3 cannot load",
    "model.save('out.keras')": "",
    "model.save_weights('out.weights.h5')": "",
    "cb = keras.callbacks.ModelCheckpoint('best.h5', save_weights_only=True)": "",
}


@pytest.mark.parametrize("line", SAVED)
def test_models_saved_as_h5(line: str) -> None:
    script = HEAD + "model.compile('adam', 'mse')\n" + FIT + line + "\n"
    if SAVED[line]:
        check.refuses(script, SAVED[line])
    else:
        assert check.run(script).applied


def test_a_saved_model_needs_the_class() -> None:
    script = K2 + "model.compile('adam', 'mse')\n" + FIT
    (plain,) = check.run(script, target="tf2.15").applied
    (saved,) = check.run(script + "model.save('out.h5')\n", target="tf2.15").applied
    assert "needs the class LAMB" in saved.message and "needs the class LAMB" not in plain.message


RESTORED = {
    "cb = keras.callbacks.BackupAndRestore('backup')": "BackupAndRestore",
    "import tensorflow as tf\nck = tf.train.Checkpoint(model=model, optimizer=model.optimizer)\nck.restore(p)": "ck.restore",
    "import tensorflow as tf\nck = tf.train.Checkpoint(model=model, optimizer=model.optimizer)\nck.save(p)": "",
    "model.optimizer.set_weights(state)": "set_weights",
    "model.set_weights(state)": "",
    "old = keras.models.load_model('old.keras')\nold.fit(x, y)": "goes on with a loaded model",
    "old = keras.models.load_model('old.keras')\nold.predict(x)": "",
    "old = keras.models.load_model('old.keras')\nold.compile('sgd', 'mse')\nold.fit(x, y)": "",
    "model = keras.models.load_model('old.keras') if again else model": "goes on with a loaded model",
}


@pytest.mark.parametrize("line", RESTORED)
def test_training_that_goes_on_from_a_saved_optimizer(line: str) -> None:
    script = HEAD + "model.compile('adam', 'mse')\n" + line + "\n" + FIT
    if RESTORED[line]:
        check.refuses(script, RESTORED[line])
    else:
        assert check.run(script).applied


@pytest.mark.parametrize(
    ("path", "restores"), [("'ck'", True), ("tf.train.latest_checkpoint(d)", True), ("'w.h5'", False)]
)
def test_checkpoints_of_weights_in_keras_2(path: str, restores: bool) -> None:
    script = K2 + f"model.compile('adam', 'mse')\nmodel.load_weights({path})\n" + FIT
    if restores:
        check.refuses(script, "restores a checkpoint with its optimizer", target="tf2.15")
    else:
        assert check.run(script, target="tf2.15").applied
    after = K2 + "model.compile('adam', 'mse')\n" + FIT + f"model.load_weights({path})\n"
    assert check.run(after, target="tf2.15").applied
