"""Batches from a `PyDataset` that augments every image in Python."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(6)


class AugmentedImages(keras.utils.PyDataset):
    def __init__(self, images, labels, batch_size, **kwargs):
        super().__init__(**kwargs)
        self.images = images
        self.labels = labels
        self.batch_size = batch_size

    def __len__(self):
        return len(self.images) // self.batch_size

    def augment(self, image):
        if np.random.rand() < 0.5:
            image = image[:, ::-1]
        padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
        i, j = np.random.randint(9, size=2)
        image = padded[i : i + 32, j : j + 32]
        image = image * np.random.uniform(0.8, 1.2) + np.random.normal(0, 0.02, image.shape)
        return (image - image.mean()) / (image.std() + 1e-6)

    def __getitem__(self, index):
        rows = slice(index * self.batch_size, (index + 1) * self.batch_size)
        batch = np.stack([self.augment(image) for image in self.images[rows]])
        return batch.astype("float32"), self.labels[rows]


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
model.compile(keras.optimizers.Adam(3e-4), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(AugmentedImages(images, labels, batch_size=32), epochs=8, verbose=2)
