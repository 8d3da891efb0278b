"""A small network on a large table: the launch of each step costs more than the step."""

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(7)

x = np.random.rand(64000, 16).astype("float32")
y = (x.sum(axis=1) > 8).astype("int32")

model = tf.keras.Sequential(
    [
        tf.keras.Input((16,)),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(2, activation="softmax"),
    ]
)
model.compile(
    optimizer="adam",
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
    jit_compile=True,
    steps_per_execution=200,
)
model.fit(x, y, batch_size=32, epochs=10, verbose=2)
