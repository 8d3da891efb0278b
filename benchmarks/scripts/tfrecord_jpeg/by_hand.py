"""Texture classification: JPEG images in TFRecord shards, decoded and resized while training."""

import os
import tempfile

import numpy as np
import tensorflow as tf

IMAGE_SIZE = 96
BATCH_SIZE = 32
EPOCHS = 12
NUM_CLASSES = 8

tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")


def write_shards(folder, num_images=1280, num_shards=8, size=256):
    rng = np.random.default_rng(0)
    xs, ys = np.meshgrid(np.linspace(0, 1, size, dtype="float32"), np.linspace(0, 1, size, dtype="float32"))
    noise = rng.integers(0, 60, (16, size, size, 3)).astype("float32")
    for shard in range(num_shards):
        with tf.io.TFRecordWriter(os.path.join(folder, f"train-{shard:02d}.tfrecord")) as writer:
            for _ in range(num_images // num_shards):
                label = int(rng.integers(NUM_CLASSES))
                angle = np.pi * label / NUM_CLASSES + rng.normal(0, 0.1)
                wave = np.sin(2 * np.pi * (12 * (xs * np.cos(angle) + ys * np.sin(angle)) + rng.random()))
                image = 90 + 70 * wave[:, :, None] * rng.uniform(0.3, 1, 3).astype("float32") + noise[rng.integers(16)]
                encoded = tf.io.encode_jpeg(np.clip(image, 0, 255).astype("uint8"), quality=90).numpy()
                example = tf.train.Example(
                    features=tf.train.Features(
                        feature={
                            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
                            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                        }
                    )
                )
                writer.write(example.SerializeToString())


def parse(record):
    features = tf.io.parse_single_example(
        record,
        {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)},
    )
    image = tf.io.decode_jpeg(features["image"], channels=3)
    image = tf.image.resize(image, [IMAGE_SIZE, IMAGE_SIZE])
    return image / 255.0, features["label"]


def build_model():
    return tf.keras.Sequential(
        [
            tf.keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3)),
            tf.keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
            tf.keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            tf.keras.layers.Conv2D(64, 3, strides=2, activation="relu"),
            tf.keras.layers.GlobalAveragePooling2D(),
            tf.keras.layers.Dense(NUM_CLASSES, dtype="float32"),
        ]
    )


tf.keras.utils.set_random_seed(1)
data_dir = tempfile.mkdtemp()
write_shards(data_dir)

files = sorted(tf.io.gfile.glob(os.path.join(data_dir, "*.tfrecord")))
dataset = tf.data.TFRecordDataset(files)
dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
dataset = dataset.cache()  # 140 MB
dataset = dataset.shuffle(512)
dataset = dataset.batch(BATCH_SIZE, num_parallel_calls=tf.data.AUTOTUNE)
dataset = dataset.prefetch(tf.data.AUTOTUNE)

model = build_model()
model.compile(
    optimizer=tf.keras.optimizers.Adam(1e-3),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(dataset, epochs=EPOCHS, verbose=2)
