"""`multiworker`: the GPUs of several hosts."""

from __future__ import annotations

from collections.abc import Iterator

from codemods.distribution import strategies
from rewriter.codemod import Finding, codemod
from rewriter.script import Script
from rewriter.training import distribute_by


@codemod(phase="distribute", distribute="multiworker", hardware="several hosts")
def multiworker(script: Script) -> Iterator[Finding]:
    """Train on the GPUs of several hosts with `tf.distribute.MultiWorkerMirroredStrategy`.

    Why: every GPU of every host takes a part of each batch, and their gradients are added up before the weights change.
    The batch of the script stays the batch of all GPUs together, and learning rates stay as they are: the training is
    the same. To make full use of N GPUs multiply the batch size by N, and the learning rate with it (Goyal et al.
    2017).

    Models, optimizers and metrics are made, and models compiled, under `strategy.scope()`. All workers go through the
    same data in the same order, so what orders it gets a seed, and take their parts of each batch. All take part in
    saving a model, but only the chief keeps its files; other files are written by the chief alone.

    Not applied: where variables are made is not seen; a loss is no mean over the batch; a layer computes with several
    samples together; the workers may get different data; Keras 3, whose `fit` fails under this strategy; the program
    is distributed already.

    Before:
        import tensorflow as tf
        (x, y), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
        model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, activation="softmax")])
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(x, y, batch_size=256, epochs=20, validation_data=(x_test, y_test))

    After:
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        tf.random.set_seed(0)  # the same order of the data on every worker
        (x, y), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, activation="softmax")])
            model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(x, y, batch_size=256, epochs=20, validation_data=(x_test, y_test))
    """
    if distribute_by(script) == "multiworker":
        yield from strategies.convert(script, "multiworker")
