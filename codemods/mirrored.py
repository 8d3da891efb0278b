"""`mirrored`: all GPUs of one host, in one process."""

from __future__ import annotations

from collections.abc import Iterator

from codemods.distribution import strategies
from rewriter.codemod import Finding, codemod
from rewriter.script import Script
from rewriter.training import distribute_by


@codemod(phase="distribute", distribute="mirrored", hardware="several GPUs in one host")
def mirrored(script: Script) -> Iterator[Finding]:
    """Train on all GPUs of one host with `tf.distribute.MirroredStrategy`, in one process.

    Why: every GPU takes a part of each batch, and their gradients are added up before the weights change. The batch of
    the script stays the batch of all GPUs together: N of them compute the same step N times as fast, as far as their
    parts keep them busy. Learning rates stay as they are, since the batch does. To make full use of N GPUs multiply
    the batch size by N, and the learning rate with it (Goyal et al. 2017).

    Models, optimizers and metrics are made, and models compiled, under `strategy.scope()`: as few statements as make
    all variables.

    In loops of its own, with `GradientTape`, every GPU runs the step with a part of the batch. Losses that are means
    are weighted with the share of the batch that a GPU has, also of a last, smaller one, so that their sum is the loss
    of the whole batch; metrics and what the step returns add up in the same way.

    Not applied: where variables are made is not seen; a loss is no mean over the batch; a layer computes with several
    samples together; the program is distributed already; it chooses its devices itself.

    Before:
        import tensorflow as tf
        (x, y), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
        model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, activation="softmax")])
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(x, y, batch_size=256, epochs=20, validation_data=(x_test, y_test))

    After:
        import tensorflow as tf

        strategy = tf.distribute.MirroredStrategy()
        (x, y), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, activation="softmax")])
            model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(x, y, batch_size=256, epochs=20, validation_data=(x_test, y_test))
    """
    if distribute_by(script) == "mirrored":
        yield from strategies.convert(script, "mirrored")
