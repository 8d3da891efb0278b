"""A GRU text classifier that turns each sentence into numbers on its way to the model."""

import random

import tensorflow as tf
from tensorflow.keras import layers, losses

SEED = 42
random.seed(SEED)
tf.keras.utils.set_random_seed(SEED)

max_features = 5000
sequence_length = 32
batch_size = 64


def write_review(label):
    length = random.randint(30, 60)
    mood = [f"good{random.randrange(40)}" if label else f"bad{random.randrange(40)}" for _ in range(8)]
    words = mood + [f"word{random.randrange(4000)}" for _ in range(length)]
    random.shuffle(words)
    return " ".join(words).capitalize() + ".<br />"


train_labels = [random.randrange(2) for _ in range(24000)]
train_texts = [write_review(label if random.random() < 0.9 else 1 - label) for label in train_labels]


def custom_standardization(input_data):
    lowercase = tf.strings.lower(input_data)
    stripped_html = tf.strings.regex_replace(lowercase, "<br />", " ")
    return tf.strings.regex_replace(stripped_html, r"[.,!?]", "")


vectorize_layer = layers.TextVectorization(
    standardize=custom_standardization,
    max_tokens=max_features,
    output_mode="int",
    output_sequence_length=sequence_length,
)
vectorize_layer.adapt(tf.data.Dataset.from_tensor_slices(train_texts).batch(512))


def vectorize_text(text, label):
    return vectorize_layer(text), label


raw_train_ds = tf.data.Dataset.from_tensor_slices((train_texts, train_labels)).batch(1024)
train_ds = raw_train_ds.map(vectorize_text, num_parallel_calls=tf.data.AUTOTUNE).unbatch().cache()
train_ds = train_ds.shuffle(2000, seed=SEED).batch(batch_size).prefetch(tf.data.AUTOTUNE)

model = tf.keras.Sequential(
    [
        layers.Embedding(max_features, 32),
        layers.GRU(32),
        layers.Dense(16, activation="relu"),
        layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile(
    loss=losses.BinaryCrossentropy(),
    optimizer="adam",
    metrics=["accuracy"],
    jit_compile=True,
    steps_per_execution=25,
)
model.fit(train_ds, epochs=6, verbose=2)
