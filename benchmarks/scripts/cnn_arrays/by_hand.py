"""A VGG-like network on 32x32 images that fit into memory."""

import numpy as np
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(2)
keras.mixed_precision.set_global_policy("mixed_bfloat16")
num_classes = 10
batch_size = 64
epochs = 6

# ten coarse patterns, shifted and drowned in noise
prototypes = np.random.rand(num_classes, 5, 5, 3).repeat(8, axis=1).repeat(8, axis=2)
y_train = np.random.randint(num_classes, size=4608)
shift = np.random.randint(8, size=(len(y_train), 2))
x_train = np.stack([prototypes[c, i : i + 32, j : j + 32] for c, (i, j) in zip(y_train, shift)])
x_train = (0.7 * x_train + 0.3 * np.random.rand(*x_train.shape)).astype("float32")
wrong = np.random.rand(len(y_train)) < 0.15
y_train[wrong] = np.random.randint(num_classes, size=wrong.sum())
y_train = keras.utils.to_categorical(y_train, num_classes)

model = keras.Sequential(
    [
        keras.Input(shape=(32, 32, 3)),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, padding="same", activation="relu"),
        layers.Conv2D(64, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(128, 3, padding="same", activation="relu"),
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
        layers.Dense(num_classes, activation="softmax", dtype="float32"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=batch_size, epochs=epochs, validation_split=0.1, verbose=2)
