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


def test_names_of_the_users_own() -> None:
    before = K2.replace("N = 3", "LAMB = 3").replace("Dense(N)", "Dense(LAMB)") + "model.compile('adam', 'mse')\n" + FIT
    text = check.run(before, target="tf2.15").after.decode()
    assert "class LAMB_(" in text and "compile(LAMB_(learning_rate=0.001)" in text and "LAMB = 3" in text


def test_targets_without_lamb() -> None:
    script = K2 + "model.compile('adam', 'mse')\n" + FIT
    check.refuses(script, "needs TensorFlow 2.4", target="tf1.15")
