"""A small network on a large table: the launch of each step costs more than the step."""

import time

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
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])

model.fit(x, y, batch_size=32, epochs=1, verbose=0)  # traces and warms up
start = time.perf_counter()
history = model.fit(x, y, batch_size=32, epochs=3, verbose=0)
print("SECONDS", time.perf_counter() - start)
print("LOSS", history.history["loss"][-1])
