"""Batches from a `PyDataset` that augments every image in Python."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(6)
NOISE = np.random.default_rng(66)


class AugmentedImages(keras.utils.PyDataset):
    def __init__(self, images, labels, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.images = images.astype("float32")
        self.labels = labels
        self.batch_size = batch_size

    def __len__(self):
        return len(self.images) // self.batch_size

    def augment(self, images):
        n = len(images)
        flipped = np.random.rand(n) < 0.5
        images = np.where(flipped[:, None, None, None], images[:, :, ::-1], images)
        padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="reflect")
        windows = np.lib.stride_tricks.sliding_window_view(padded, (32, 32), axis=(1, 2))
        i, j = np.random.randint(9, size=(2, n))
        images = windows[np.arange(n), i, j].transpose(0, 2, 3, 1)
        images = images * np.random.uniform(0.8, 1.2, (n, 1, 1, 1)).astype("float32")
        images += 0.02 * NOISE.standard_normal(images.shape, dtype="float32")
        mean, std = images.mean(axis=(1, 2, 3), keepdims=True), images.std(axis=(1, 2, 3), keepdims=True)
        return (images - mean) / (std + 1e-6)

    def __getitem__(self, index):
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return self.augment(self.images[rows]), self.labels[rows]


rng = np.random.default_rng(6)
labels = rng.integers(10, size=8000)
prototypes = rng.random((10, 32, 32, 3))
images = 0.5 * prototypes[labels] + 0.5 * rng.random((len(labels), 32, 32, 3))

model = keras.Sequential(
    [
        keras.Input((32, 32, 3)),
        layers.Conv2D(32, 3, strides=2, activation="relu"),
        layers.Conv2D(64, 3, strides=2, activation="relu"),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile(
    keras.optimizers.Adam(3e-4),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
    steps_per_execution=10,
)
model.fit(AugmentedImages(images, labels, batch_size=32, workers=2, max_queue_size=20), epochs=8, verbose=2)
