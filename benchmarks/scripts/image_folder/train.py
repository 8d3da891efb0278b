"""Images in a folder for each class, read with `image_dataset_from_directory` and augmented in `map`."""

import pathlib
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(8)
data_dir = pathlib.Path(tempfile.mkdtemp())
image_size = (128, 128)
batch_size = 32


def draw_images(classes=("rings", "rays", "spots", "waves"), count=160, size=320):
    ys, xs = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j].astype("float32")
    noise = np.random.randint(0, 50, (8, size, size, 3))
    for kind in classes:
        (data_dir / kind).mkdir()
        for i in range(count):
            drawn = kind if np.random.rand() < 0.9 else np.random.choice(classes)  # some are misfiled
            x, y = xs + np.random.uniform(-0.3, 0.3), ys + np.random.uniform(-0.3, 0.3)
            shape = {
                "rings": lambda: np.sin(20 * np.hypot(x, y)),
                "rays": lambda: np.sin(8 * np.arctan2(y, x)),
                "spots": lambda: np.sin(15 * x) * np.sin(15 * y),
                "waves": lambda: np.sin(15 * x + 3 * np.sin(5 * y)),
            }[drawn]()
            colour = np.random.uniform(0.4, 1.0, 3)
            image = np.clip(100 + 80 * shape[:, :, None] * colour + noise[i % 8], 0, 255).astype("uint8")
            tf.io.write_file(str(data_dir / kind / f"{i:04d}.jpg"), tf.io.encode_jpeg(image))


draw_images()
train_ds = keras.utils.image_dataset_from_directory(data_dir, seed=8, image_size=image_size, batch_size=batch_size)

data_augmentation = keras.Sequential(
    [
        layers.RandomFlip("horizontal"),
        layers.RandomRotation(0.1),
    ]
)
train_ds = train_ds.map(lambda images, labels: (data_augmentation(images, training=True), labels))

model = keras.Sequential(
    [
        keras.Input(image_size + (3,)),
        layers.Rescaling(1.0 / 255),
        layers.Conv2D(16, 3, strides=2, activation="relu"),
        layers.Conv2D(32, 3, strides=2, activation="relu"),
        layers.Conv2D(64, 3, strides=2, activation="relu"),
        layers.Conv2D(64, 3, strides=2, activation="relu"),
        layers.Flatten(),
        layers.Dropout(0.2),
        layers.Dense(4, activation="softmax"),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
)
model.fit(train_ds, epochs=10, verbose=2)
