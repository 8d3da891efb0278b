"""Kinds of programs that were first met in published scripts, converted and run on two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distribution.ranks import converted, trained

pytestmark = pytest.mark.tf

DRAWN = """
import numpy as np
import tensorflow as tf


def make_data(n):
    w = np.random.randn(4, 1)
    x = np.random.randn(n, 4)
    return x.astype("float32"), (x @ w).astype("float32")


x, y = make_data(64)
noise = tf.random.normal([64, 4])
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x + noise, y, epochs=2)
told = {"x": x.tolist(), "y": y.tolist(), "noise": noise.numpy().tolist(), "w": model.get_weights()[0].tolist()}
"""

LOADED = """
import numpy as np
import tensorflow as tf

x, y = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
model.compile("sgd", "mse")
model.fit(x, y, epochs=2)
trained = model.get_weights()[0].tolist()
model.save("model.h5")
del model
model = tf.keras.models.load_model("model.h5", compile=False)
model.compile("sgd", "mse")
model.evaluate(x, y)
tf.saved_model.save(model, "folder")
loaded = tf.saved_model.load("folder")
scores = loaded(x)
model.save("again.h5")
loaded = tf.keras.models.load_model("again.h5")
scores = loaded.predict(x)
told = {"trained": trained}
"""


def test_all_ranks_have_the_data_that_is_drawn(tmp_path: Path) -> None:
    """Without a seed, each of them would learn to tell another `w`."""
    first, second = trained(converted(DRAWN), tmp_path, ranks=2)
    assert first == second


def test_what_rank_0_saved_is_used_by_rank_0_alone(tmp_path: Path) -> None:
    first, second = trained(converted(LOADED), tmp_path, ranks=2)
    assert first == second
