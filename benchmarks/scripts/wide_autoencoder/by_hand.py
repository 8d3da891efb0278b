"""A wide denoising autoencoder on a table: nearly all time goes into large matrix products."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import Model
from tensorflow.keras.layers import Dense, GaussianNoise, Input

tf.keras.utils.set_random_seed(9)
tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")

BATCH_SIZE = 256
FEATURES = 1024

factors = np.random.normal(size=(16384, 16)).astype("float32")
table = np.tanh(factors @ np.random.normal(size=(16, FEATURES)).astype("float32") / 4)

inputs = Input(shape=(FEATURES,))
x = GaussianNoise(0.1)(inputs)
x = Dense(2048, activation="relu")(x)
x = Dense(1024, activation="relu")(x)
code = Dense(32, name="code")(x)
x = Dense(1024, activation="relu")(code)
x = Dense(2048, activation="relu")(x)
outputs = Dense(FEATURES, dtype="float32")(x)

autoencoder = Model(inputs, outputs)
autoencoder.compile(optimizer=tf.keras.optimizers.Adam(1e-4), loss="mse")
autoencoder.fit(table, table, batch_size=BATCH_SIZE, epochs=4, shuffle=True, verbose=2)
